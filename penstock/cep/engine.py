"""A pattern at work: one event after the other, in order of time, with what is kept of a key.

What is done for each event is proportional to the partial matches that there are; if there are none and the event
begins none, nothing is made and nothing kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from penstock.cep.match import Match, Sofar
from penstock.cep.memory import Complete, Run
from penstock.cep.plan import Place, plan
from penstock.cep.search import Search
from penstock.cep.verdicts import Begin, Decided, Verdict, begins, verdict
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


class Engine:
    """Runs one pattern, for any number of keys. It keeps nothing itself."""

    def __init__(self, search: Search, classes: Sequence[type[Event]], late_after: timedelta = timedelta(0)) -> None:
        made = plan(search.pattern)
        self.search, self.late_after, self.fingerprint = search, late_after, made.fingerprint
        numbers = {wait: number for number, wait in enumerate(made.waits)}
        self._waits: list[Verdict] = [verdict(wait, len(classes) > 1) for wait in made.waits]
        self._ends = [wait.how == "end_within" for wait in made.waits]
        self._absences = [wait.places[0] if wait.how == "absent" else None for wait in made.waits]
        self._matched = self._already_matched(made.places, numbers)
        self._begin: Begin = begins(made.start, len(classes) > 1)
        self._sofar = Sofar(self._taken)
        self._after = {
            place: [(numbers[wait], wait.time) for wait in place.after.waits if wait.how != "end"]
            for place in made.places
        }
        self._names = [step.name for step in made.steps]
        kinds = {each: number for number, each in enumerate(classes)}
        self._kinds = [kinds[step.event] for step in made.steps]
        names = [f"held_{number}" for number in range(len(classes))]
        self._held: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else _single(names[0])

    def _already_matched(self, places: Sequence[Place], numbers: dict[Any, int]) -> set[int]:
        """The waits that only make a match longer: when their time is over, nothing was missed."""
        return {numbers[wait] for place in places if place.after.is_final for wait in place.after.waits}

    def feed(self, memory: Any, event: Any, time: datetime, moment: Moment) -> Found | None:
        """What comes of an event, at its time, which is not before that of the last one; None if nothing does."""
        found = self.advance(memory, time, moment) if memory.due is not None and time >= memory.due else None
        if memory.ended:
            return found
        begun = self._begin(event)
        runs, waits, sofar, turn = memory.runs, self._waits, self._sofar, None
        for number, run in enumerate(runs):
            sofar._path = (memory, run.path)
            outcome = waits[run.wait](run, event, sofar)
            if outcome is not None:
                if turn is None:
                    turn = _Turn(self, memory, event, time, moment, runs[:number])
                turn.follow(run, outcome)
            elif turn is not None:
                turn.runs.append(run)
        if begun:
            turn = turn or _Turn(self, memory, event, time, moment, runs[:])
            for place in begun:
                turn.take(place, None)
        return found if turn is None else turn.settle(found)

    def advance(self, memory: Any, time: datetime, moment: Moment) -> Found:
        """Event time has reached `time`: absences are complete until then, and times are over. In order."""
        found = Found([], [], [])
        while memory.due is not None and memory.due <= time and not memory.ended:
            turn = _Turn(self, memory, None, memory.due, moment, [])
            for run in memory.runs:
                self._reach(turn, run, memory.due)
            turn.settle(found)
        return found

    def _reach(self, turn: _Turn, run: Run, time: datetime) -> None:
        """A partial match when time has come so far."""
        place = self._absences[run.wait]
        if run.due is not None and run.due <= time and place is not None:
            turn.spawn(place, run, run.path, run.began)
        elif run.deadline is not None and run.deadline <= time:
            if self._ends[run.wait]:
                turn.complete.append(Complete(run.path, run.began, run.deadline))
            elif run.wait not in self._matched:
                turn.timed_out.append(Complete(run.path, run.began, run.deadline))
        else:
            turn.runs.append(run)

    def finish(self, memory: Any, moment: Moment) -> Found:
        """There are no more events: no match waits for another one any longer."""
        found = Found([], [], [])
        _Turn(self, memory, None, moment.now, moment, []).settle(found)
        return found

    def forget(self, memory: Any) -> None:
        """Give up all partial matches."""
        memory.runs, memory.complete = [], []
        self.keep(memory)

    def keep(self, memory: Any) -> None:
        """Keep what belongs to the partial matches, and no more."""
        runs = memory.runs
        memory.due = _first(runs)
        memory.alarm = min((run.alarm for run in runs if run.alarm is not None), default=None)
        used = {number for each in (*runs, *memory.complete) for number in each.path[1::2]}
        for events in self._held(memory):
            for number in [number for number in events if number >= 0 and number not in used]:
                del events[number]
        if used:
            memory.pattern = self.fingerprint
        else:
            memory.pattern, memory.next = "", 0

    def match(self, memory: Any, path: Sequence[int], **told: Any) -> Match:
        """What the numbers stand for."""
        return Match(self._taken(memory, path), **told)

    def _taken(self, memory: Any, path: Sequence[int]) -> list[tuple[str, Any]]:
        held, names, kinds = self._held(memory), self._names, self._kinds
        return [(names[step], held[kinds[step]][event]) for step, event in zip(path[::2], path[1::2], strict=True)]


class _Turn:
    """One event, or one moment, in the making."""

    def __init__(
        self, engine: Engine, memory: Any, event: Any, time: datetime, moment: Moment, runs: list[Run]
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
        engine._held(self.memory)[engine._kinds[place.step]][self._number] = self.event
        added = (place.step, self._number)
        if run is None:
            self.spawn(place, None, added, self.time)
        else:
            self.spawn(place, run, run.path + added, run.began)

    def spawn(self, place: Place, run: Run | None, path: tuple[int, ...], began: datetime) -> None:
        """All that the partial match may wait for after a place; if that is nothing, it is a match."""
        within = self.engine.search.within
        deadline = run.deadline if run is not None else None if within is None else self.time + within
        if place.after.is_final:
            self.complete.append(Complete(path, began, self.time))
        for wait, time in self.engine._after[place]:
            due = None if time is None else self.time + time
            alarm = self._alarm(run, due, deadline)
            self.runs.append(Run(wait, 0, began, deadline, due, alarm, path))

    def _alarm(self, run: Run | None, due: datetime | None, deadline: datetime | None) -> datetime | None:
        """The log time at which the next of these has come if no event says so: as far from now as it is from the time
        of this event."""
        earliest = _earliest(due, deadline)
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
        memory.runs = self.runs if len(self.runs) < 2 else list(dict.fromkeys(self.runs))
        found = (
            Found([], [], [])
            if found is None and (changed or len(memory.runs) > engine.search.bounds.partial)
            else found
        )
        if found is not None:
            self._bound(found)
            self._tell(found)
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

    def _tell(self, found: Found) -> None:
        memory, engine = self.memory, self.engine
        for each in dict.fromkeys(self.timed_out):
            found.timed_out.append(self._match(each, timed_out=True))
        fresh = list({each.path: each for each in self.complete}.values())
        if engine.search.skip.kind == "none":
            ready = fresh if engine.search.every else fresh[:1]
            found.matches.extend(map(self._match, ready))
        else:
            memory.complete = sorted([*memory.complete, *fresh], key=_began)
            ready = self._skipping(found)
        if ready and not engine.search.every:
            memory.ended, memory.runs, memory.complete = True, [], []

    def _skipping(self, found: Found) -> list[Complete]:
        """Tell matches in the order in which they began, each once no earlier one can come; give up what it skips."""
        memory, told = self.memory, list[Complete]()
        while memory.complete and (self.engine.search.every or not told):
            first = memory.complete[0]
            if any(run.path[1] < first.path[1] for run in memory.runs):
                break
            found.matches.append(self._match(first))
            told.append(first)
            before = self._skipped(first)
            memory.complete = [each for each in memory.complete[1:] if each.path[1] >= before]
            memory.runs = [run for run in memory.runs if run.path[1] >= before]
        return told

    def _skipped(self, match: Complete) -> int:
        """The number of the first event with which another match may begin."""
        skip, names = self.engine.search.skip, self.engine._names
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
            self.memory, each.path, key=self.moment.key, began=each.began, ended=each.ended, timed_out=timed_out
        )


def _single(name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    return lambda memory: (get(memory),)


def _began(each: Run | Complete) -> int:
    return each.path[1]


def _earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _first(runs: list[Run]) -> datetime | None:
    return min((each for run in runs for each in (run.due, run.deadline) if each is not None), default=None)
