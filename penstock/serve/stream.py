"""A stream as its readers see it: pages, and a live sequence of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from penstock.contracts import Delivery, LogReader
from penstock.cursor import stream_cursor
from penstock.errors import BadCursor, Busy
from penstock.serve.pieces import EARLIEST, LATEST, Extent, Offsets, extent, join, locate, read_piece
from penstock.serve.tail import PIECE_BYTES_MAX, Tail, change_of
from penstock.settings import Settings

PAGE_BYTES_MAX = 8 * 1024 * 1024
STALL_EVENTS = 10_000
"""How far behind the end a follower is told so."""
READS_MAX = 2
"""Threads that those behind the tail may use at once: the tail itself must not wait for them."""
TRIES_MAX = 3
"""A read can lose its range to retention between the look and the read; each retry looks again."""


@dataclass
class _Place:
    """Where one follower stands. `number` is its next entry of the tail, None while it reads the log by itself."""

    generation: int
    offsets: Offsets
    number: int | None = None
    stalled: bool = False

    @property
    def cursor(self) -> str:
        return stream_cursor(self.generation, self.offsets)


class StreamChannel:
    """A `Channel` over one stream of a log. Belongs to one event loop; the log is read in threads.

    Followers at the tail share what the tail has encoded. One that is behind reads the log for itself, a piece at a
    time and only when it is asked for the next, until it meets the tail.
    """

    def __init__(self, name: str, log: LogReader, settings: Settings) -> None:
        self.name = name
        self._log = log
        self._settings = settings
        self._tail = Tail(log, name, entries_max=settings.buffered_changes, events_max=settings.page_events)
        self._reads = asyncio.Semaphore(READS_MAX)

    def wake(self) -> None:
        """Say that events were committed. Called in the event loop after each commit; never blocks."""
        self._tail.wake()

    async def page(self, since: str | None, limit: int) -> bytes:
        return await asyncio.to_thread(self._page, EARLIEST if since is None else since, limit)

    def _page(self, since: str, limit: int) -> bytes:
        for _ in range(TRIES_MAX):
            now = extent(self._log, self.name)
            start, gone = locate(since, now)
            try:
                piece = read_piece(self._log, self.name, start, now.ends, events_max=limit, bytes_max=PAGE_BYTES_MAX)
            except BadCursor:
                continue
            cursor = msgspec.json.encode(stream_cursor(now.generation, piece.after))
            reset = b',"reset":true' if gone else b""
            return b'{"events":' + join(piece.events) + b',"cursor":' + cursor + reset + b"}"
        raise Busy(f"the oldest events of {self.name} go faster than they can be read")

    async def follow(self, since: str | None) -> AsyncIterator[Delivery]:
        """As the contract says. The first delivery comes at once: a change if there is one, else a progress mark."""
        now = await asyncio.to_thread(extent, self._log, self.name)
        offsets, gone = locate(LATEST if since is None else since, now)
        place = _Place(now.generation, offsets)
        with self._tail.attached():
            if gone:
                yield _reset(place, gone)
            elif since in (None, LATEST):
                yield _progress(place)
            else:
                await self._tail.ready()
                yield await self._next(place, 0)
            while True:
                yield await self._next(place, self._settings.heartbeat_s)

    async def _next(self, place: _Place, silence_s: float) -> Delivery:
        """The next delivery of a follower; a progress mark if there is none for so long."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + silence_s
        while True:
            delivery = await self._step(place)
            if delivery is not None:
                return delivery
            if not await self._tail.news(deadline - clock()):
                return _progress(place)

    async def _step(self, place: _Place) -> Delivery | None:
        """What can be given now; None if that is nothing until the tail has news."""
        tail = self._tail
        if tail.error is not None:
            raise tail.error
        if tail.now is None:
            return None
        if tail.now.generation != place.generation:
            return await self._compare(place)
        if place.number is not None and place.number == tail.next:
            place.offsets = tail.position
            place.stalled = place.stalled and tail.position != tail.now.ends
            return None
        behind = sum(tail.now.ends.values()) - sum(place.offsets.values())
        if behind > STALL_EVENTS and not place.stalled:
            place.stalled = True
            return Delivery("stall", msgspec.json.encode({"behind": behind}), place.cursor)
        entry = None if place.number is None else tail.entry(place.number)
        if entry is None or place.number is None:
            return await self._catch_up(place)
        place.offsets, place.number = entry.after, place.number + 1
        return entry.change

    async def _compare(self, place: _Place) -> Delivery | None:
        """Place and tail are of different makings of the stream: find out which of them is out of date."""
        now = await asyncio.to_thread(extent, self._log, self.name)
        if now.generation != place.generation:
            return self._start_over(place, now, "the stream was made anew")
        if self._tail.now is not None and self._tail.now.generation == now.generation:
            return await self._step(place)  # it has caught up meanwhile, and will not tell again
        self._tail.wake()
        return None

    async def _catch_up(self, place: _Place) -> Delivery | None:
        """Read the log from the place towards the tail; None once the tail is met, or while it is still behind."""
        place.number = None
        while True:
            met = self._tail.meet(place.offsets)
            if met is None:
                self._tail.wake()
                return None
            target, number = met
            if place.offsets == target:
                place.number = number
                return await self._step(place)
            async with self._reads:
                found = await asyncio.to_thread(self._read, place, target)
            if isinstance(found, Extent):
                return self._start_over(place, found, "the events after this position are no longer kept")
            place.offsets, change = found
            if change is not None:
                return change

    def _read(self, place: _Place, end: Offsets) -> tuple[Offsets, Delivery | None] | Extent:
        """The next piece up to `end`, encoded; the extent of the log if the place is not in it any more."""
        try:
            piece = read_piece(
                self._log,
                self.name,
                place.offsets,
                end,
                events_max=self._settings.page_events,
                bytes_max=PIECE_BYTES_MAX,
            )
        except BadCursor:
            return extent(self._log, self.name)
        if self._log.generation(self.name) != place.generation:
            return extent(self._log, self.name)
        return piece.after, change_of(place.generation, piece)

    def _start_over(self, place: _Place, now: Extent, reason: str) -> Delivery:
        place.generation, place.offsets, place.number = now.generation, dict(now.starts), None
        return _reset(place, reason)


def _progress(place: _Place) -> Delivery:
    return Delivery("progress", b"{}", place.cursor)


def _reset(place: _Place, reason: str) -> Delivery:
    return Delivery("reset", msgspec.json.encode({"reason": reason}), place.cursor)
