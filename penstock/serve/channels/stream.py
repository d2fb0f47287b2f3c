"""A stream as its readers see it: pages, and a live sequence of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from penstock.contracts import Delivery, LogReader, Page, Style
from penstock.cursor import stream_cursor
from penstock.errors import BadCursor, BadParameter, Busy
from penstock.serve.channels.lens import NOTHING, Lens, lens_on
from penstock.serve.channels.pieces import (
    EARLIEST,
    LATEST,
    Extent,
    Offsets,
    extent,
    join,
    locate,
    look_back,
    read_piece,
)
from penstock.serve.channels.tail import Tail, change_of
from penstock.serve.channels.threads import for_follower, for_reader
from penstock.serve.channels.waiting import Take
from penstock.settings import Settings

PAGE_BYTES_MAX = 8 * 1024 * 1024
SCAN_EVENTS_MAX = 100_000
"""Events that one page looks through for those that its filter lets pass: some tenths of a second of a thread."""
SCAN_PIECES_MAX = 1_000
"""Pieces that it looks through, most of which may be ticks."""
STALL_EVENTS = 10_000
"""How far behind the end a follower is told so."""
BEHIND_BYTES_MAX = 256 * 1024
"""A piece for one who is behind the tail: it holds that alone until it has taken it, and there may be a thousand."""
TRIES_MAX = 3
"""A read can lose its range to retention between the look and the read; each retry looks again."""


@dataclass
class _Place:
    """Where one follower stands. `number` is its next entry of the tail, None while it reads the log by itself."""

    generation: int
    offsets: Offsets
    number: int | None = None
    stalled: bool = False
    given_at: float = 0.0

    @property
    def cursor(self) -> str:
        return stream_cursor(self.generation, self.offsets)


@dataclass(frozen=True)
class _Found:
    """The events of a page, and where it ends. `gone`: it does not begin where it should. `more`: there is more."""

    generation: int
    after: Offsets
    rows: list[bytes]
    gone: bool
    more: bool

    def page(self) -> Page:
        events, cursor = join(self.rows), stream_cursor(self.generation, self.after)
        marks = (b',"reset":true' if self.gone else b"") + (b',"more":true' if self.more else b"")
        return _page(b'{"events":' + events, cursor, marks)


def _page(events: bytes, cursor: str, marks: bytes = b"") -> Page:
    """A page of `{"events": [...]`, which is closed here."""
    tag = blake2b(events + marks, digest_size=12).hexdigest()
    return Page(events + b',"cursor":' + msgspec.json.encode(cursor) + marks + b"}", cursor, tag)


class _Shared:
    """What all who read one stream have in common."""

    def __init__(self, name: str, log: LogReader, settings: Settings) -> None:
        self.name, self.log, self.settings = name, log, settings
        entries, events, filters = settings.buffered_changes, settings.page_events, settings.filters_max
        self.tail = Tail(log, name, entries_max=entries, events_max=events, filters_max=filters)


class StreamChannel:
    """A `Channel` over one stream of a log. Belongs to one event loop; the log is read in threads.

    Followers at the tail share what the tail has encoded. One that is behind reads the log for itself, a piece at a
    time and only when it is asked for the next, until it meets the tail. `schema` gives the types of its columns, as
    soon as they are known: those who filter need them.
    """

    def __init__(
        self, name: str, log: LogReader, settings: Settings, schema: Callable[[], pa.Schema | None] = lambda: None
    ) -> None:
        self.name = name
        self._schema = schema
        self._shared = _Shared(name, log, settings)
        self._lens = NOTHING
        self._who = ""
        self._tail = self._shared.tail

    def describe(self) -> dict[str, int]:
        """How it is read, for the figures of the app."""
        return self._tail.lenses.describe()

    def wake(self) -> None:
        """Say that events were committed. Called in the event loop after each commit; never blocks."""
        self._tail.wake()

    def through(self, where: str | None, select: str | None) -> StreamChannel:
        return self._seen_by(self._lens_on().through(where, select))

    def asked_by(self, who: str) -> StreamChannel:
        seen = copy(self)
        seen._who = who
        return seen

    def part(self, where: str | None, select: str | None) -> StreamChannel:
        return self.through(where, select)

    def limited(self, where: str, claims: Mapping[str, Any]) -> StreamChannel:
        return self._seen_by(self._lens_on().limited(where, claims))

    def _lens_on(self) -> Lens:
        return self._lens if self._lens is not NOTHING else lens_on(self.name, self._schema())

    def _seen_by(self, lens: Lens) -> StreamChannel:
        seen = copy(self)
        seen._lens = lens
        return seen

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> Page:
        if order is not None:
            raise BadParameter("events come in the order of the stream", parameter="order")
        if limit is None:
            raise BadParameter("a stream has no end: limit must be a whole number", parameter="limit")
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        found = await for_reader(self._who, self._find, EARLIEST if since is None else since, limit)
        while not found.rows and found.more and not found.gone and clock() < deadline:
            found = await for_reader(self._who, self._find, stream_cursor(found.generation, found.after), limit)
        if found.rows or found.gone or clock() >= deadline:
            return found.page()
        return await self._awaited(_Place(found.generation, found.after), limit, deadline)

    async def _awaited(self, place: _Place, limit: int, deadline: float) -> Page:
        """The page of what comes next after a place; an empty one when the deadline has passed."""
        clock = asyncio.get_running_loop().time
        with self._tail.attached(self._lens, self._who):
            while True:
                cursor = place.cursor
                delivery = await self._next(place, max(0.0, deadline - clock()))
                if delivery.kind == "change" and delivery.count <= limit:
                    return _page(delivery.data[:-1], delivery.cursor)
                if delivery.kind != "stall" and delivery.kind != "progress":
                    return (await for_reader(self._who, self._find, cursor, limit)).page()
                if clock() >= deadline:
                    return _page(b'{"events":[]', place.cursor)

    def _find(self, since: str, limit: int) -> _Found:
        log, name = self._shared.log, self.name
        for _ in range(TRIES_MAX):
            now = extent(log, name)
            start, gone = locate(since, now)
            try:
                rows, after = self._gather(start, now.ends, limit)
            except BadCursor:
                continue
            if log.generation(name) == now.generation:
                return _Found(now.generation, after, rows, gone is not None, after != now.ends)
        raise Busy(f"the oldest events of {name} go faster than they can be read")

    def _gather(self, start: Offsets, end: Offsets, limit: int) -> tuple[list[bytes], Offsets]:
        """Up to `limit` events that are seen, and the position after the last. Without a filter, those of the first
        piece that has any: there may be nothing but ticks before it."""
        log, usual = self._shared.log, max(limit, self._shared.settings.page_events)
        most = usual if self._lens else limit
        rows, scanned, size, pieces = list[bytes](), 0, 0, 0
        while True:
            try:
                piece = read_piece(log, self.name, start, end, events_max=most, bytes_max=PAGE_BYTES_MAX)
            except BadCursor:
                if scanned:  # what was read until here is good, and the rest is gone
                    return rows, start
                raise
            for index, row in enumerate(piece.rows(self._lens)):
                if row is not None:
                    rows.append(row)
                    if len(rows) == limit:
                        last = index + 1 == len(piece.events)
                        return rows, piece.after if last else piece.until(index + 1)
            scanned, size, start = scanned + len(piece.events), size + piece.size, piece.after
            most, pieces = usual, pieces + 1
            full = scanned >= SCAN_EVENTS_MAX or size >= PAGE_BYTES_MAX or pieces >= SCAN_PIECES_MAX
            if start == end or full or (piece.events and not self._lens):
                return rows, start

    async def last(self, limit: int) -> Page:
        return (await for_reader(self._who, self._find_last, limit)).page()

    def _find_last(self, limit: int) -> _Found:
        """The last events that are seen among the latest of each partition."""
        look = limit if not self._lens else max(limit, self._shared.settings.page_events_max)
        log, name = self._shared.log, self.name
        for _ in range(TRIES_MAX):
            now = extent(log, name)
            rows = list[bytes]()
            try:
                start = {
                    each: look_back(log, name, each, (first, now.ends[each]), look, rows_max=SCAN_EVENTS_MAX)
                    for each, first in now.starts.items()
                }
                while start != now.ends:
                    piece = read_piece(log, name, start, now.ends, events_max=look, bytes_max=PAGE_BYTES_MAX)
                    rows = [*rows, *(row for row in piece.rows(self._lens) if row is not None)][-limit:]
                    start = piece.after
            except BadCursor:
                continue
            if log.generation(name) == now.generation:
                return _Found(now.generation, now.ends, rows, gone=False, more=False)
        raise Busy(f"the oldest events of {name} go faster than they can be read")

    async def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        """As the contract says. The first delivery comes at once: a change if there is one, else a progress mark."""
        now = await asyncio.to_thread(extent, self._shared.log, self.name)
        offsets, gone = locate(LATEST if since is None else since, now)
        place, style = _Place(now.generation, offsets), style or Style()
        with self._tail.attached(self._lens, self._who):
            if gone:
                self._tail.lenses.resets += 1
                yield _reset(place, gone)
            elif since in (None, LATEST):
                yield _progress(place)
            else:
                await self._tail.ready()
                yield await self._next(place, 0)
            while True:
                yield await self._next(place, self._shared.settings.heartbeat_s, style.take)

    async def _next(self, place: _Place, silence_s: float, take: Take | None = None) -> Delivery:
        """The next delivery of a follower; a progress mark if there is none for so long."""
        clock = asyncio.get_running_loop().time
        place.given_at = clock()
        while True:
            delivery = await self._step(place, place.given_at + silence_s)
            if delivery is not None:
                return delivery
            left_s = place.given_at + silence_s - clock()
            if not await self._tail.news(place, self._lens, take, left_s) and place.given_at + silence_s <= clock():
                return _progress(place)

    async def _step(self, place: _Place, deadline: float) -> Delivery | None:
        """What can be given now; None if that is nothing until the tail has news."""
        tail = self._tail
        while True:
            if tail.error is not None:
                raise tail.error
            if tail.now is None:
                return None
            if tail.now.generation != place.generation:
                return await self._compare(place, deadline)
            if place.number is not None and place.number == tail.next:
                place.offsets = tail.position
                place.stalled = place.stalled and tail.position != tail.now.ends
                return None
            behind = sum(tail.now.ends.values()) - sum(place.offsets.values())
            if behind > STALL_EVENTS and not place.stalled:
                place.stalled = True
                tail.lenses.stalls += 1
                return Delivery("stall", msgspec.json.encode({"behind": behind}), place.cursor)
            entry = None if place.number is None else tail.entry(place.number)
            if entry is None or place.number is None:
                return await self._catch_up(place, deadline)
            if tail.is_coming(place.number, self._lens, self._who):
                return None
            change = await tail.look(entry, self._lens, self._who)
            place.offsets, place.number = entry.after, place.number + 1
            if change is not None:
                return change

    async def _compare(self, place: _Place, deadline: float) -> Delivery | None:
        """Place and tail are of different makings of the stream: find out which of them is out of date."""
        now = await asyncio.to_thread(extent, self._shared.log, self.name)
        if now.generation != place.generation:
            return self._start_over(place, now, "the stream was made anew")
        if self._tail.now is not None and self._tail.now.generation == now.generation:
            return await self._step(place, deadline)  # it has caught up meanwhile, and will not tell again
        self._tail.wake()
        return None

    async def _catch_up(self, place: _Place, deadline: float) -> Delivery | None:
        """Read the log from the place towards the tail; None once the tail is met, or while it is still behind. A
        progress mark if nothing of what was read until the deadline is seen."""
        place.number = None
        clock = asyncio.get_running_loop().time
        while True:
            met = self._tail.meet(place.offsets)
            if met is None:
                self._tail.wake()
                return None
            target, number = met
            if place.offsets == target:
                place.number = number
                return await self._step(place, deadline)
            found = await for_follower(self._who, self._read, place, target)
            if isinstance(found, Extent):
                return self._start_over(place, found, "the events after this position are no longer kept")
            place.offsets, change = found
            if change is not None:
                return change
            if clock() >= deadline:
                return _progress(place)

    def _read(self, place: _Place, end: Offsets) -> tuple[Offsets, Delivery | None] | Extent:
        """The next piece up to `end`, encoded; the extent of the log if the place is not in it any more."""
        log, events_max = self._shared.log, self._shared.settings.page_events
        try:
            piece = read_piece(log, self.name, place.offsets, end, events_max=events_max, bytes_max=BEHIND_BYTES_MAX)
        except BadCursor:
            return extent(log, self.name)
        if log.generation(self.name) != place.generation:
            return extent(log, self.name)
        return piece.after, change_of(place.generation, piece, self._lens)

    def _start_over(self, place: _Place, now: Extent, reason: str) -> Delivery:
        place.generation, place.offsets, place.number = now.generation, dict(now.starts), None
        self._tail.lenses.resets += 1
        return _reset(place, reason)


def _progress(place: _Place) -> Delivery:
    return Delivery("progress", b"{}", place.cursor)


def _reset(place: _Place, reason: str) -> Delivery:
    return Delivery("reset", msgspec.json.encode({"reason": reason}), place.cursor)
