"""One event, or one moment, and what becomes of the partial matches of a key at it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from penstock.cep.match import Match
from penstock.cep.memory import TICK, Complete, Run
from penstock.cep.verdicts import Decided
from penstock.cep.waits import Place
from penstock.cep.workings import Kept, Workings


class Moment(Protocol):
    """What may be asked about the present: of a handler's context, for one."""

    @property
    def now(self) -> datetime:
        """Log time."""

    @property
    def key(self) -> str:
        """The key whose events they are."""


class Found(NamedTuple):
    """What came of an event or of time: matches, and partial matches that are over, or were given up for room."""

    matches: list[Match]
    timed_out: list[Match]
    lost: list[Match]


class Turn:
    """One event, or one moment, in the making."""

    def __init__(
        self, engine: Workings, memory: Any, event: Any, time: datetime, moment: Moment, runs: list[Run]
    ) -> None:
        self.engine, self.memory, self.event, self.time, self.moment = engine, memory, event, time, moment
        self.runs = runs
        self.complete: list[Complete] = []
        self.timed_out: list[Complete] = []
        self.lost: list[Run] = []
        self._over: list[Kept] = []  # complete ones that do not wait any more, and some that never did
        self._number: int | None = None
        self._kind = 0
        self._log: datetime | None = None

    def follow(self, run: Run, outcome: Decided) -> None:
        """What became of a partial match."""
        places, stays, ends = outcome
        for place in places:
            self.take(place, run)
        if ends:
            self.complete.append(Complete(run.path, run.began, self.time))
        if stays is not None:
            self.runs.append(stays)

    def take(self, place: Place, run: Run | None) -> None:
        """A step takes the event, in a partial match or as the first one of a new match."""
        engine = self.engine
        if run is not None and len(run.path) >= 2 * engine.search.bounds.events:
            self.lost.append(run)
            return
        if self._number is None:
            self._number, self._kind = self.memory.next, engine.kinds[place.step]
        added = (place.step, self._number)
        if run is None:
            self.spawn(place, None, added, self.time)
        else:
            self.spawn(place, run, run.path + added, run.began)

    def spawn(self, place: Place, run: Run | None, path: tuple[int, ...], began: datetime) -> None:
        """All that the partial match may wait for after a place; if that is nothing, it is a match."""
        within = self.engine.search.within
        deadline = run.deadline if run is not None else None if within is None else self.time + within + TICK
        for wait, time in self.engine.ahead[place]:
            if wait is None:
                self.complete.append(Complete(path, began, self.time))
                if self.ends_with(path):
                    return
            else:
                due = None if time is None else self.time + time
                self.runs.append(Run(wait, 0, began, deadline, due, self._alarm(run, due, deadline), path))

    def ends_with(self, path: tuple[int, ...]) -> bool:
        """Whether nothing else is to be tried once this is complete."""
        return False

    def distinct(self) -> list[Run]:
        """The partial matches that remain, each once."""
        return self.runs if len(self.runs) < 2 else list(dict.fromkeys(self.runs))

    def _alarm(self, run: Run | None, due: datetime | None, deadline: datetime | None) -> datetime | None:
        """The log time at which the next of these has come if no event says so: as far from now as it is from the time
        of this event."""
        earliest = _earliest(due, None if deadline is None else deadline - TICK)
        if earliest is None:
            return None
        if self.event is None and run is not None and run.alarm is not None:  # what was due has come
            return run.alarm + (earliest - self.time)
        if self._log is None:
            self._log = self.moment.now + self.engine.late_after
        return self._log + (earliest - self.time)

    def settle(self, found: Found | None) -> Found | None:
        """Keep what remains, and tell what is there to tell. Nothing is changed before, so a predicate that raises
        changes nothing."""
        memory, engine, before = self.memory, self.engine, self.memory.runs
        if self._number is not None:
            engine.held(memory)[self._kind][self._number] = self.event
            memory.next = self._number + 1
        changed = bool(self.complete or self.timed_out or self.lost or memory.complete)
        memory.runs = self.distinct()
        if found is None and (changed or len(memory.runs) > engine.search.bounds.partial):
            found = Found([], [], [])
        if found is not None:
            self._lose(found, self.lost)
            self.tell(found)
            self._bound(found)
        engine.keep(memory, *self._changes(before), self._number)
        return found

    def _changes(self, before: list[Run]) -> tuple[Sequence[Kept], Sequence[Kept]]:
        """What is gone, and what is new, of partial matches and of complete ones that wait. If none waits, all count as
        gone and new, which is the same, and quicker."""
        runs = self.memory.runs
        if not self.memory.complete:
            return [*self._over, *before], runs
        was, stays, over = (set(map(id, each)) for each in (before, runs, self._over))
        gone = [*self._over, *(run for run in before if id(run) not in stays)]
        new = [each for each in self.complete if id(each) not in over]
        return gone, [*new, *(run for run in runs if id(run) not in was)]

    def _lose(self, found: Found, lost: Sequence[Kept]) -> None:
        """Tell what was given up."""
        self.memory.lost += len(lost)
        found.lost.extend(self._match(Complete(each.path, each.began, self.time)) for each in lost)

    def _bound(self, found: Found) -> None:
        """No more partial matches, and complete ones that wait for them, than may be. Each turn gives up at least one;
        there are several only if what was given up did not release enough."""
        memory, bounds = self.memory, self.engine.search.bounds
        give_up = self._oldest if bounds.full == "drop_oldest" else self._newest
        while (surplus := len(memory.runs) + len(memory.complete) - bounds.partial) > 0:
            self._lose(found, give_up(surplus))
            self.release(found)

    def _oldest(self, surplus: int) -> Sequence[Kept]:
        """Take out the partial matches that began first: so many, but only those for which a complete one waits, if
        there is one."""
        memory = self.memory
        ordered = sorted(memory.runs, key=_began)
        if memory.complete:
            surplus = min(surplus, sum(self.must_wait(memory.complete[0], run.path[1]) for run in ordered))
        memory.runs = ordered[surplus:]
        return ordered[:surplus]

    def _newest(self, surplus: int) -> Sequence[Kept]:
        """Take out those that began last, complete or not."""
        memory = self.memory
        lost = sorted((*memory.complete, *memory.runs), key=_began)[-surplus:]
        gone = set(map(id, lost))
        memory.runs = [each for each in memory.runs if id(each) not in gone]
        memory.complete = [each for each in memory.complete if id(each) not in gone]
        self._over += lost
        return lost

    def tell(self, found: Found) -> None:
        """Tell what is complete, and partial matches whose time is over."""
        memory, search = self.memory, self.engine.search
        for each in dict.fromkeys(self.timed_out):
            found.timed_out.append(self._match(each, timed_out=True))
        fresh = list({each.path: each for each in self.complete}.values())
        if search.skip.kind != "none":
            for each in sorted(fresh, key=_last):
                insort(memory.complete, each, key=_began)
            self.release(found)
            return
        self._over += self.complete
        found.matches.extend(map(self._match, fresh if search.every else fresh[:1]))
        if fresh and not search.every:
            self._end()

    def _end(self) -> None:
        """The first match is the only one."""
        memory = self.memory
        self._over += memory.complete
        memory.ended, memory.runs, memory.complete = True, [], []

    def release(self, found: Found) -> None:
        """Tell matches in the order in which they began, each once no earlier one can come; give up what it skips."""
        memory, complete = self.memory, self.memory.complete
        begun = sorted({run.path[1] for run in memory.runs}) if complete else []
        place = run = before = 0
        while place < len(complete):
            match = complete[place]
            if match.path[1] >= before:
                run = bisect_left(begun, before, run)
                if run < len(begun) and self.must_wait(match, begun[run]):
                    break
                memory.told += 1
                found.matches.append(self._match(match))
                if not self.engine.search.every:
                    self._end()
                    return
                before = max(before, self._skipped(match))
            place += 1
        if place:
            end = max(place, bisect_left(complete, before, key=_began))
            self._over += complete[:end]
            memory.complete = complete[end:]
            memory.runs = [each for each in memory.runs if each.path[1] >= before]

    def must_wait(self, match: Complete, begun: int) -> bool:
        """Whether it waits for a partial match that began with that event."""
        return begun < match.path[1]

    def _skipped(self, match: Complete) -> int:
        """The number of the first event with which another match may begin."""
        skip, names = self.engine.search.skip, self.engine.names
        if skip.kind == "to_next":
            return match.path[1] + 1
        if skip.kind == "past_last":
            return match.path[-1] + 1
        taken = [match.path[at + 1] for at in range(0, len(match.path), 2) if names[match.path[at]] == skip.name]
        if not taken:
            return 0
        return taken[0] if skip.kind == "to_first" else taken[-1]

    def _match(self, each: Complete, timed_out: bool = False) -> Match:
        return self.engine.match(
            self.memory,
            each.path,
            key=self.moment.key,
            began=each.began,
            ended=each.ended,
            timed_out=timed_out,
            number=self.memory.told,
        )


