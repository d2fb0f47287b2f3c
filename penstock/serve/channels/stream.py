"""The channel of a stream: pages, and a live sequence of its events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.clock import loop_time
from penstock.core.contracts import Delivery, LogReader, PageBody, Style
from penstock.core.cursor import stream_cursor
from penstock.core.errors import BadCursor, BadParameter, Busy
from penstock.core.settings import Settings
from penstock.serve.channels.row_filter import NO_FILTER, RowFilter, base_filter
from penstock.serve.channels.stream_reader import (
    EARLIEST,
    LATEST,
    Offsets,
    ServedExtent,
    extent,
    join,
    locate,
    look_back,
    read_run,
)
from penstock.serve.channels.tail import StreamTail, change_of
from penstock.serve.channels.threads import for_follower, for_reader
from penstock.serve.channels.waiting import Take

PAGE_BYTES_MAX = 8 * 1024 * 1024
LAST_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of the events that `last` returns. It reads all of them before it sends the first."""
SCAN_EVENTS_MAX = 100_000
"""Maximum number of events that one page scans for matches, which takes a few tenths of a second in a thread."""
SCAN_RUNS_MAX = 1_000
"""Maximum number of runs that one page scans. Without it, a page could scan many runs that contain nothing but
ticks."""
STALL_EVENTS = 10_000
"""A follower that is more than this many events behind gets a `stall`."""
BEHIND_BYTES_MAX = 256 * 1024
"""Maximum number of bytes in a run for a follower behind the tail.

Each follower holds one run until it has processed that run, and there can be a thousand followers.
"""
TRIES_MAX = 3
"""Number of attempts to read a range. Retention can delete events before they are read, so each attempt determines the
range again."""


@dataclass
class _Follower:
    """The position of a stream's follower. `number` is the number of the follower's next entry in the tail, or None
    while the follower reads the log on its own.

    While the sum of the stream's end offsets is at most `near_until`, the follower is not far enough behind for a
    `stall`.
    """

    generation: int
    offsets: Offsets
    number: int | None = None
    stalled: bool = False
    given_at: float = 0.0
    near_until: int = -1

    @property
    def cursor(self) -> str:
        return stream_cursor(self.generation, self.offsets)


@dataclass(frozen=True)
class _Found:
    """The events of a stream's page, and the position after them.

    `gone` means that the start of the page is no longer kept; `more` means that there are further events.
    """

    generation: int
    after: Offsets
    empty: bool
    gone: bool
    more: bool
    page: PageBody

    @classmethod
    def of(cls, generation: int, after: Offsets, rows: list[bytes], *, gone: bool, more: bool) -> _Found:
        """Encode the page. Slow: called in a thread."""
        events, cursor = join(rows), stream_cursor(generation, after)
        marks = (b',"reset":true' if gone else b"") + (b',"more":true' if more else b"")
        return cls(generation, after, not rows, gone, more, _stream_page(b'{"events":' + events, cursor, marks))


class _LastRows:
    """The last rows of a stream that have been added: at most `count`, and at most `bytes_max` bytes of them."""

    def __init__(self, count: int, bytes_max: int) -> None:
        self._count, self._bytes_max = count, bytes_max
        self._rows: deque[bytes] = deque()
        self._added = self._bytes = 0

    def add(self, rows: Iterable[bytes | None]) -> None:
        for row in rows:
            if row is not None:
                self._rows.append(row)
                self._added += 1
                self._bytes += len(row)
                while len(self._rows) > self._count or self._bytes > self._bytes_max:
                    self._bytes -= len(self._rows.popleft())

    def all(self) -> list[bytes]:
        """Return the rows. Raises `BadParameter` if some of the last `count` rows were dropped for their size."""
        if len(self._rows) < min(self._count, self._added):
            raise BadParameter(
                f"the last {self._count} events are larger than {self._bytes_max // 2**20} MiB; ask for fewer, or "
                "select fewer or shorter columns",
                parameter="last",
            )
        return list(self._rows)


