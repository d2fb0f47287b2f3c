"""The broadcasts of a view: each new change is filtered once per row filter, and passed to all waiting followers.

A change that a filter hides is not examined again, so a thousand readers that share ten filters cost ten passes. A
follower that is behind the broadcast reads on its own until it catches up.

If there is a lot to filter, readers without a filter are served first. Filtered results are computed afterwards, and
the callers that use the filters take turns, so a slow filter delays only its own caller.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from penstock.core.clock import loop_time
from penstock.core.contracts import Delivery, LiveView, ViewChange
from penstock.core.cursor import view_cursor
from penstock.serve.channels.filter_cache import INLINE_ROWS, FilterInput, Unknown, filter_changes, looks
from penstock.serve.channels.row_filter import FiltersInUse, RowFilter
from penstock.serve.channels.threads import TURN_S, in_turn
from penstock.serve.channels.waiting import WaitingFollowers

CHECK_S = 1.0
"""Maximum time to wait for a new version before checking again whether the view was recreated."""
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size in bytes of the changes filtered together. Filtering them takes about 20 ms per filter in a worker
thread."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size in bytes of the latest deliveries kept for a filter.

If many filters are in use, each gets a smaller share. A reader that needs older deliveries reads on its own.
"""
FILTERS_KEPT = 4
"""If at most this many filters are in use, each of them can use all of `KEPT_BYTES_MAX`."""


class ViewFollower(Protocol):
    """A follower's position, and the time of its last delivery."""

    generation: int
    version: int
    given_at: float


class Broadcast:
    """A view's latest deliveries through one row filter, from version `start` to version `end` of one generation.

    Not thread-safe.
    """

    def __init__(self, row_filter: RowFilter, generation: int, version: int, kept_max: int) -> None:
        self.row_filter = row_filter
        self.error: Exception | None = None
        self._kept_max = kept_max
        self.waiting: WaitingFollowers[ViewFollower] = WaitingFollowers()
        self.skip(generation, version)

    def skip(self, generation: int, version: int) -> None:
        """Restart the broadcast at a version, and wake the waiting followers so that they read on their own."""
        self.generation, self.start, self.end = generation, version, version
        self._versions: list[int] = []
        self._deliveries: list[Delivery] = []
        self._bytes = 0
        self.waiting.wake()

    def fail(self, error: Exception) -> None:
        """Store the error of a failed row filter, to be raised for its readers."""
        self.error = error
        self.waiting.wake()

    def covers(self, follower: ViewFollower) -> bool:
        """Return whether all of the broadcast's deliveries after the follower's position are kept."""
        return follower.generation == self.generation and follower.version >= self.start

    def after(self, version: int, most: int) -> list[tuple[int, Delivery]]:
        """Return the broadcast's next deliveries after a version, each with its version."""
        first = bisect_right(self._versions, version)
        return list(zip(self._versions[first : first + most], self._deliveries[first : first + most], strict=True))

    def add(self, end: int, seen: Sequence[ViewChange], now: float, bytes_max: int = KEPT_BYTES_MAX) -> None:
        """Advance the broadcast to version `end` with the changes that the filter shows, and pass them to all waiting
        followers."""
        self.end = end
        if not seen:
            return
        deliveries = [Delivery("change", change.data, self._cursor(change.version)) for change in seen]
        self._versions += [change.version for change in seen]
        self._deliveries += deliveries
        self._bytes += sum(len(delivery.data) for delivery in deliveries)
        self._trim(bytes_max)
        for waiter in self.waiting:
            follower = waiter.follower
            if follower.version >= seen[0].version or not waiter.takes(deliveries):
                waiter.wake()
            else:
                follower.version, follower.given_at = end, now

    def _cursor(self, version: int) -> str:
        return view_cursor(self.generation, version, self.row_filter.sight)

    def _trim(self, bytes_max: int) -> None:
        gone, kept = 0, len(self._versions)
        while kept - gone > self._kept_max or (self._bytes > bytes_max and kept - gone > 1):
            self._bytes -= len(self._deliveries[gone].data)
            gone += 1
        if gone:
            self.start = self._versions[gone - 1]
            del self._versions[:gone], self._deliveries[:gone]


