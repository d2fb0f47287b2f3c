"""A source that follows server-sent events: each event's data is one event of the stream, or an array of them.

Exactly once, if the server gives its events ids and goes on after the `Last-Event-ID` that it is sent: the id is
committed in one transaction with the event it came with. Without ids, what comes while nobody is connected is missed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Unpack

import msgspec

from penstock.collect.sources.http.answer import Answer, Lost
from penstock.collect.sources.http.client import Asked, Client, Endpoint, HttpOptions, backoff_of, endpoint_of, pull
from penstock.collect.sources.http.positions import Seen, apart, digest, items_at, mark_of, place_of, require_order
from penstock.collect.sources.http.sse_parser import EventParser, ServerEvent, TooLong
from penstock.collect.sources.reconnect import Backoff
from penstock.contracts import Intake, SourceStatus
from penstock.errors import SourceFailed

NOTE_S = 5.0
"""How often the id is committed while only events come that are not taken. It spares a restart reading them again."""
GROUP_EVENTS = 5_000
GROUP_BYTES = 2 * 1024 * 1024
"""What an intake takes into one commit in any case, as far as its settings are not made smaller than that."""
WARNING_LENGTH_MAX = 300
_NO_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_log = logging.getLogger("penstock.collect")


@dataclass(frozen=True)
class SseSource:
    """Follows `endpoint` and reconnects whenever the connection ends. Implements `contracts.Source`.

    Of the event types in `events` the data is taken (of all, if there are none); those in `warn` are logged and shown.
    With `items`, the data is JSON and each item of the array at that path is an event. The last `remember` events are
    known again when a server sends them a second time. Memory: one event of `event_bytes_max`, twice while it is split.
    """

    endpoint: Endpoint
    events: tuple[str, ...] = ()
    warn: tuple[str, ...] = ()
    items: str | None = None
    remember: int = 100
    event_bytes_max: int = 8 * 1024 * 1024
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        require_order(None, self.remember)

    @property
    def kind(self) -> str:
        return "sse"

    @property
    def address(self) -> str:
        return self.endpoint.address

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Follow until cancelled; what was put by then is durable before that goes on. Raises `SourceFailed`."""

        def begin(client: Client, asked: Asked) -> Callable[[], Awaitable[str]]:
            return _Following(self, intake, status, client, asked).connection

        await pull(self.endpoint, self.backoff, intake, status, begin)


class _Place(msgspec.Struct, frozen=True):
    """After the event with this `id`, and after so many (`skip`, the last field) items of what follows it."""

    id: str = ""
    seen: str = ""
    skip: int = 0