def _stream_page(events: bytes, cursor: str, marks: bytes = b"") -> PageBody:
    """Return a page of a stream. `events` is the beginning of its body, `{"events": [...]`; the rest is added here."""
    tag = blake2b(events + marks, digest_size=12).hexdigest()
    return PageBody(events + b',"cursor":' + msgspec.json.encode(cursor) + marks + b"}", cursor, tag)


class _Shared:
    """State shared by all readers of one stream."""

    def __init__(self, name: str, log: LogReader, settings: Settings) -> None:
        self.name, self.log, self.settings = name, log, settings
        entries, events, filters = settings.buffered_changes, settings.page_events, settings.filters_max
        self.tail = StreamTail(log, name, entries_max=entries, events_max=events, filters_max=filters)


class StreamChannel:
    """A `Channel` over one stream of a log. Not thread-safe; reads the log in threads.

    Followers at the tail share the deliveries that the tail has encoded. A follower that is behind reads the log on its
    own, one run at a time and only on demand, until it reaches the tail. `schema` returns the column types that filters
    need, or None while the types are unknown.
    """

    def __init__(
        self, name: str, log: LogReader, settings: Settings, schema: Callable[[], pa.Schema | None] = lambda: None
    ) -> None:
        self.name = name
        self._schema = schema
        self._shared = _Shared(name, log, settings)
        self._row_filter = NO_FILTER
        self._who = ""
        self._tail = self._shared.tail

    def describe(self) -> dict[str, int]:
        """Return the stream channel's read counters for the app's figures."""
        return self._tail.row_filters.describe()

    def wake(self) -> None:
        """Notify the channel that events were committed. Called in the event loop after each commit; never
        blocks."""
        self._tail.wake()

    def through(self, where: str | None, select: str | None) -> StreamChannel:
        return self._seen_by(self._base_filter().through(where, select))

    def asked_by(self, who: str) -> StreamChannel:
        seen = copy(self)
        seen._who = who
        return seen

    def part(self, where: str | None, select: str | None) -> StreamChannel:
        return self.through(where, select)

    def limited(self, where: str, claims: Mapping[str, Any]) -> StreamChannel:
        return self._seen_by(self._base_filter().limited(where, claims))

    def _base_filter(self) -> RowFilter:
        return self._row_filter if self._row_filter is not NO_FILTER else base_filter(self.name, self._schema())

    def _seen_by(self, row_filter: RowFilter) -> StreamChannel:
        seen = copy(self)
        seen._row_filter = row_filter
        return seen

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> PageBody:
        if order is not None:
            raise BadParameter("a stream cannot be sorted: its events have a fixed order", parameter="order")
        if limit is None:
            raise BadParameter("limit must be an integer, because a stream has no end", parameter="limit")
        deadline = loop_time() + wait_s
        events = await for_reader(self._who, self._find, EARLIEST if since is None else since, limit)
        while events.empty and events.more and not events.gone and loop_time() < deadline:
            events = await for_reader(self._who, self._find, stream_cursor(events.generation, events.after), limit)
        if not events.empty or events.gone or loop_time() >= deadline:
            return events.page
        return await self._awaited(_Follower(events.generation, events.after), limit, deadline)

    async def _awaited(self, follower: _Follower, limit: int, deadline: float) -> PageBody:
        """Wait for the next page after the follower's position. Returns an empty page once the deadline has passed."""
        with self._tail.attached(self._row_filter, self._who):
            while True:
                cursor = follower.cursor
                delivery = await self._next(follower, max(0.0, deadline - loop_time()))
                if delivery.kind == "change" and delivery.count <= limit:
                    return _stream_page(delivery.data[:-1], delivery.cursor)
                if delivery.kind != "stall" and delivery.kind != "progress":
                    return (await for_reader(self._who, self._find, cursor, limit)).page
                if loop_time() >= deadline:
                    return _stream_page(b'{"events":[]', follower.cursor)

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
                return _Found.of(now.generation, after, rows, gone=gone is not None, more=after != now.ends)
        raise Busy(f"the oldest events of {name} are being deleted faster than they can be read")

    def _gather(self, start: Offsets, end: Offsets, limit: int) -> tuple[list[bytes], Offsets]:
        """Return up to `limit` visible events of the stream, and the position after the last. A filter's events stop
        sooner once they exceed `PAGE_BYTES_MAX`, because a selection can make them larger than the stored ones.

        Without a filter, returns the events of the first run that contains any events, because the runs before it can
        consist of ticks alone.
        """
        log, usual = self._shared.log, max(limit, self._shared.settings.page_events)
        most = usual if self._row_filter else limit
        rows, held, scanned, size, runs = list[bytes](), 0, 0, 0, 0
        while True:
            try:
                run = read_run(log, self.name, start, end, events_max=most, bytes_max=PAGE_BYTES_MAX)
            except BadCursor:
                if scanned:  # the events read so far are valid, and the rest have been deleted
                    return rows, start
                raise
            for index, row in enumerate(run.rows(self._row_filter)):
                if row is not None:
                    rows.append(row)
                    held += len(row)
                    if len(rows) == limit or (self._row_filter and held > PAGE_BYTES_MAX):
                        last = index + 1 == len(run.events)
                        return rows, run.after if last else run.until(index + 1)
            scanned, size, start = scanned + len(run.events), size + run.size, run.after
            most, runs = usual, runs + 1
            full = scanned >= SCAN_EVENTS_MAX or size >= PAGE_BYTES_MAX or runs >= SCAN_RUNS_MAX
            if start == end or full or (run.events and not self._row_filter):
                return rows, start

    async def last(self, limit: int) -> PageBody:
        return (await for_reader(self._who, self._find_last, limit)).page

    def _find_last(self, limit: int) -> _Found:
        """Return the last visible events among the latest events of each partition. Raises `BadParameter` if they
        exceed `LAST_BYTES_MAX`."""
        look = limit if not self._row_filter else max(limit, self._shared.settings.page_events_max)
        log, name = self._shared.log, self.name
        for _ in range(TRIES_MAX):
            now = extent(log, name)
            rows = _LastRows(limit, LAST_BYTES_MAX)
            try:
                start = {
                    partition: look_back(
                        log, name, partition, (first, now.ends[partition]), look, rows_max=SCAN_EVENTS_MAX
                    )
                    for partition, first in now.starts.items()
                }
                while start != now.ends:
                    run = read_run(log, name, start, now.ends, events_max=look, bytes_max=PAGE_BYTES_MAX)
                    rows.add(run.rows(self._row_filter))
                    start = run.after
            except BadCursor:
                continue
            if log.generation(name) == now.generation:
                return _Found.of(now.generation, now.ends, rows.all(), gone=False, more=False)
        raise Busy(f"the oldest events of {name} are being deleted faster than they can be read")

    async def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        """Follow the stream, as specified by `Channel`.

        The first delivery is sent immediately; it is a progress mark if there is nothing else.
        """
        now = await asyncio.to_thread(extent, self._shared.log, self.name)
        offsets, gone = locate(LATEST if since is None else since, now)
        follower, style = _Follower(now.generation, offsets), style or Style()
        with self._tail.attached(self._row_filter, self._who):
            if gone:
                self._tail.row_filters.resets += 1
                yield _stream_reset(follower, gone)
            elif since in (None, LATEST):
                yield _stream_progress(follower)
            else:
                await self._tail.ready()
                yield await self._next(follower, 0)
            while True:
                yield await self._next(follower, self._shared.settings.heartbeat_s, style.take)

    async def _next(self, follower: _Follower, silence_s: float, take: Take | None = None) -> Delivery:
        """Return the next delivery for a follower, or a progress mark if there is none within `silence_s`."""
        follower.given_at = loop_time()
        while True:
            delivery = await self._step(follower, follower.given_at + silence_s)
            if delivery is not None:
                return delivery
            left_s = follower.given_at + silence_s - loop_time()
            if (
                not await self._tail.news(follower, self._row_filter, take, left_s)
                and follower.given_at + silence_s <= loop_time()
            ):
                return _stream_progress(follower)

    async def _step(self, follower: _Follower, deadline: float) -> Delivery | None:
        """Return the delivery that is available now for the stream's follower, or None if it has to wait for the
        tail."""
        tail = self._tail
        while True:
            if tail.error is not None:
                raise tail.error
            if tail.now is None:
                return None
            if tail.now.generation != follower.generation:
                return await self._compare(follower, deadline)
            if follower.number is not None and follower.number == tail.next:
                follower.offsets = tail.position
                follower.stalled = follower.stalled and tail.position != tail.now.ends
                return None
            if not follower.stalled and sum(tail.now.ends.values()) > follower.near_until:
                behind = await self._behind(follower, tail.now.ends)
                if behind > STALL_EVENTS:
                    follower.stalled = True
                    tail.row_filters.stalls += 1
                    return Delivery("stall", msgspec.json.encode({"behind": behind}), follower.cursor)
            entry = None if follower.number is None else tail.entry(follower.number)
            if entry is None or follower.number is None:
                return await self._catch_up(follower, deadline)
            if tail.is_coming(follower.number, self._row_filter, self._who):
                return None
            change = await tail.look(entry, self._row_filter, self._who)
            follower.offsets, follower.number = entry.after, follower.number + 1
            if change is not None:
                return change

    async def _behind(self, follower: _Follower, ends: Offsets) -> int:
        """Return the number of rows that a follower is behind.

        The log is read, in a thread, only if the difference in offsets is large enough for a `stall`. Sets
        `near_until`, so the next check is due only when the stream has grown enough for a `stall`.
        """
        end = sum(ends.values())
        behind = end - sum(follower.offsets.values())
        if behind > STALL_EVENTS:
            behind = await for_follower(self._who, self._shared.log.rows_between, self.name, follower.offsets, ends)
        follower.near_until = end + STALL_EVENTS - behind
        return behind

    async def _compare(self, follower: _Follower, deadline: float) -> Delivery | None:
        """Find out which is outdated, the follower or the tail, when they belong to different generations of the
        stream."""
        now = await asyncio.to_thread(extent, self._shared.log, self.name)
        if now.generation != follower.generation:
            return self._start_over(follower, now, "the stream was recreated")
        if self._tail.now is not None and self._tail.now.generation == now.generation:
            return await self._step(
                follower, deadline
            )  # the tail has caught up in the meantime, and will not wake the follower again
        self._tail.wake()
        return None

    async def _catch_up(self, follower: _Follower, deadline: float) -> Delivery | None:
        """Read the log from the follower's position towards the tail, and continue at the tail once it is reached.

        Returns None if the tail itself has not read that far yet, or has nothing for the follower. Returns a progress
        mark if no visible event was read before the deadline.
        """
        follower.number = None
        while True:
            met = self._tail.meet(follower.offsets)
            if met is None:
                self._tail.wake()
                return None
            target, number = met
            if follower.offsets == target:
                follower.number = number
                return await self._step(follower, deadline)
            run = await for_follower(self._who, self._read, follower, target)
            if isinstance(run, ServedExtent):
                return self._start_over(follower, run, "the events after this position are no longer kept")
            follower.offsets, change = run
            if change is not None:
                return change
            if loop_time() >= deadline:
                return _stream_progress(follower)

    def _read(self, follower: _Follower, end: Offsets) -> tuple[Offsets, Delivery | None] | ServedExtent:
        """Read and encode the next run of events up to `end`. Returns the log's extent if the position is no longer in
        the log."""
        log, events_max = self._shared.log, self._shared.settings.page_events
        try:
            run = read_run(log, self.name, follower.offsets, end, events_max=events_max, bytes_max=BEHIND_BYTES_MAX)
        except BadCursor:
            return extent(log, self.name)
        if log.generation(self.name) != follower.generation:
            return extent(log, self.name)
        return run.after, change_of(follower.generation, run, self._row_filter)

    def _start_over(self, follower: _Follower, now: ServedExtent, reason: str) -> Delivery:
        follower.generation, follower.offsets, follower.number = now.generation, dict(now.starts), None
        follower.near_until = -1
        self._tail.row_filters.resets += 1
        return _stream_reset(follower, reason)


def _stream_progress(follower: _Follower) -> Delivery:
    return Delivery("progress", b"{}", follower.cursor)


def _stream_reset(follower: _Follower, reason: str) -> Delivery:
    return Delivery("reset", msgspec.json.encode({"reason": reason}), follower.cursor)
