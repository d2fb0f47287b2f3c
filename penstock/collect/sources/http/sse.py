"""A source that follows server-sent events: each event's data is one event of the stream, or an array of them.

Each event is stored exactly once if the server sends events with ids and resumes after the `Last-Event-ID` in a
request: the id is committed in one transaction with its event. Without ids, events that are sent while the source is
disconnected are missed.
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

from penstock.collect.sources.http.client import (
    HttpOptions,
    HttpRun,
    HttpSource,
    SourceEndpoint,
    backoff_of,
    endpoint_of,
)
from penstock.collect.sources.http.positions import (
    SeenDigests,
    apart,
    digest,
    items_at,
    mark_of,
    position_in,
    require_order,
)
from penstock.collect.sources.http.response import HttpResponse, ResponseLost
from penstock.core.backoff import Backoff
from penstock.core.clock import loop_time
from penstock.core.contracts import SourceWriter
from penstock.core.errors import SourceFailed
from penstock.core.sse import SseEvent, SseParser, TooLong

NOTE_S = 5.0
"""Seconds between two commits of the id while all events are being ignored, so that a restart does not read them
again."""
GROUP_EVENTS = 5_000
GROUP_BYTES = 2 * 1024 * 1024
"""Number of events and bytes that a source buffer always puts into one commit, unless its settings are lower."""
WARNING_LENGTH_MAX = 300
_NO_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_log = logging.getLogger("penstock.collect")


@dataclass(frozen=True)
class SseSource(HttpSource):
    """Follows `endpoint` and reconnects whenever the connection ends. Implements `contracts.Source`.

    Puts the data of events whose type is in `events`, or of all events if `events` is empty. Events whose type is in
    `warn` are logged and shown. With `items`, the data is JSON and each item in the array at that path is an event. The
    last `remember` events are recognised when a server sends them again. Memory: one event of up to `event_bytes_max`
    bytes, or twice that while it is being split.
    """

    endpoint: SourceEndpoint
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

    def _begin(self, run: HttpRun) -> Callable[[], Awaitable[str]]:
        return _Following(self, run).connection


class _Mark(msgspec.Struct, frozen=True):
    """The mark of an SSE source: the last event's `id`, the digests of the events `seen`, and how many items of the
    next event to `skip`. `skip` must stay the last field."""

    id: str = ""
    seen: str = ""
    skip: int = 0


class _Following:
    """One run of an SSE source: its position, kept from connection to connection."""

    def __init__(self, source: SseSource, run: HttpRun) -> None:
        self._source = source
        self._run = run
        place = position_in(_Mark, run.source_writer.mark)
        self._id, self._skip = place.id, place.skip
        self._seen = SeenDigests.of(place.seen, source.remember)
        self._groups = _Groups(run.source_writer)
        self._noted_at = 0.0

    async def connection(self) -> str:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._id:
            headers["Last-Event-ID"] = self._id
        parser = SseParser(self._source.event_bytes_max, self._id)
        async with self._run.client.get(headers) as answer:
            _require_event_stream(answer)
            self._run.status.state, self._run.status.error = "connected", None
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    await self._take_all(parser, piece)
        return "the server ended the stream"

    async def _take_all(self, parser: SseParser, piece: bytes) -> None:
        try:
            for event in parser.feed(piece):
                await self._take_event(event)
        except TooLong as error:
            raise SourceFailed(f"{error}; raise `event_bytes_max` if you expect such events") from None
        if parser.retry_ms is not None:
            self._run.asked.first_s = parser.retry_ms / 1000

    async def _take_event(self, event: SseEvent) -> None:
        if _NO_HEADER.search(event.id):
            raise SourceFailed("an event's id contains characters that cannot be sent back to the server in a header")
        if event.type in self._source.warn:
            self._warn(event)
        elif event.data and (not self._source.events or event.type in self._source.events):
            return await self._take_data(event, event.data)
        return await self._move(event.id)

    def _warn(self, event: SseEvent) -> None:
        """Log a warning event, such as Penstock's `reset`. The events after it are not the ones that were expected, so
        none of them are skipped."""
        text = (event.data or b"").decode(errors="replace")[:WARNING_LENGTH_MAX]
        _log.warning("source %s: the server sent %s: %r", self._source.address, event.type, text)
        self._run.status.error = f"the server sent {event.type}: {text}"
        self._skip = 0

    async def _take_data(self, event: SseEvent, data: bytes) -> None:
        """Put the stream's events in a server-sent event's data, unless they have already been received. Only an event
        with its own id is recognised, because the same data can also belong to a different event."""
        known = digest(event.id.encode(), event.type.encode(), data) if event.own and self._source.remember else None
        if known is not None and known in self._seen:
            return
        items = (
            [data] if self._source.items is None else await apart(len(data), _sse_event_items, data, self._source.items)
        )
        fresh, before = items[self._skip :], min(self._skip, len(items))
        marks = self._marks_inside(before, len(fresh))
        if known is not None:
            self._seen.add(known)
        if fresh:
            marks.append(mark_of(_Mark(event.id, self._seen.text)))
            await self._groups.put(fresh, marks)
            self._run.status.received += len(fresh)
            self._run.asked.fruitless = 0
        self._skip -= before
        if fresh:
            self._id = event.id
        else:
            await self._move(event.id)

    def _marks_inside(self, before: int, count: int) -> list[str]:
        """Return the source's marks for all events in a group except the last.

        There may be thousands, so they are not encoded one by one.
        """
        if count <= 1:
            return []
        common = mark_of(_Mark(self._id, self._seen.text)).removesuffix("0}")
        return [f"{common}{number}}}" for number in range(before + 1, before + count)]

    async def _move(self, last_id: str) -> None:
        """Advance past a server-sent event without putting it."""
        moved, self._id = last_id != self._id, last_id
        now = loop_time()
        if moved and now - self._noted_at >= NOTE_S:
            self._noted_at = now
            await self._groups.note(mark_of(_Mark(last_id, self._seen.text, self._skip)))


def _sse_event_items(data: bytes, path: str) -> list[bytes]:
    """Return the items of a server-sent event.

    Data without the array is put unchanged: it is stored or becomes a dead letter, but is never lost silently.
    """
    items = items_at(data, path)
    return [data] if items is None else items


class _Groups:
    """Puts a source's events in a group so that they become durable together, with the mark on the last event.

    Events put without a pause go into one commit, as long as the source buffer has room. So a group waits for the
    previous one if the two together could be too large for one commit. A group that is too large for one commit is
    split across several, and the mark of each event then records how far into the group that event is.
    """

    def __init__(self, source_writer: SourceWriter) -> None:
        self._source_writer = source_writer
        self._durable: asyncio.Future[None] | None = None
        self._events = 0
        self._bytes = 0

    async def put(self, group: Sequence[bytes], marks: Sequence[str]) -> None:
        size = sum(map(len, group))
        if self._durable is None or self._durable.done():
            self._events = self._bytes = 0
        if len(group) > 1 and (self._events + len(group) > GROUP_EVENTS or self._bytes + size > GROUP_BYTES):
            await self._reset_group()
        self._events += len(group)
        self._bytes += size
        for raw, mark in zip(group, marks, strict=True):
            self._durable = await self._source_writer.put(raw, mark)

    async def note(self, mark: str) -> None:
        self._durable = await self._source_writer.note(mark)

    async def _reset_group(self) -> None:
        if self._durable is not None:
            await asyncio.shield(self._durable)
        self._events = self._bytes = 0


def _require_event_stream(answer: HttpResponse) -> None:
    """Check that the response is an event stream. A response with a different type may be a proxy's error page, so the
    request is retried."""
    if answer.status == 204:
        raise SourceFailed("the server returned 204, which tells clients not to reconnect; check the address")
    named = (answer.header("content-type") or "").partition(";")[0].strip().lower()
    if named != "text/event-stream":
        raise ResponseLost(
            f"the response's content type is {named[:80] or 'missing'}, not text/event-stream; check the address"
        )


def sse(
    url: str,
    *,
    events: Sequence[str] = (),
    warn: Sequence[str] = (),
    items: str | None = None,
    remember: int = SseSource.remember,
    event_bytes_max: int = SseSource.event_bytes_max,
    silence_s: float = SourceEndpoint.silence_s,
    **options: Unpack[HttpOptions],
) -> SseSource:
    """Create a source of server-sent events. Opens nothing. See `SseSource` for the options."""
    return SseSource(
        endpoint_of(url, silence_s, options),
        tuple(events),
        tuple(warn),
        items,
        remember,
        event_bytes_max,
        backoff_of(options),
    )
