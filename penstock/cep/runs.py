"""A key's partial matches in memory: the stored list, and an index that is not stored.

With the index, the cost of an event depends on the number of partial matches that it changes, not on how many are
waiting. A short list has no index, because checking each entry is cheaper. The results do not depend on whether an
index exists: where order matters, the order of the list is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any

from penstock.cep.memory import Complete, PartialMatch

FEW = 16
"""Lists with up to this many partial matches have no index."""
SPARE = 64
"""A queue is rebuilt when it has more entries than twice the number of runs plus this number."""

Name = tuple[int, int, tuple[int, ...], datetime | None]
"""The identity of a run within a key."""
Group = tuple[int, int]
"""The state that decides, together with its events, how a run continues: its wait, and `PartialMatch.past`."""


class Runs(list[PartialMatch]):
    """The partial matches of a key. Runs with the same name differ only in their alarms, and are stored once. A removed
    run is replaced with the last run, so the order of the list has no meaning."""

    __slots__ = ("_uses", "lookup", "loose")

    def __init__(self, runs: Iterable[PartialMatch] = (), complete: Iterable[Complete] = ()) -> None:
        super().__init__(runs)
        self.lookup = _Index(self) if len(self) > FEW else None
        self.loose: set[int] = set()
        """The events that a run or match has released and that might no longer be in use."""
        self._uses: dict[int, int] = {}
        for match in (*self, *complete):
            self.hold(match.path)

    def replace(self, gone: Collection[PartialMatch], new: Iterable[PartialMatch]) -> None:
        """Remove the partial matches in `gone`, and add the runs in `new`."""
        if len(gone) == len(self):
            self.clear()
        else:
            for run in gone:
                self.drop(run)
        for run in new:
            self.add(run)

    def clear(self) -> None:
        for run in self:
            self.let_go(run.path)
        super().clear()
        self.lookup = None

    def add(self, run: PartialMatch) -> None:
        if self.lookup is not None:
            if name_of(run) in self.lookup.places:
                return
            self.append(run)
            self.lookup.add(run, len(self) - 1)
        else:
            if self and name_of(run) in map(name_of, self):
                return
            self.append(run)
            if len(self) > FEW:
                self.lookup = _Index(self)
        self.hold(run.path)

    def drop(self, run: PartialMatch) -> None:
        """Remove a partial match."""
        if self.lookup is not None:
            index = self.lookup.drop(run)
        else:
            index = next(index for index, other in enumerate(self) if other is run)
        self._close(index)
        self.let_go(run.path)

    def _close(self, index: int) -> None:
        """Move the last partial match to a list index that has become free."""
        last = self.pop()
        if index < len(self):
            self[index] = last
            if self.lookup is not None:
                self.lookup.move(last, index)

    def hold(self, path: tuple[int, ...]) -> None:
        """Count one more use of each event in a partial match's path."""
        uses = self._uses
        for event in events_of(path):
            uses[event] = uses.get(event, 0) + 1

    def let_go(self, path: tuple[int, ...]) -> None:
        """Count one less use of each event in a partial match's path."""
        uses = self._uses
        for event in events_of(path):
            left = uses[event] - 1
            if left:
                uses[event] = left
            else:
                del uses[event]
                self.loose.add(event)

    def unused(self) -> list[int]:
        """Return the events that partial matches have released since the last call and that are no longer in use."""
        events = [event for event in self.loose if event not in self._uses]
        self.loose.clear()
        return events

    @property
    def due(self) -> datetime | None:
        """The earliest event time when a partial match is due or times out."""
        if self.lookup is None:
            return min((moment for moment in map(_partial_match_due, self) if moment is not None), default=None)
        first = self.lookup.times.first()
        return None if first is None else _partial_match_due(first)

    @property
    def alarm(self) -> datetime | None:
        """The earliest log time when a partial match's deadline is considered reached."""
        if self.lookup is None:
            return min((run.alarm for run in self if run.alarm is not None), default=None)
        first = self.lookup.alarms.first()
        return None if first is None else first.alarm

    def due_until(self, time: datetime) -> list[PartialMatch]:
        """Return the partial matches that are due by an event time, in list order."""
        if self.lookup is None:
            return [run for run in self if (moment := _partial_match_due(run)) is not None and moment <= time]
        return sorted(self.lookup.times.until(time), key=self.lookup.index)

    def alarmed(self, now: datetime) -> list[PartialMatch]:
        """Return the partial matches whose alarm has been reached at a log time."""
        if self.lookup is None:
            return [run for run in self if run.alarm is not None and run.alarm <= now]
        return self.lookup.alarms.until(now)

    def oldest(self) -> PartialMatch | None:
        """Return the partial match that began first."""
        if self.lookup is None:
            return min(self, key=_partial_match_order, default=None)
        return self.lookup.oldest(self)


