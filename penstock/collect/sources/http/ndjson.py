"""A source that reads an answer of lines which goes on for ever: each line is one event.

Exactly once, if `position` names a field of each event and the server can go on after it: the last value is committed
in one transaction with its event, and sent back with the next request. Without it, what comes while nobody is connected
is missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Unpack

import msgspec

from penstock.collect.sources.http.client import Asked, Client, Endpoint, HttpOptions, backoff_of, endpoint_of, pull
from penstock.collect.sources.http.positions import (
    Order,
    apart,
    is_after,
    mark_of,
    place_of,
    position_at,
    require_order,
    require_unequal,
)
from penstock.collect.sources.reconnect import Backoff
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed


@dataclass(frozen=True)
class NdjsonSource:
    """Reads `endpoint` and asks again whenever the answer ends. Implements `contracts.Source`.

    `position` is the path of the field that is sent back as the query parameter `resume`. With `order`, an event whose
    position is not after the last one's is one that was here before. Memory: one line of `event_bytes_max`.
    """

    endpoint: Endpoint
    position: str | None = None
    resume: str = "since"
    order: Order = "number"
    event_bytes_max: int = 8 * 1024 * 1024
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        require_order(self.order)
        if not self.resume:
            raise DeclarationError("`resume` is the name of the query parameter that takes the position")

    @property
    def kind(self) -> str:
        return "ndjson"

    @property
    def address(self) -> str:
        return self.endpoint.address

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Read until cancelled; what was put by then is durable before that goes on. Raises `SourceFailed`."""

        def begin(client: Client, asked: Asked) -> Callable[[], Awaitable[str]]:
            return _Reading(self, intake, status, client, asked).connection

        await pull(self.endpoint, self.backoff, intake, status, begin)


class _Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """After the event at this position."""

    at: str | None = None


class _Reading:
    """One run of a source: where it stands, from connection to connection."""

    def __init__(
        self, source: NdjsonSource, intake: Intake, status: SourceStatus, client: Client, asked: Asked
    ) -> None:
        self._source = source
        self._intake = intake
        self._status = status
        self._client = client
        self._asked = asked
        self._at = None if source.position is None else place_of(_Place, intake.mark).at
        self._before: tuple[str, bytes] | None = None

    async def connection(self) -> str:
        query = {} if self._at is None else {self._source.resume: self._at}
        lines = Lines(self._source.event_bytes_max)
        self._before = None
        async with self._client.get({"Accept": "application/x-ndjson, application/json"}, query) as answer:
            self._status.state, self._status.error = "connected", None
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    for line in lines.feed(piece):
                        await self._take(line)
            if answer.whole:
                await self._take(lines.rest)
        return "the server ended the answer"

    async def _take(self, line: bytes) -> None:
        """Put one line, unless it is blank, which is a sign of life, or was here before. One without a position is
        taken as it comes."""
        raw = line.strip()
        if not raw:
            return
        path, mark = self._source.position, None
        at = None if path is None else await apart(len(raw), position_at, raw, path)
        if path is not None and at is not None:
            if self._source.order is not None and self._before is not None and self._before[0] == at:
                require_unequal(path, at, raw, self._before[1])
            self._before = (at, raw)
            if not is_after(at, self._at, self._source.order):
                return
            mark = mark_of(_Place(at))
        await self._intake.put(raw, mark)
        self._at = at or self._at
        self._status.received += 1
        self._asked.fruitless = 0


class Lines:
    """Bytes to lines, in whatever pieces they come. `rest` is what follows the last line's end."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        return b"".join(self._parts)

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece, without their ends."""
        first, *others = piece.split(b"\n")
        self._append(first)
        if not others:
            return []
        lines = [self.rest]
        for each in others:
            self._parts, self._size = [], 0
            self._append(each)
            lines.append(each)
        lines.pop()
        return lines

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._bytes_max:
            raise SourceFailed(
                f"a line has more than {self._bytes_max} bytes; raise `event_bytes_max` if that is right"
            )
        self._parts.append(part)


def ndjson(
    url: str,
    *,
    position: str | None = None,
    resume: str = NdjsonSource.resume,
    order: Order = NdjsonSource.order,
    event_bytes_max: int = NdjsonSource.event_bytes_max,
    silence_s: float = Endpoint.silence_s,
    **options: Unpack[HttpOptions],
) -> NdjsonSource:
    """A feed of one event a line. `NdjsonSource` says what the options mean. Making one opens nothing."""
    return NdjsonSource(
        endpoint_of(url, silence_s, options),
        position,
        resume,
        order,
        event_bytes_max,
        backoff_of(options),
    )
