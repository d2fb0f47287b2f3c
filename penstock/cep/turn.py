"""One event, or one moment, and what becomes of the partial matches of a key at it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
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

    def __init__(self, engine: Workings, memory: Any, event: Any, time: datetime, moment: Moment) -> None:
        self.engine, self.memory, self.event, self.time, self.moment = engine, memory, event, time, moment
        self.runs = engine.runs(memory)
        self.gone: list[Run] = []
        self.new: list[Run] = []
        self.complete: list[Complete] = []
        self.timed_out: list[Complete] = []
        self.lost: list[Run] = []
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
        if stays is not run:
            self.gone.append(run)
            if stays is not None:
                self.new.append(stays)

    def take(self, place: Place, run: Run | None) -> None:
        """A step takes the event, in a partial match or as the first one of a new match."""
        engine = self.engine
        if run is not None and len(run.path) >= 2 * engine.search.bounds.events:
            self.lost.append(run)
            return
        added = (place.step, self._numbered())
        if run is None:
            self.spawn(place, None, added, self.time)
        else:
            self.spawn(place, run, run.path + added, run.began)

    def watch(self, wait: int, time: timedelta, places: Sequence[Place] = ()) -> None:
        """An absence at the beginning of the pattern is counted from this event, which is no part of the match; unless
        it is the first event of an `all_of`, that some of its places take."""
        within, due = self.engine.search.within, self.time + time
        deadline = None if within is None else self.time + within + TICK
        path = (-1, self._numbered())
        run = Run(wait, 0, self.time, deadline, due, self._alarm(None, due, deadline), path)
        for place in places:
            self.take(place, run)
        if not places:
            self.new.append(run)

    def _numbered(self) -> int:
        """The number of this event."""
        if self._number is None:
            self._number, self._kind = self.memory.next, self.engine.kind_of[self.event.__declared__]
        return self._number

    def _deadline(self, run: Run | None, began: datetime) -> datetime | None:
        """The first moment at which the time of a partial match is over: of all of it, or since this event."""
        within, gap = self.engine.search.within, self.engine.search.gap
        if run is not None and (gap is None or self.event is None):
            return run.deadline
        ends = _earliest(None if within is None else began + within, None if gap is None else self.time + gap)
        return None if ends is None else ends + TICK

    def spawn(self, place: Place, run: Run | None, path: tuple[int, ...], began: datetime) -> None:
        """All that the partial match may wait for after a place; if that is nothing, it is a match."""
        deadline = self._deadline(run, began)
        for wait, time, goes_on, back in self.engine.ahead[place]:
            if wait is None:
                self.complete.append(Complete(path, began, self.time))
                if self.ends_with(path):
                    return
            else:
                due = None if time is None else self.time + time
                if due is not None and goes_on and run is not None:
                    due = run.due
                kept = path[: -2 * back] if back else path
                self.new.append(Run(wait, 0, began, deadline, due, self._alarm(run, due, deadline), kept))

    def ends_with(self, path: tuple[int, ...]) -> bool:
        """Whether nothing else is to be tried once this is complete."""
        return False

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
        memory, engine, runs = self.memory, self.engine, self.runs
        if self._number is not None:
            engine.held(memory)[self._kind][self._number] = self.event
            memory.next = self._number + 1
            runs.loose.add(self._number)
        runs.replace(self.gone, self.kept())
        changed = bool(self.complete or self.timed_out or self.lost or memory.complete)
        if found is None and (changed or len(runs) > engine.search.bounds.partial):
            found = Found([], [], [])
        if found is not None:
            self._lose(found, self.lost)
            self.tell(found)
            self._bound(found)
        engine.keep(memory)
        return found

    def kept(self) -> Iterable[Run]:
        """The partial matches that are new."""
        return self.new

    def _lose(self, found: Found, lost: Sequence[Kept]) -> None:
        """Tell what was given up."""
        self.memory.lost += len(lost)
        found.lost.extend(self._match(Complete(each.path, each.began, self.time)) for each in lost)

    def _bound(self, found: Found) -> None:
        """No more partial matches, and complete ones that wait for them, than may be. Each turn gives up at least one;
        there are several only if what was given up did not release enough."""
        bounds = self.engine.search.bounds
        give_up = self._oldest if bounds.full == "drop_oldest" else self._newest
        while (surplus := len(self.runs) + len(self.memory.complete) - bounds.partial) > 0:
            self._lose(found, give_up(surplus))
            self.release(found)

    def _oldest(self, surplus: int) -> Sequence[Kept]:
        """Take out the partial matches that began first: so many, but only those for which a complete one waits, if
        there is one."""
        complete, lost = self.memory.complete, list[Run]()
        while len(lost) < surplus and (run := self.runs.oldest()) is not None:
            if complete and not self.must_wait(complete[0], run.path[1]):
                break
            self.runs.drop(run)
            lost.append(run)
        return lost

    def _newest(self, surplus: int) -> Sequence[Kept]:
        """Take out those that began last, complete or not."""
        memory = self.memory
        lost = sorted((*memory.complete, *self.runs), key=_order)[-surplus:]
        gone = set(map(id, lost))
        self.runs.replace([each for each in self.runs if id(each) in gone], ())
        self._let_go([each for each in memory.complete if id(each) in gone])
        memory.complete = [each for each in memory.complete if id(each) not in gone]
        return lost

    def tell(self, found: Found) -> None:
        """Tell what is complete, and partial matches whose time is over."""
        memory, search = self.memory, self.engine.search
        for each in sorted(dict.fromkeys(self.timed_out), key=_order):
            found.timed_out.append(self._match(each, timed_out=True))
        fresh = sorted({each.path: each for each in self.complete}.values(), key=_order)
        if search.skip.kind != "none":
            for each in fresh:
                insort(memory.complete, each, key=_began)
                self.runs.hold(each.path)
            self.release(found)
            return
        found.matches.extend(map(self._match, fresh if search.every else fresh[:1]))
        if fresh and not search.every:
            self._end()

    def _let_go(self, complete: Iterable[Complete]) -> None:
        """The events of matches that wait no longer are not needed for them."""
        for each in complete:
            self.runs.let_go(each.path)

    def _end(self) -> None:
        """The first match is the only one."""
        memory = self.memory
        self._let_go(memory.complete)
        self.runs.clear()
        memory.ended, memory.complete = True, []

    def release(self, found: Found) -> None:
        """Tell matches in the order in which they began, each once no earlier one can come; give up what it skips."""
        memory, complete = self.memory, self.memory.complete
        place = before = 0
        while place < len(complete):
            match = complete[place]
            if match.path[1] >= before:
                first = self.runs.oldest()
                if first is not None and self.must_wait(match, first.path[1]):
                    break
                memory.told += 1
                found.matches.append(self._match(match))
                if not self.engine.search.every:
                    self._end()
                    return
                before = self._skipped(match)
                self._skip_to(before)
            place += 1
        self._let_go(complete[:place])
        del complete[:place]

    def _skip_to(self, before: int) -> None:
        """Give up the partial matches that began before an event."""
        while (run := self.runs.oldest()) is not None and run.path[1] < before:
            self.runs.drop(run)

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
        pairs = zip(match.path[::2], match.path[1::2], strict=True)
        taken = [event for step, event in pairs if step >= 0 and names[step] == skip.name]
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

    def spawn(self, place: Place, run: Run | None, path: tuple[int, ...], began: datetime) -> None:
        if path[1] not in self._won:
            super().spawn(place, run, path, began)

    def ends_with(self, path: tuple[int, ...]) -> bool:
        self._won.add(path[1])
        return True

    def kept(self) -> Iterable[Run]:
        """If they can be merged: of those that wait for the same, the best of each first event. They are all there are,
        for each event is the very next one."""
        if not self.engine.search.merges:
            return self.new
        best: dict[tuple[int, int], Run] = {}
        for run in self.new:
            best.setdefault((run.wait, run.path[1]), run)
        return best.values()

    def tell(self, found: Found) -> None:
        """What is complete now is better than what was, for all that was worse was given up then."""
        complete = self.memory.complete
        for each in self.complete:
            place = bisect_left(complete, each.path[1], key=_began)
            worse = slice(place, bisect_right(complete, each.path[1], place, key=_began))
            self._let_go(complete[worse])
            complete[worse] = [each]
            self.runs.hold(each.path)
        self.release(found)

    def must_wait(self, match: Complete, begun: int) -> bool:
        return begun <= match.path[1]


def _began(each: Kept) -> int:
    return each.path[1]


def _order(each: Kept) -> tuple[Any, ...]:
    """The order of matches that are complete at the same time: of the first events, then of the last ones, then of all
    of them, one by one. So of two with the same first and last event the one comes first that took more between."""
    path = each.path
    return path[1], path[-1], path[1::2], path[::2]


def _earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
