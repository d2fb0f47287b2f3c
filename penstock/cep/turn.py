"""One event, or one moment, and what becomes of the partial matches of a key at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from penstock.cep.match import Match
from penstock.cep.memory import TICK, Complete, Run
from penstock.cep.plan import Plan
from penstock.cep.search import Search
from penstock.cep.verdicts import Decided
from penstock.cep.waits import Place
from penstock.schema import Event


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


class Workings:
    """What of a compiled pattern is needed to take events, to tell matches and to keep the rest."""

    def __init__(self, search: Search, made: Plan, classes: Sequence[type[Event]], late_after: timedelta) -> None:
        self.search, self.late_after, self.fingerprint = search, late_after, made.fingerprint
        numbers = {wait: number for number, wait in enumerate(made.waits)}
        self.ahead = {
            place: [(None if wait.how == "end" else numbers[wait], wait.time) for wait in place.after.waits]
            for place in made.places
        }
        self.names = [step.name for step in made.steps]
        kinds = {each: number for number, each in enumerate(classes)}
        self.kinds = [kinds[step.event] for step in made.steps]
        names = [f"held_{number}" for number in range(len(classes))]
        self.held: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else _single(names[0])

    def keep(self, memory: Any) -> None:
        """Keep what belongs to the partial matches, and no more."""
        runs = memory.runs
        memory.due = _first(runs)
        memory.alarm = min((run.alarm for run in runs if run.alarm is not None), default=None)
        used = {number for each in (*runs, *memory.complete) for number in each.path[1::2]}
        for events in self.held(memory):
            for number in [number for number in events if number >= 0 and number not in used]:
                del events[number]
        if used:
            memory.pattern = self.fingerprint
        else:
            memory.pattern, memory.next = "", 0

    def match(self, memory: Any, path: Sequence[int], **told: Any) -> Match:
        """What the numbers stand for."""
        return Match(self.taken(memory, path), **told)

    def taken(self, memory: Any, path: Sequence[int]) -> list[tuple[str, Any]]:
        held, names, kinds = self.held(memory), self.names, self.kinds
        return [(names[step], held[kinds[step]][event]) for step, event in zip(path[::2], path[1::2], strict=True)]


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
        self._number: int | None = None
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
            self._number = self.memory.next
            self.memory.next += 1
        engine.held(self.memory)[engine.kinds[place.step]][self._number] = self.event
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
        """Keep what remains, and tell what is there to tell."""
        memory, engine = self.memory, self.engine
        changed = bool(self.complete or self.timed_out or self.lost or memory.complete)
        memory.runs = self.distinct()
        found = (
            Found([], [], [])
            if found is None and (changed or len(memory.runs) > engine.search.bounds.partial)
            else found
        )
        if found is not None:
            self._bound(found)
            self.tell(found)
        engine.keep(memory)
        return found

    def _bound(self, found: Found) -> None:
        """No more partial matches than may be."""
        memory, bounds = self.memory, self.engine.search.bounds
        lost, surplus = self.lost, len(memory.runs) - bounds.partial
        if surplus > 0:
            memory.runs.sort(key=_began)
            cut = slice(None, surplus) if bounds.full == "drop_oldest" else slice(bounds.partial, None)
            lost = lost + memory.runs[cut]
            del memory.runs[cut]
        memory.lost += len(lost)
        found.lost.extend(self._match(Complete(run.path, run.began, self.time)) for run in lost)

    def tell(self, found: Found) -> None:
        """Tell what is complete, and partial matches whose time is over."""
        memory, engine = self.memory, self.engine
        for each in dict.fromkeys(self.timed_out):
            found.timed_out.append(self._match(each, timed_out=True))
        fresh = list({each.path: each for each in self.complete}.values())
        if engine.search.skip.kind == "none":
            ready = fresh if engine.search.every else fresh[:1]
            found.matches.extend(map(self._match, ready))
        else:
            memory.complete = sorted([*memory.complete, *fresh], key=_began)
            ready = self.skipping(found)
        if ready and not engine.search.every:
            memory.ended, memory.runs, memory.complete = True, [], []

    def skipping(self, found: Found) -> list[Complete]:
        """Tell matches in the order in which they began, each once no earlier one can come; give up what it skips."""
        memory, told = self.memory, list[Complete]()
        while memory.complete and (self.engine.search.every or not told):
            first = memory.complete[0]
            if self.must_wait(first):
                break
            memory.told += 1
            found.matches.append(self._match(first))
            told.append(first)
            before = self._skipped(first)
            memory.complete = [each for each in memory.complete[1:] if each.path[1] >= before]
            memory.runs = [run for run in memory.runs if run.path[1] >= before]
        return told

    def must_wait(self, match: Complete) -> bool:
        """Whether a partial match began before it."""
        return any(run.path[1] < match.path[1] for run in self.memory.runs)

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
        memory = self.memory
        best = {each.path[1]: each for each in (*memory.complete, *self.complete)}
        memory.complete = sorted(best.values(), key=_began)
        self.skipping(found)

    def must_wait(self, match: Complete) -> bool:
        return any(run.path[1] <= match.path[1] for run in self.memory.runs)


def _began(each: Run | Complete) -> int:
    return each.path[1]


def _earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _single(name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    return lambda memory: (get(memory),)


def _first(runs: list[Run]) -> datetime | None:
    return min((each for run in runs for each in (run.due, run.deadline) if each is not None), default=None)
