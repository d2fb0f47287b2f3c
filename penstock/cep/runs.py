"""The partial matches of a key while it is worked on: the list that is stored, with an index that is not.

The index makes an event cost as much as the partial matches that it changes, however many wait; a short list has none,
for a look at each is cheaper. It gives the same results with and without one, and whenever that is made: what depends
on an order goes by the order of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any

from penstock.cep.memory import Complete, Run

FEW = 16
"""So many have no index."""
SPARE = 64
"""Entries of runs that are gone that a queue may have, beside as many as there are runs."""

Name = tuple[int, int, tuple[int, ...], datetime | None]
"""Tells the runs of a key apart."""
Group = tuple[int, int]
"""State that decides about a run, besides its events: what it waits for, and what has passed."""


class Runs(list[Run]):
    """The partial matches of a key. Those with the same name, which differ in nothing but their alarms, are one. A run
    that is taken out leaves its place to the last one, so the order of the list has no meaning."""

    __slots__ = ("_uses", "lookup", "loose")

    def __init__(self, runs: Iterable[Run] = (), complete: Iterable[Complete] = ()) -> None:
        super().__init__(runs)
        self.lookup = _Index(self) if len(self) > FEW else None
        self.loose: set[int] = set()
        """Events that a run or a match no longer has; perhaps no one has them."""
        self._uses: dict[int, int] = {}
        for each in (*self, *complete):
            self.hold(each.path)

    def replace(self, gone: Collection[Run], new: Iterable[Run]) -> None:
        """Take some out, and others in."""
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

    def add(self, run: Run) -> None:
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

    def drop(self, run: Run) -> None:
        """Take a run out."""
        if self.lookup is not None:
            place = self.lookup.drop(run)
        else:
            place = next(place for place, each in enumerate(self) if each is run)
        self._close(place)
        self.let_go(run.path)

    def _close(self, place: int) -> None:
        """Leave no gap at a place in the list."""
        last = self.pop()
        if place < len(self):
            self[place] = last
            if self.lookup is not None:
                self.lookup.move(last, place)

    def hold(self, path: tuple[int, ...]) -> None:
        """The events of a path are needed."""
        uses = self._uses
        for event in events_of(path):
            uses[event] = uses.get(event, 0) + 1

    def let_go(self, path: tuple[int, ...]) -> None:
        """They are needed once less."""
        uses = self._uses
        for event in events_of(path):
            left = uses[event] - 1
            if left:
                uses[event] = left
            else:
                del uses[event]
                self.loose.add(event)

    def unused(self) -> list[int]:
        """Events that no one has any more, of those that were let go since the last call."""
        found = [event for event in self.loose if event not in self._uses]
        self.loose.clear()
        return found

    @property
    def due(self) -> datetime | None:
        """The first event time at which something is due, or over."""
        if self.lookup is None:
            return min((each for each in map(_moment, self) if each is not None), default=None)
        first = self.lookup.times.first()
        return None if first is None else _moment(first)

    @property
    def alarm(self) -> datetime | None:
        """The first log time at which that is taken to have come."""
        if self.lookup is None:
            return min((run.alarm for run in self if run.alarm is not None), default=None)
        first = self.lookup.alarms.first()
        return None if first is None else first.alarm

    def due_until(self, time: datetime) -> list[Run]:
        """The runs for which something is due by an event time, in the order of the list."""
        if self.lookup is None:
            return [run for run in self if (moment := _moment(run)) is not None and moment <= time]
        return sorted(self.lookup.times.until(time), key=self.lookup.place)

    def alarmed(self, now: datetime) -> list[Run]:
        """The runs for which that has come by a log time."""
        if self.lookup is None:
            return [run for run in self if run.alarm is not None and run.alarm <= now]
        return self.lookup.alarms.until(now)

    def oldest(self) -> Run | None:
        """The one that began first."""
        if self.lookup is None:
            return min(self, key=_start, default=None)
        return self.lookup.oldest(self)


class OrderedRuns(Runs):
    """The same, in an order that has a meaning: to take one out costs as much as there are behind it."""

    __slots__ = ()

    def _close(self, place: int) -> None:
        del self[place]
        if self.lookup is not None:
            for number in range(place, len(self)):
                self.lookup.move(self[number], number)


class _Index:
    """Where each of many runs stands in the list, by its name; and `groups` of those that wait for the same."""

    __slots__ = ("_live", "_starts", "alarms", "groups", "places", "times")

    def __init__(self, runs: Runs) -> None:
        self.places: dict[Name, int] = {}
        self.groups: dict[Group, dict[Name, Run]] = {}
        self._live: dict[int, Run] = {}
        self.times, self.alarms = _Queue(_moment, self._live), _Queue(_alarm, self._live)
        self._starts: _Queue | None = None
        for place, run in enumerate(runs):
            self.add(run, place)

    def add(self, run: Run, place: int) -> None:
        name = name_of(run)
        self.places[name] = place
        self.groups.setdefault(_group(run), {})[name] = run
        self._live[id(run)] = run
        for queue in (self.times, self.alarms, self._starts):
            if queue is not None:
                queue.add(run)

    def drop(self, run: Run) -> int:
        """Take a run out; returns where it stood."""
        name, group = name_of(run), _group(run)
        members = self.groups[group]
        del members[name], self._live[id(run)]
        if not members:
            del self.groups[group]
        return self.places.pop(name)

    def move(self, run: Run, place: int) -> None:
        self.places[name_of(run)] = place

    def place(self, run: Run) -> int:
        return self.places[name_of(run)]

    def oldest(self, runs: Runs) -> Run | None:
        if self._starts is None:
            self._starts = _Queue(_start, self._live)
            for run in runs:
                self._starts.add(run)
        return self._starts.first()


class _Queue:
    """Runs by some value of theirs, the least first: a heap, with entries of runs that are gone among them."""

    __slots__ = ("_heap", "_live", "_rank")

    def __init__(self, rank: Callable[[Run], Any], live: dict[int, Run]) -> None:
        self._rank, self._live = rank, live
        self._heap: list[tuple[Any, int, Run]] = []

    def add(self, run: Run) -> None:
        rank = self._rank(run)
        if rank is None:
            return
        heap = self._heap
        heappush(heap, (rank, id(run), run))
        if len(heap) > 2 * len(self._live) + SPARE:
            self._heap = [each for each in heap if each[1] in self._live]
            heapify(self._heap)

    def first(self) -> Run | None:
        """The run with the least value. An entry keeps its run, so no other one has got its id."""
        heap = self._heap
        while heap and heap[0][1] not in self._live:
            heappop(heap)
        return heap[0][2] if heap else None

    def until(self, rank: Any) -> list[Run]:
        """Those whose value is at most that, in no order. A walk down the heap, which stops at greater ones."""
        found, ahead, heap = [], [0], self._heap
        while ahead:
            place = ahead.pop()
            if place < len(heap) and heap[place][0] <= rank:
                if heap[place][1] in self._live:
                    found.append(heap[place][2])
                ahead += (2 * place + 1, 2 * place + 2)
        return found


def events_of(path: tuple[int, ...]) -> tuple[int, ...]:
    """The events that a path has; what an absence at its beginning is counted from is none of them."""
    return path[1::2] if path[0] >= 0 else path[3::2]


def name_of(run: Run) -> Name:
    return run.wait, run.past, run.path, run.due


def _group(run: Run) -> Group:
    return run.wait, run.past


def _moment(run: Run) -> datetime | None:
    if run.due is None or run.deadline is None:
        return run.deadline if run.due is None else run.due
    return min(run.due, run.deadline)


def _alarm(run: Run) -> datetime | None:
    return run.alarm


def _start(run: Run) -> tuple[Any, ...]:
    return run.path[1], run.path, run.wait, run.past, "" if run.due is None else run.due.isoformat()