class OrderedRuns(Runs):
    """The partial matches of a key, in a meaningful order. The cost of removing a run depends on the number of runs
    after it."""

    __slots__ = ()

    def _close(self, index: int) -> None:
        del self[index]
        if self.lookup is not None:
            for number in range(index, len(self)):
                self.lookup.move(self[number], number)


class _Index:
    """An index of many partial matches: their list indexes by name, and `groups` of runs with the same wait."""

    __slots__ = ("_live", "_starts", "alarms", "groups", "places", "times")

    def __init__(self, runs: Runs) -> None:
        self.places: dict[Name, int] = {}
        self.groups: dict[Group, dict[Name, PartialMatch]] = {}
        self._live: dict[int, PartialMatch] = {}
        self.times, self.alarms = _Queue(_partial_match_due, self._live), _Queue(_partial_match_alarm, self._live)
        self._starts: _Queue | None = None
        for index, run in enumerate(runs):
            self.add(run, index)

    def add(self, run: PartialMatch, index: int) -> None:
        name = name_of(run)
        self.places[name] = index
        self.groups.setdefault(_partial_match_group(run), {})[name] = run
        self._live[id(run)] = run
        for queue in (self.times, self.alarms, self._starts):
            if queue is not None:
                queue.add(run)

    def drop(self, run: PartialMatch) -> int:
        """Remove a partial match, and return its list index."""
        name, group = name_of(run), _partial_match_group(run)
        members = self.groups[group]
        del members[name], self._live[id(run)]
        if not members:
            del self.groups[group]
        return self.places.pop(name)

    def move(self, run: PartialMatch, index: int) -> None:
        self.places[name_of(run)] = index

    def index(self, run: PartialMatch) -> int:
        return self.places[name_of(run)]

    def oldest(self, runs: Runs) -> PartialMatch | None:
        if self._starts is None:
            self._starts = _Queue(_partial_match_order, self._live)
            for run in runs:
                self._starts.add(run)
        return self._starts.first()


class _Queue:
    """A heap of partial matches ordered by one of their values, lowest first. It can contain entries for removed
    runs."""

    __slots__ = ("_heap", "_live", "_rank")

    def __init__(self, rank: Callable[[PartialMatch], Any], live: dict[int, PartialMatch]) -> None:
        self._rank, self._live = rank, live
        self._heap: list[tuple[Any, int, PartialMatch]] = []

    def add(self, run: PartialMatch) -> None:
        rank = self._rank(run)
        if rank is None:
            return
        heap = self._heap
        heappush(heap, (rank, id(run), run))
        if len(heap) > 2 * len(self._live) + SPARE:
            self._heap = [entry for entry in heap if entry[1] in self._live]
            heapify(self._heap)

    def first(self) -> PartialMatch | None:
        """Return the partial match with the lowest value. An entry keeps its run alive, so no other run can have the
        same id."""
        heap = self._heap
        while heap and heap[0][1] not in self._live:
            heappop(heap)
        return heap[0][2] if heap else None

    def until(self, rank: Any) -> list[PartialMatch]:
        """Return the partial matches with a value up to `rank`, in no particular order. Walks down the heap, and skips
        subtrees with greater values."""
        runs, ahead, heap = [], [0], self._heap
        while ahead:
            index = ahead.pop()
            if index < len(heap) and heap[index][0] <= rank:
                if heap[index][1] in self._live:
                    runs.append(heap[index][2])
                ahead += (2 * index + 1, 2 * index + 2)
        return runs


def events_of(path: tuple[int, ...]) -> tuple[int, ...]:
    """Return the events in a partial match's path, without the event that starts the time of an absence at the
    beginning."""
    return path[1::2] if path[0] >= 0 else path[3::2]


def name_of(run: PartialMatch) -> Name:
    return run.wait, run.past, run.path, run.due


def _partial_match_group(run: PartialMatch) -> Group:
    return run.wait, run.past


def _partial_match_due(run: PartialMatch) -> datetime | None:
    if run.due is None or run.deadline is None:
        return run.deadline if run.due is None else run.due
    return min(run.due, run.deadline)


def _partial_match_alarm(run: PartialMatch) -> datetime | None:
    return run.alarm


def _partial_match_order(run: PartialMatch) -> tuple[Any, ...]:
    return run.path[1], run.path, run.wait, run.past, "" if run.due is None else run.due.isoformat()
