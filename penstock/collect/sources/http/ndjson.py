"""A source that reads a continuous response line by line: each line is one event.

Each event is stored exactly once if `position` names a field that each event has, and the server can resume after it:
the last position is committed in one transaction with its event, and sent with the next request. Without `position`,
events that are sent while the source is disconnected are missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
    Order,
    apart,
    is_after,
    mark_of,
    position_at,
    position_in,
    require_order,
    require_unequal,
)
from penstock.core.backoff import Backoff
from penstock.core.errors import DeclarationError, SourceFailed


@dataclass(frozen=True)
class NdjsonSource(HttpSource):
    """Reads `endpoint` and requests it again whenever the response ends. Implements `contracts.Source`.

    `position` is the path of the field that is sent back as the query parameter `resume`. With `order`, an event is
    skipped as already received if its position is not after the last position. Memory: one line of up to
    `event_bytes_max` bytes.
    """

    endpoint: SourceEndpoint
    position: str | None = None
    resume: str = "since"
    order: Order = "number"
    event_bytes_max: int = 8 * 1024 * 1024
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        require_order(self.order)
        if not self.resume:
            raise DeclarationError("`resume` must be the name of the query parameter for the position")

    @property
    def kind(self) -> str:
        return "ndjson"

    def _begin(self, run: HttpRun) -> Callable[[], Awaitable[str]]:
        return _Reading(self, run).connection


class _Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mark of an NDJSON source: the position of its last event."""

    at: str | None = None


class _Reading:
    """One run of an NDJSON source: its position, kept across connections."""

    def __init__(self, source: NdjsonSource, run: HttpRun) -> None:
        self._source = source
        self._run = run
        self._at = None if source.position is None else position_in(_Mark, run.source_writer.mark).at
        self._before: tuple[str, bytes] | None = None

    async def connection(self) -> str:
        query = {} if self._at is None else {self._source.resume: self._at}
        lines = Lines(self._source.event_bytes_max)
        self._before = None
        async with self._run.client.get({"Accept": "application/x-ndjson, application/json"}, query) as answer:
            self._run.status.state, self._run.status.error = "connected", None
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    for line in lines.feed(piece):
                        await self._put_line(line)
            if answer.whole:
                await self._put_line(lines.rest)
        return "the server ended the response"

    async def _put_line(self, line: bytes) -> None:
        """Put one line of the response. Skips blank lines, which only keep the connection alive, and lines that have
        already been received.

        A line without a position is never treated as already received.
        """
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
            mark = mark_of(_Mark(at))
        await self._run.source_writer.put(raw, mark)
        self._at = at or self._at
        self._run.status.received += 1
        self._run.asked.fruitless = 0


class Lines:
    """Splits bytes that arrive in pieces into lines. `rest` contains the bytes after the last line ending."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        return b"".join(self._parts)

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that end in this piece, without line endings."""
        first, *others = piece.split(b"\n")
        self._append_part(first)
        if not others:
            return []
        lines = [self.rest]
        for part in others:
            self._parts, self._size = [], 0
            self._append_part(part)
            lines.append(part)
        lines.pop()
        return lines

    def _append_part(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._bytes_max:
            raise SourceFailed(
                f"a line is longer than {self._bytes_max} bytes; increase `event_bytes_max` to allow that"
            )
        self._parts.append(part)


def ndjson(
    url: str,
    *,
    position: str | None = None,
    resume: str = NdjsonSource.resume,
    order: Order = NdjsonSource.order,
    event_bytes_max: int = NdjsonSource.event_bytes_max,
    silence_s: float = SourceEndpoint.silence_s,
    **options: Unpack[HttpOptions],
) -> NdjsonSource:
    """Create a source with one event per line. Opens nothing. See `NdjsonSource` for the options."""
    return NdjsonSource(
        endpoint_of(url, silence_s, options),
        position,
        resume,
        order,
        event_bytes_max,
        backoff_of(options),
    )