class PreferringTurn(Turn):
    """Of all matches with the same first event one is told, the best. The partial matches stand in order of preference,
    so what is complete ends those after it; those before it may still become better ones, and it waits for them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._won: set[int] = set()

    def follow(self, run: Run, outcome: Decided) -> None:
        if run.path[1] not in self._won:
            super().follow(run, outcome)

    def spawn(self, place: Place, run: Run | None, path: tuple[int, ...], began: datetime) -> None:
        if path[1] not in self._won:
            super().spawn(place, run, path, began)

    def ends_with(self, path: tuple[int, ...]) -> bool:
        self._won.add(path[1])
        return True

    def distinct(self) -> list[Run]:
        if not self.engine.search.merges:
            return super().distinct()
        best: dict[tuple[int, int], Run] = {}
        for run in self.runs:
            best.setdefault((run.wait, run.path[1]), run)
        return list(best.values())

    def tell(self, found: Found) -> None:
        """What is complete now is better than what was, for all that was worse was given up then."""
        complete = self.memory.complete
        for each in self.complete:
            place = bisect_left(complete, each.path[1], key=_began)
            worse = slice(place, bisect_right(complete, each.path[1], place, key=_began))
            self._over += complete[worse]
            complete[worse] = [each]
        self.release(found)

    def must_wait(self, match: Complete, begun: int) -> bool:
        return begun <= match.path[1]


def _began(each: Kept) -> int:
    return each.path[1]


def _last(each: Kept) -> int:
    return each.path[-1]


def _earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
