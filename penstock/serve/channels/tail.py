"""The tail of a stream: each new run of events is read and encoded once, for all followers.

Unfiltered followers are served first. Filtered results are computed afterwards, and the callers that use the filters
take turns, so a slow filter delays only its own caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.core.clock import loop_time
from penstock.core.contracts import Delivery, LogReader
from penstock.core.cursor import stream_cursor
from penstock.core.errors import BadCursor
from penstock.serve.channels.row_filter import FiltersInUse, RowFilter
from penstock.serve.channels.stream_reader import EventRun, Offsets, ServedExtent, extent, join, read_run
from penstock.serve.channels.threads import TURN_S, for_follower, in_turn
from penstock.serve.channels.waiting import Take, WaitingFollowers

LOOK_S = 1.0
"""Longest time between two checks of the log. Each commit, by any process, calls `wake`; a missed call causes at most
this delay."""
RUN_BYTES_MAX = 1024 * 1024
RING_BYTES_MAX = 16 * 1024 * 1024


def change_of(generation: int, run: EventRun, row_filter: RowFilter) -> Delivery | None:
    """Return the delivery for a run of events, or None if the row filter hides all of them. Slow: called in a
    thread. Raises `BadParameter` if a selection makes too much of the events."""
    rows = row_filter.gathered((row for row in run.rows(row_filter) if row is not None), ())
    if not rows:
        return None
    return Delivery("change", b'{"events":' + join(rows) + b"}", stream_cursor(generation, run.after), len(rows))


class StreamFollower(Protocol):
    """A follower's position, and the time of its last delivery.

    `number` is the number of the follower's next entry, or None while the follower reads the log.
    """

    offsets: Offsets
    number: int | None
    given_at: float


_Outcome = Delivery | Exception | None
_NOT_FILTERED = LookupError("the row filter was not applied to this entry")


class TailEntry:
    """A run of consecutive events in the stream, with one delivery per row filter. Each delivery is computed only once.

    The entry is not thread-safe once it is on the ring.
    """

    def __init__(self, generation: int, run: EventRun, row_filters: Sequence[RowFilter] = ()) -> None:
        """Create the entry with the deliveries for `row_filters`. Slow: called in a thread."""
        self._generation = generation
        self._event_run = run
        self._changes: dict[RowFilter, _Outcome] = {}
        self._tasks: dict[RowFilter, asyncio.Task[_Outcome]] = {}
        self.before, self.after = run.start, run.after
        self.size = run.size
        for row_filter in row_filters:
            self._keep(row_filter, self._make(row_filter))

    @property
    def empty(self) -> bool:
        """Whether the entry has no events. Ticks alone are not a change."""
        return not self._event_run.events

    def make(self, row_filters: Sequence[RowFilter]) -> list[_Outcome]:
        """Compute deliveries, one per row filter, until the turn is over. Computes at least one. Called in a thread."""
        deliveries, over = list[_Outcome](), time.monotonic() + TURN_S
        for row_filter in row_filters:
            deliveries.append(self._make(row_filter))
            if time.monotonic() >= over:
                break
        return deliveries

    def keep(self, row_filter: RowFilter, delivery: _Outcome) -> None:
        """Store a delivery, unless there already is one for the row filter."""
        if row_filter not in self._changes:
            self._keep(row_filter, delivery)

    def delivery_for(self, row_filter: RowFilter) -> _Outcome:
        """Return the delivery computed for a row filter, or an exception if the computation failed or has not been
        done."""
        return self._changes.get(row_filter, _NOT_FILTERED)

    async def change(self, row_filter: RowFilter, who: str) -> Delivery | None:
        """Return the delivery for a row filter. If it is not stored yet, it is computed in the caller's turn."""
        if row_filter not in self._changes:
            self.keep(row_filter, await asyncio.shield(self._tasks.get(row_filter) or self._begin(row_filter, who)))
        delivery = self._changes[row_filter]
        if isinstance(delivery, Exception):
            raise delivery
        return delivery

    def forget(self, row_filter: RowFilter) -> None:
        self.size -= _tail_delivery_size(self._changes.pop(row_filter, None))

    def _begin(self, row_filter: RowFilter, who: str) -> asyncio.Task[_Outcome]:
        task = self._tasks[row_filter] = asyncio.create_task(for_follower(who, self._make, row_filter))
        task.add_done_callback(lambda _: self._tasks.pop(row_filter))
        return task

    def _make(self, row_filter: RowFilter) -> _Outcome:
        """Compute the delivery for a row filter. Returns an error instead of raising it, because the error affects only
        the filter's readers."""
        try:
            return change_of(self._generation, self._event_run, row_filter)
        except Exception as error:
            return error

    def _keep(self, row_filter: RowFilter, delivery: _Outcome) -> None:
        self._changes[row_filter] = delivery
        self.size += _tail_delivery_size(delivery)


def _tail_delivery_size(delivery: _Outcome) -> int:
    return len(delivery.data) if isinstance(delivery, Delivery) else 0