@dataclass
class _FilterRound:
    """A view's changes to filter, and the broadcasts that need them next. All of these broadcasts are at version
    `start`."""

    generation: int
    start: int
    changes: Sequence[ViewChange]
    broadcasts: Sequence[Broadcast]
    seen: list[list[ViewChange] | Exception] = field(default_factory=list)
    """The results so far, in the order of the broadcasts."""

    def through_all(self, key: tuple[str, ...], turn_s: float = float("inf")) -> _FilterRound:
        """Filter the changes for one broadcast after another until the turn is over, but at least for the first one.
        Can take a long time."""
        over = time.monotonic() + turn_s
        # without row filters nothing is filtered
        offered = FilterInput(self.changes if any(broadcast.row_filter for broadcast in self.broadcasts) else ())
        for broadcast in self.broadcasts:
            self.seen.append(
                _changes_to_broadcast(offered, broadcast.row_filter, key)
                if broadcast.row_filter
                else list(self.changes)
            )
            if time.monotonic() >= over:
                break
        return self


class Broadcasts:
    """The broadcasts of one view, one per row filter in use, advanced while the view has followers.

    Belongs to the view's event loop.
    """

    def __init__(
        self, name: str, view: LiveView, key: tuple[str, ...], row_filters: FiltersInUse, *, kept_max: int
    ) -> None:
        self._name, self._view, self._key = name, view, key
        self._kept_max = kept_max
        self._row_filters = row_filters
        self._broadcasts: dict[RowFilter, Broadcast] = {}
        self._pump_task: asyncio.Task[None] | None = None
        self._lanes: dict[str, asyncio.Task[None]] = {}
        """For each caller, the task that brings its filters up to date."""
        self._generation = self._end = 0

    @contextmanager
    def attached(self, row_filter: RowFilter, who: str = "") -> Iterator[Broadcast]:
        """Keep a row filter's broadcast running for the duration of the block.

        The first user starts the pump, and the last user stops it. Raises `Busy` if too many other filters are in use,
        in total or by this caller.
        """
        try:
            with self._row_filters.one(row_filter, who):
                if self._pump_task is None or self._pump_task.done():
                    self._stop()
                    self._generation, self._end = self._view.generation, self._view.version
                    self._pump_task = asyncio.create_task(self._pump(), name=f"broadcasts of {self._name}")
                if row_filter not in self._broadcasts:
                    self._broadcasts[row_filter] = Broadcast(row_filter, self._generation, self._end, self._kept_max)
                yield self._broadcasts[row_filter]
        finally:
            if row_filter not in self._row_filters:
                self._broadcasts.pop(row_filter, None)
            if not self._row_filters.readers:
                self._stop()

    def _stop(self) -> None:
        for task in (self._pump_task, *self._lanes.values()):
            if task is not None:
                task.cancel()
        self._pump_task, self._lanes, self._broadcasts = None, {}, {}

    async def _pump(self) -> None:
        try:
            while True:
                if self._view.generation == self._generation:
                    await self._view.wait(self._end, CHECK_S)
                self._advance()
                await asyncio.sleep(0)  # yield to readers that read on their own
        except Exception as error:
            _fail_broadcasts(self._broadcasts.values(), error)

    def _advance(self) -> None:
        """Pass the view's next changes to unfiltered readers, or to all readers if there is little to filter."""
        if self._view.generation != self._generation:
            self._skip()
            return
        changes = self._changes(self._end, self._view.version)
        if changes is None:
            self._skip()
        elif changes:
            abreast = [
                broadcast
                for broadcast in self._broadcasts.values()
                if broadcast.end == self._end and not broadcast.error
            ]
            filters = sum(bool(broadcast.row_filter) for broadcast in abreast)
            if sum(map(looks, changes)) * filters > INLINE_ROWS:
                abreast = [broadcast for broadcast in abreast if not broadcast.row_filter]
            start, self._end = self._end, changes[-1].version
            self._hand_out(_FilterRound(self._generation, start, changes, abreast).through_all(self._key))
            self._start_lanes()

    def _changes(self, start: int, end: int) -> Sequence[ViewChange] | None:
        """Return the view's changes between two versions, within the limit on bytes, or None if they are unavailable or
        too many."""
        if start == end:
            return ()
        changes = self._view.changes(start, end - start) if start < end <= start + self._kept_max else None
        if not changes:
            return None
        size = len(changes[0].data)
        for count, change in enumerate(changes[1:], 1):
            size += len(change.data)
            if size > BATCH_BYTES_MAX:
                return changes[:count]
        return changes

    def _skip(self) -> None:
        self._generation, self._end = self._view.generation, self._view.version
        for broadcast in self._broadcasts.values():
            broadcast.skip(self._generation, self._end)

    def _start_lanes(self) -> None:
        """Start a lane for each caller whose broadcasts are behind. A running lane picks up new changes without a
        restart."""
        if not any(self._is_behind(broadcast) for broadcast in self._broadcasts.values()):
            return
        for who in self._row_filters.callers():
            if who not in self._lanes and self._behind(who):
                self._lanes[who] = asyncio.create_task(self._run(who), name=f"filters on {self._name}")

    async def _run(self, who: str) -> None:
        """Bring a caller's filters up to date, turn by turn."""
        try:
            while self._behind(who):
                look = await in_turn(who, lambda: self._next_look(who))
                if look is not None:
                    self._hand_out(look)
        except Exception as error:
            _fail_broadcasts(self._behind(who), error)
        finally:
            if self._lanes.get(who) is asyncio.current_task():
                del self._lanes[who]

    def _behind(self, who: str) -> list[Broadcast]:
        """Return the caller's broadcasts that are furthest behind. The list is empty if the view was recreated, because
        all broadcasts then start over."""
        if self._view.generation != self._generation:
            return []
        broadcasts = [
            self._broadcasts[row_filter]
            for row_filter in self._row_filters.used_by(who)
            if row_filter in self._broadcasts
        ]
        behind = [broadcast for broadcast in broadcasts if self._is_behind(broadcast)]
        last = min((broadcast.end for broadcast in behind), default=0)
        return [broadcast for broadcast in behind if broadcast.end == last]

    def _is_behind(self, broadcast: Broadcast) -> bool:
        return broadcast.error is None and broadcast.end < self._end

    def _next_look(self, who: str) -> Callable[[], _FilterRound] | None:
        """Return the filtering work for a caller's turn.

        Returns None if another caller with the same filters has already done it. Also returns None if the changes are
        unavailable; waiting followers are then woken to read on their own.
        """
        behind = self._behind(who)
        if not behind:
            return None
        start = behind[0].end
        changes = self._changes(start, self._end)
        if not changes:
            for broadcast in behind:
                broadcast.skip(self._generation, self._end)
            return None
        return partial(_FilterRound(self._generation, start, changes, behind).through_all, self._key, TURN_S)

    def _hand_out(self, look: _FilterRound) -> None:
        """Pass results to waiting followers, unless they already have them or the view was recreated."""
        if self._view.generation != look.generation:
            return
        now, end = loop_time(), look.changes[-1].version
        share = FILTERS_KEPT * KEPT_BYTES_MAX // max(FILTERS_KEPT, len(self._broadcasts))
        for broadcast, changes in zip(look.broadcasts, look.seen, strict=False):
            if (broadcast.generation, broadcast.end) != (look.generation, look.start):
                continue
            if isinstance(changes, Unknown):
                broadcast.skip(look.generation, end)
            elif isinstance(changes, Exception):
                broadcast.fail(changes)
            else:
                broadcast.add(end, changes, now, share)


def _fail_broadcasts(broadcasts: Iterable[Broadcast], error: Exception) -> None:
    for broadcast in broadcasts:
        broadcast.fail(error)


def _changes_to_broadcast(
    offered: FilterInput, row_filter: RowFilter, key: tuple[str, ...]
) -> list[ViewChange] | Exception:
    try:
        return filter_changes(offered, row_filter, key)
    except Exception as error:
        return error
