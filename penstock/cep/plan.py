"""The pattern compiler, which creates the places that a partial match can reach, and the waits at each place.

A partial match is at a place when a step has just taken an event. From there, the match can wait for several things
independently: for another repetition, for the next step, or, if the next step is optional, for the step after it. So a
partial match consists of one wait and the events so far, and each event on its own decides whether the match continues,
stays or ends.

The plan is built backwards: each part is compiled after the parts that follow it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.cep.pattern import Absent, AllOf, AnyOf, Every, How, Link, On, Pattern, Repeated, Sequence
from penstock.cep.transitions import (
    Absence,
    After,
    AutomatonState,
    PartEntry,
    Transition,
    Way,
    apart,
    choosing,
    either,
    first,
    following,
    forbidding,
    guarding,
    placed,
)

PLACES_MAX = 2_000
"""Maximum number of places in a plan. Repetitions are expanded, so a step with `times(3)` has three places."""


class PatternTooLarge(Exception):
    """Raised for a pattern with more places than `PLACES_MAX`."""


@dataclass(frozen=True)
class CompiledPattern:
    """A compiled pattern. `transitions` are numbered by their position; `start` contains the transitions that a match
    can begin with. `open` contains the transitions inside an `every` at the beginning: while a partial match is waiting
    in one of them, no other match begins."""

    places: tuple[AutomatonState, ...]
    transitions: tuple[Transition, ...]
    start: tuple[Transition, ...]
    steps: tuple[On, ...]
    open: tuple[Transition, ...] = ()


def plan(pattern: Pattern) -> CompiledPattern:
    """Compile a valid pattern, for which `problems` returns nothing."""
    return _Builder(pattern).plan()


class _Builder:
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.numbers = step_numbers(pattern)
        self.places: list[AutomatonState] = []
        self.first_every: frozenset[AutomatonState] = frozenset()

    def plan(self) -> CompiledPattern:
        end = After([Transition("end")])
        start = self._before("then_any", apart(self._part(self.pattern, end)), end).transitions
        waits = list(dict.fromkeys([*start, *(wait for place in self.places for wait in place.after.transitions)]))
        is_open = tuple(wait for wait in waits if wait.places and self.first_every.issuperset(wait.places))
        inner = tuple(wait for wait in is_open if wait not in start)
        return CompiledPattern(tuple(self.places), tuple(waits), tuple(start), tuple(self.numbers), inner)

    def _place(self, on: On, after: After, takes: bool = True) -> AutomatonState:
        place = AutomatonState(self.numbers[on] if takes else -1, on, after)
        self.places.append(place)
        if len(self.places) > PLACES_MAX:
            raise PatternTooLarge
        return place

    def _part(self, pattern: Pattern, after: After, never: tuple[On, ...] = ()) -> PartEntry:
        """Return the entry of a pattern's part, given what comes after it. `never` contains the steps of a `not_then`
        that follows the part directly: they must not occur between two repetitions either."""
        if isinstance(pattern, On):
            return PartEntry((Way((self._place(pattern, after),)),))
        if isinstance(pattern, Sequence):
            return self._sequence(pattern, after, never)
        if isinstance(pattern, Repeated):
            return self._repeated(pattern, after, never)
        if isinstance(pattern, AnyOf):
            return self._any_of(pattern, after, never)
        if isinstance(pattern, Absent):
            return PartEntry((Way((), absence=self._absence(pattern, after)),))
        if isinstance(pattern, Every):
            return self._every(pattern, after)
        assert isinstance(pattern, AllOf), pattern
        return self._all_of(pattern.of, after)

    def _absence(self, absent: Absent, after: After) -> Absence:
        assert absent.time is not None
        return Absence(self._place(absent.step, after, takes=False), absent.time, absent.step)

    def _sequence(self, sequence: Sequence, after: After, never: tuple[On, ...]) -> PartEntry:
        entries: list[PartEntry] = []
        for link in reversed(sequence.links):
            after, entry = self._linked(link, after, never)
            entries.append(following(entry, link))
            if link.how == "not_then":
                assert isinstance(link.to, On)
                never = (link.to, *never)
            elif link.how != "not_next":
                never = ()
        entries.append(self._part(sequence.first, after, never))
        return first(entries[::-1])

    def _linked(self, link: Link, after: After, never: tuple[On, ...]) -> tuple[After, PartEntry]:
        """Return the continuation after a pattern's part, and the entry of the link that follows the part. `after` is
        the continuation after that link."""
        if link.how == "not_next" or link.how == "not_then":
            return After().join(after, forbidding(link)), PartEntry(())
        entry = self._part(link.to, after, never)
        return self._before(link.how, entry, after), entry

    def _before(self, how: How, entry: PartEntry, after: After) -> After:
        """Return the waits for a pattern's part and, if the part is optional, the waits for the part after it."""
        waits = After(way.wait(how) for way in entry.ways)
        for guards in entry.skips:
            waits.join(after, guarding(placed(guards, how)))
        return waits

    def _repeated(self, repeated: Repeated, after: After, never: tuple[On, ...]) -> PartEntry:
        if repeated.high is None:
            here = After()
            entry = self._part(repeated.of, here, never)
            self._again(repeated, here, entry, never)
            self._leave(repeated, here, entry, after)
            turns = repeated.low - 1
        else:
            entry, turns = self._part(repeated.of, after, never), repeated.high - 1
        for turn in range(turns, 0, -1):
            here = After()
            self._again(repeated, here, entry, never)
            if turn >= repeated.low:
                self._leave(repeated, here, entry, after)
            entry = self._part(repeated.of, here, never)
        ways = tuple(replace(way, stop=either(repeated.stop, way.stop)) for way in entry.ways)
        if not repeated.optionally:
            return PartEntry(ways, entry.skips)
        guards = (entry.guard(None, repeated.stop),) if repeated.is_greedy else ()
        return PartEntry(ways, (guards, *entry.skips))

    def _again(self, repeated: Repeated, here: After, entry: PartEntry, never: tuple[On, ...]) -> None:
        """Add the waits for another repetition of a pattern's part."""
        for way in entry.ways:
            wait = way.wait(repeated.how, repeated.stop)
            here.add(replace(wait, never=wait.never + never))

    def _leave(self, repeated: Repeated, here: After, entry: PartEntry, after: After) -> None:
        """Add the waits for the pattern's part after the repetition."""
        guard = entry.guard(repeated.how, repeated.stop)
        here.join(after, guarding((guard,) if repeated.is_greedy else ()))

    def _any_of(self, any_of: AnyOf, after: After, never: tuple[On, ...]) -> PartEntry:
        """Return the entry of a pattern's alternatives: their first ways are combined into one."""
        entries = [self._part(part, after, never) for part in any_of.of]
        first = choosing(entry.ways[0] for entry in entries)
        others = [way for entry in entries for way in entry.ways[1:]]
        return PartEntry((first, *others), tuple(skip for entry in entries for skip in entry.skips))

    def _all_of(self, parts: tuple[Pattern, ...], after: After) -> PartEntry:
        """Return the entry of an `all_of`, with a place for each set of steps that have occurred, and for each complete
        absence.

        All times are counted from the same moment, so absences complete in the order of their times. Absences with the
        same time are treated as one; `silent` is the number of complete ones. The time of the next absence keeps
        running when the match moves from one place to another.
        """
        steps = [part for part in parts if isinstance(part, On)]
        absences = [part for part in parts if isinstance(part, Absent)]
        times = sorted({part.time for part in absences if part.time is not None})
        places: dict[tuple[int, int, int], AutomatonState] = {}

        def place(number: int, done: int, silent: int) -> AutomatonState:
            """Return the place that a step leads to. The number -1 means an absence."""
            if (number, done, silent) not in places:
                is_all = done == (1 << len(steps)) - 1 and silent == len(times)
                ahead = after if is_all else After([waiting(number, done, silent)])
                on = (
                    steps[number]
                    if number >= 0
                    else next(absence.step for absence in absences if absence.time is not None)
                )
                places[number, done, silent] = self._place(on, ahead, takes=number >= 0)
            return places[number, done, silent]

        def waiting(number: int, done: int, silent: int) -> Transition:
            wait = way(done, silent).wait("then")
            if number >= 0:
                return replace(wait, goes_on=True)
            return replace(wait, time=times[silent] - times[silent - 1]) if silent < len(times) else wait

        def way(done: int, silent: int) -> Way:
            ahead = tuple(
                place(number, done | 1 << number, silent) for number in range(len(steps)) if not done >> number & 1
            )
            wanted = set(times[silent:])
            never = tuple(absence.step for absence in absences if absence.time is None or absence.time in wanted)
            if not wanted:
                return Way(ahead, never=never)
            return Way(ahead, absence=Absence(place(-1, done, silent + 1), times[silent], never[0]), never=never)

        return PartEntry((way(0, 0),))

    def _every(self, every: Every, after: After) -> PartEntry:
        """Return the entry of an `every`, which begins again after the step before it each time it is complete. At the
        beginning of a pattern, an event begins the `every` only if no other repetition is incomplete; see
        `CompiledPattern.open`."""
        here, known = After().join(after), len(self.places)
        entry = self._part(every.of, here)
        inside = self.places[known:]
        if every is first_part(self.pattern):
            self.first_every = frozenset(inside)
        else:
            for way in entry.ways:
                here.add(replace(way.wait("then"), back=len(inside)))
        return entry


def first_part(pattern: Pattern) -> Pattern:
    """Return the first part of a pattern's sequence. Any other pattern is returned unchanged."""
    return pattern.first if isinstance(pattern, Sequence) else pattern


def step_numbers(pattern: Pattern) -> dict[On, int]:
    """Number the pattern's steps that take events, in order."""
    return {step: number for number, step in enumerate(dict.fromkeys(taking(pattern)))}


def taking(pattern: Pattern) -> list[On]:
    """Return the pattern's steps that take events."""
    if isinstance(pattern, On):
        return [pattern]
    if isinstance(pattern, Absent):
        return []
    if isinstance(pattern, Sequence):
        wanted = [link.to for link in pattern.links if link.how not in ("not_next", "not_then")]
        return [step for part in (pattern.first, *wanted) for step in taking(part)]
    return [step for part in pattern.parts() for step in taking(part)]