@dataclass
class _Lane:
    """The progress of a caller's filters on the ring: the current entry, and the filters not yet applied to it."""

    number: int
    left: list[RowFilter]
    task: asyncio.Task[None] | None = None

    def is_to_make(self, number: int, row_filter: RowFilter) -> bool:
        return self.number < number or (self.number == number and row_filter in self.left)


class StreamTail:
    """A bounded ring of a stream's latest entries, numbered without gaps. It is filled only while there are followers.

    Not thread-safe; reads the log in a thread. `first` is the number of the oldest entry, and `next` the number that
    the next new entry will get. `position` is how far the log has been read; there are only ticks between the last
    entry and this position.
    """

    def __init__(self, log: LogReader, stream: str, *, entries_max: int, events_max: int, filters_max: int) -> None:
        self._log = log
        self._stream = stream
        self._entries_max = max(1, entries_max)
        self._events_max = events_max
        self.row_filters = FiltersInUse(stream, filters_max)
        self._pump_task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._waiting: dict[RowFilter, WaitingFollowers[StreamFollower]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._looked = asyncio.Event()
        self.first = self.next = 0
        self._forget()

    def _forget(self) -> None:
        self._looked.clear()
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
        self._lanes = {}
        self.now: ServedExtent | None = None
        self.error: Exception | None = None
        self.position: Offsets = {}
        self._clear_ring()

    def _clear_ring(self) -> None:
        """Empty the ring. Numbers are never reused, so every follower notices that its entry is gone."""
        self._ring: deque[TailEntry] = deque()
        self.first = self.next = self.next + 1

    @contextmanager
    def attached(self, row_filter: RowFilter, who: str = "") -> Iterator[None]:
        """Keep the tail running for the duration of the block, and prepare new entries for the row filter.

        The first user starts the tail, and the last user stops it. Raises `Busy` if too many other filters are in use,
        in total or by this caller.
        """
        try:
            with self.row_filters.one(row_filter, who):
                if self._pump_task is None or self._pump_task.done():
                    self._forget()
                    self._pump_task = asyncio.create_task(self._pump(), name=f"tail of {self._stream}")
                self._waiting.setdefault(row_filter, WaitingFollowers())
                yield
        finally:
            if row_filter not in self.row_filters:
                self._waiting.pop(row_filter, None)
                for entry in self._ring:
                    entry.forget(row_filter)
            if not self.row_filters.readers and self._pump_task is not None:
                self._pump_task.cancel()
                self._pump_task = None
                self._forget()

    def wake(self) -> None:
        """Notify the tail that its stream has grown. Called in the event loop; does nothing if there are no
        followers."""
        self._woken.set()

    async def ready(self) -> None:
        """Wait until the log has been read once, or reading it has failed."""
        while self.now is None and self.error is None:
            await self._looked.wait()

    async def news(self, follower: StreamFollower, row_filter: RowFilter, take: Take | None, timeout_s: float) -> bool:
        """Wait for new entries for a follower. Returns True if the follower must check for new entries itself, and
        False after `timeout_s`.

        Entries that the follower takes, and entries that its filter hides, advance its position.
        """
        return await self._waiting[row_filter].wait(follower, take, timeout_s)

    def entry(self, number: int) -> TailEntry | None:
        """Return the entry with this number, or None if it does not exist yet or was dropped."""
        if self.first <= number < self.next:
            return self._ring[number - self.first]
        return None

    def meet(self, offsets: Offsets) -> tuple[Offsets, int] | None:
        """Return the position of the nearest entry boundary at or after `offsets`, and the number of the entry that
        begins there.

        Returns None while the tail has not read that far.
        """
        for index, entry in enumerate(self._ring):
            if _covers_tail_position(entry.before, offsets):
                return entry.before, self.first + index
        return (self.position, self.next) if _covers_tail_position(self.position, offsets) else None

    async def _pump(self) -> None:
        while True:
            self._woken.clear()
            try:
                everything = [row_filter for row_filter in self.row_filters if not row_filter]
                now, entry = await asyncio.to_thread(self._advance, self.now, self.position, everything)
            except Exception as error:
                self.error = error
                self._tell()
                return
            self._take(now, entry)
            if self.position == now.ends:
                await self._rest()

    def _advance(
        self, before: ServedExtent | None, position: Offsets, row_filters: Sequence[RowFilter]
    ) -> tuple[ServedExtent, TailEntry | None]:
        """Read the extent of the log, and the next entry. Returns no entry if the position is not valid in this log."""
        now = extent(self._log, self._stream)
        if before is None or before.generation != now.generation or not _covers_tail_position(now.ends, position):
            return now, None
        limits = {"events_max": self._events_max, "bytes_max": RUN_BYTES_MAX}
        try:
            run = read_run(self._log, self._stream, position, now.ends, **limits)
        except BadCursor:
            return now, None
        if self._log.generation(self._stream) != now.generation:
            return now, None
        return now, TailEntry(now.generation, run, row_filters)

    def _take(self, now: ServedExtent, entry: TailEntry | None) -> None:
        fresh = self.now is None or now.ends != self.now.ends
        self.now = now
        if entry is None:
            self._clear_ring()
            self.position = dict(now.ends)
        else:
            self.position = entry.after
            if not entry.empty:
                self._push(entry)
                self._hand_out(entry)
                return
        if fresh or entry is None:
            self._tell()

    def _push(self, entry: TailEntry) -> None:
        self._ring.append(entry)
        self.next += 1
        self._shrink()

    def is_coming(self, number: int, row_filter: RowFilter, who: str) -> bool:
        """Return whether a caller's filter is about to be applied to an entry.

        If so, waiting followers will receive the result.
        """
        entry, lane = self.entry(number), self._lanes.get(who)
        if entry is None or lane is None or entry.delivery_for(row_filter) is not _NOT_FILTERED:
            return False
        return lane.is_to_make(number, row_filter)

    async def look(self, entry: TailEntry, row_filter: RowFilter, who: str) -> Delivery | None:
        """Return an entry's delivery for a row filter. Each additional row filter makes the entry larger."""
        size = entry.size
        try:
            return await entry.change(row_filter, who)
        finally:
            if entry.size > size:
                self._shrink()

    def _shrink(self) -> None:
        """Drop the oldest entries while there are too many, or their total size is too large. A few hundred entries
        fit."""
        size = sum(entry.size for entry in self._ring)
        while len(self._ring) > self._entries_max or (size > RING_BYTES_MAX and len(self._ring) > 1):
            size -= self._ring.popleft().size
            self.first += 1

    def _hand_out(self, entry: TailEntry) -> None:
        """Pass the latest entry to all unfiltered followers, and start filtering it for the others."""
        self._looked.set()
        number = self.next - 1
        for row_filter in tuple(self._waiting):
            self._give(entry, number, row_filter)
        for who in self.row_filters.callers():
            if who not in self._lanes:
                lane = self._lanes[who] = _Lane(number, self.row_filters.used_by(who))
                lane.task = asyncio.create_task(self._run(lane, who), name=f"filters on {self._stream}")

    def _give(self, entry: TailEntry, number: int, row_filter: RowFilter) -> None:
        """Pass an entry to all waiting followers with a row filter.

        Followers that are behind are woken to read on their own.
        """
        change, now = entry.delivery_for(row_filter), loop_time()
        for waiter in self._waiting.get(row_filter, ()):
            follower = waiter.follower
            if follower.number is not None and follower.number > number:
                continue
            if change is _NOT_FILTERED and row_filter and follower.number == number:
                continue
            if follower.number != number or isinstance(change, Exception) or (change and not waiter.takes((change,))):
                waiter.wake()
                continue
            follower.offsets, follower.number = entry.after, number + 1
            follower.given_at = now if change else follower.given_at

    async def _run(self, lane: _Lane, who: str) -> None:
        """Apply a caller's filters to entries until no entries are left."""
        try:
            while lane.number < self.next:
                entry = self.entry(lane.number)
                if entry is not None and await self._look_through(entry, lane, who):
                    lane.number += 1
                else:
                    lane.number = max(self.first, lane.number)
                    self._wake(self.row_filters.used_by(who))
        finally:
            if self._lanes.get(who) is lane:
                del self._lanes[who]

    async def _look_through(self, entry: TailEntry, lane: _Lane, who: str) -> bool:
        """Apply a caller's filters to one entry, turn by turn, and pass on the results.

        Returns False if the entry leaves the ring before that is done. Waiting followers then read the log.
        """
        lane.left = self.row_filters.used_by(who)

        def next_work() -> Callable[[], list[_Outcome]] | None:
            """Return the work not yet done by other callers with the same filters."""
            lane.left = [
                row_filter
                for row_filter in lane.left
                if row_filter in self.row_filters and entry.delivery_for(row_filter) is _NOT_FILTERED
            ]
            return partial(entry.make, tuple(lane.left)) if lane.left else None

        while lane.left:
            if self.entry(lane.number) is not entry:
                return False
            deliveries = await in_turn(who, next_work) or []
            for row_filter, change in zip(lane.left, deliveries, strict=False):
                if row_filter in self.row_filters:
                    entry.keep(row_filter, change)
                    self._give(entry, lane.number, row_filter)
            lane.left = lane.left[len(deliveries) :]
            self._shrink()
        return True

    def _wake(self, row_filters: Sequence[RowFilter]) -> None:
        for row_filter in row_filters:
            if row_filter in self._waiting:
                self._waiting[row_filter].wake()

    def _tell(self) -> None:
        self._looked.set()
        self._wake(tuple(self._waiting))

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._woken.wait()
        except TimeoutError:
            return


def _covers_tail_position(follower: Offsets, offsets: Offsets) -> bool:
    """Return whether a position is at or after another in every partition."""
    return follower.keys() == offsets.keys() and all(
        follower[partition] >= offset for partition, offset in offsets.items()
    )