class _Following:
    """One run of a source: where it stands, from connection to connection."""

    def __init__(self, source: SseSource, intake: Intake, status: SourceStatus, client: Client, asked: Asked) -> None:
        self._source = source
        self._status = status
        self._client = client
        self._asked = asked
        place = place_of(_Place, intake.mark)
        self._id, self._skip = place.id, place.skip
        self._seen = Seen.of(place.seen, source.remember)
        self._groups = _Groups(intake)
        self._noted_at = 0.0

    async def connection(self) -> str:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._id:
            headers["Last-Event-ID"] = self._id
        parser = EventParser(self._source.event_bytes_max, self._id)
        async with self._client.get(headers) as answer:
            _require_event_stream(answer)
            self._status.state, self._status.error = "connected", None
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    await self._take_all(parser, piece)
        return "the server ended the stream"

    async def _take_all(self, parser: EventParser, piece: bytes) -> None:
        try:
            for event in parser.feed(piece):
                await self._take(event)
        except TooLong:
            raise SourceFailed(
                f"an event has more than {self._source.event_bytes_max} bytes; raise `event_bytes_max` if that is right"
            ) from None
        if parser.retry_ms is not None:
            self._asked.first_s = parser.retry_ms / 1000

    async def _take(self, event: ServerEvent) -> None:
        if _NO_HEADER.search(event.id):
            raise SourceFailed("an event's id has characters that cannot be sent back to the server in a header")
        if event.kind in self._source.warn:
            self._warn(event)
        elif event.data and (not self._source.events or event.kind in self._source.events):
            return await self._take_data(event, event.data)
        return await self._move(event.id)

    def _warn(self, event: ServerEvent) -> None:
        """Such as Penstock's `reset`: what follows is not what was to follow, so nothing of it is to be skipped."""
        text = (event.data or b"").decode(errors="replace")[:WARNING_LENGTH_MAX]
        _log.warning("feed %s: the server says %s: %r", self._source.address, event.kind, text)
        self._status.error = f"the server says {event.kind}: {text}"
        self._skip = 0

    async def _take_data(self, event: ServerEvent, data: bytes) -> None:
        """Put what the event holds, unless it was here before. Only an event with an id of its own is known again:
        the same data a second time may well be another event."""
        known = digest(event.id.encode(), event.kind.encode(), data) if event.own and self._source.remember else None
        if known is not None and known in self._seen:
            return
        items = [data] if self._source.items is None else await apart(len(data), _items, data, self._source.items)
        fresh, before = items[self._skip :], min(self._skip, len(items))
        marks = self._marks_inside(before, len(fresh))
        if known is not None:
            self._seen.add(known)
        if fresh:
            marks.append(mark_of(_Place(event.id, self._seen.text)))
            await self._groups.put(fresh, marks)
            self._status.received += len(fresh)
            self._asked.fruitless = 0
        self._skip -= before
        if fresh:
            self._id = event.id
        else:
            await self._move(event.id)

    def _marks_inside(self, before: int, count: int) -> list[str]:
        """The marks of a group's events but the last. There may be thousands, so they are not encoded one by one."""
        if count <= 1:
            return []
        common = mark_of(_Place(self._id, self._seen.text)).removesuffix("0}")
        return [f"{common}{number}}}" for number in range(before + 1, before + count)]

    async def _move(self, last_id: str) -> None:
        """Past what is not taken."""
        moved, self._id = last_id != self._id, last_id
        now = asyncio.get_running_loop().time()
        if moved and now - self._noted_at >= NOTE_S:
            self._noted_at = now
            await self._groups.note(mark_of(_Place(last_id, self._seen.text, self._skip)))


def _items(data: bytes, path: str) -> list[bytes]:
    """Data without the array is put as it is: the stream keeps it, or it is a dead letter. It is not lost silently."""
    found = items_at(data, path)
    return [data] if found is None else found


class _Groups:
    """Puts events of one group so that they become durable together, and their mark with the last.

    What is put without a pause goes into one commit, as long as the intake's buffer has room for it. So a group waits
    for the one before if both together could be too much. A group that is too much for a commit by itself goes over
    several: for those, each event's mark says how far into the group it is.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._durable: asyncio.Future[None] | None = None
        self._events = 0
        self._bytes = 0

    async def put(self, group: Sequence[bytes], marks: Sequence[str]) -> None:
        size = sum(map(len, group))
        if self._durable is None or self._durable.done():
            self._events = self._bytes = 0
        if len(group) > 1 and (self._events + len(group) > GROUP_EVENTS or self._bytes + size > GROUP_BYTES):
            await self._empty()
        self._events += len(group)
        self._bytes += size
        for raw, mark in zip(group, marks, strict=True):
            self._durable = await self._intake.put(raw, mark)

    async def note(self, mark: str) -> None:
        self._durable = await self._intake.note(mark)

    async def _empty(self) -> None:
        if self._durable is not None:
            await asyncio.shield(self._durable)
        self._events = self._bytes = 0


def _require_event_stream(answer: Answer) -> None:
    """A page of another type may be a proxy's word about an outage, so another try may be of use."""
    if answer.status == 204:
        raise SourceFailed("the server answers 204, by which it says that nobody should come back; check the address")
    named = (answer.header("content-type") or "").partition(";")[0].strip().lower()
    if named != "text/event-stream":
        raise Lost(f"the answer is {named[:80] or 'of no type'}, not text/event-stream; check the address")


def sse(
    url: str,
    *,
    events: Sequence[str] = (),
    warn: Sequence[str] = (),
    items: str | None = None,
    remember: int = SseSource.remember,
    event_bytes_max: int = SseSource.event_bytes_max,
    silence_s: float = Endpoint.silence_s,
    **options: Unpack[HttpOptions],
) -> SseSource:
    """A feed of server-sent events. `SseSource` says what the options mean. Making one opens nothing."""
    return SseSource(
        endpoint_of(url, silence_s, options),
        tuple(events),
        tuple(warn),
        items,
        remember,
        event_bytes_max,
        backoff_of(options),
    )
