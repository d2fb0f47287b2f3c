"""A pattern compiled: places that a partial match can be at, and what it waits for there.

A place is that a step has just taken an event. After it, the match waits in one or several ways at once, each on its
own: for one more of a repetition, for the step after it, for the one after that if the step is optional. So a partial
match is one of the waits and the events so far, and what becomes of it at an event is decided by that event alone: it
goes on, stays, or ends.

It is built from the end: what a part is compiled with is what comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.cep.pattern import Absent, AllOf, AnyOf, Every, How, Link, On, Pattern, Repeated, Sequence
from penstock.cep.waits import (
    Absence,
    After,
    Entry,
    Place,
    Wait,
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
"""A repetition is written out, so `times(3)` of a step has three places."""


class TooLarge(Exception):
    """The pattern has more places than `PLACES_MAX`."""


@dataclass(frozen=True)
class Plan:
    """A pattern compiled. `waits` are numbered by where they stand in the list; `start` are those of a new match.
    `open` are those inside an `every` at the beginning: while there is one, no other match begins."""

    places: tuple[Place, ...]
    waits: tuple[Wait, ...]
    start: tuple[Wait, ...]
    steps: tuple[On, ...]
    open: tuple[Wait, ...] = ()


def plan(pattern: Pattern) -> Plan:
    """Compile a pattern that has no `problems`."""
    return _Builder(pattern).plan()


class _Builder:
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.steps = tuple(dict.fromkeys(taking(pattern)))
        self.numbers = {step: number for number, step in enumerate(self.steps)}
        self.places: list[Place] = []
        self.first_every: frozenset[Place] = frozenset()

    def plan(self) -> Plan:
        end = After([Wait("end")])
        start = self._before("then_any", apart(self._part(self.pattern, end)), end).waits
        waits = list(dict.fromkeys([*start, *(wait for place in self.places for wait in place.after.waits)]))
        is_open = tuple(wait for wait in waits if wait.places and self.first_every.issuperset(wait.places))
        inner = tuple(wait for wait in is_open if wait not in start)
        return Plan(tuple(self.places), tuple(waits), tuple(start), self.steps, inner)

    def _place(self, on: On, after: After, takes: bool = True) -> Place:
        place = Place(self.numbers[on] if takes else -1, on, after)
        self.places.append(place)
        if len(self.places) > PLACES_MAX:
            raise TooLarge
        return place

    def _part(self, pattern: Pattern, after: After, never: tuple[On, ...] = ()) -> Entry:
        """How a part begins, given what comes after it. `never` are the steps of a `not_then` right behind it: they
        must not come between one time of a repetition and the next either."""
        if isinstance(pattern, On):
            return Entry((Way((self._place(pattern, after),)),))
        if isinstance(pattern, Sequence):
            return self._sequence(pattern, after, never)
        if isinstance(pattern, Repeated):
            return self._repeated(pattern, after, never)
        if isinstance(pattern, AnyOf):
            return self._any_of(pattern, after, never)
        if isinstance(pattern, Absent):
            return Entry((Way((), absence=self._absence(pattern, after)),))
        if isinstance(pattern, Every):
            return self._every(pattern, after)
        assert isinstance(pattern, AllOf), pattern
        return self._all_of(pattern.of, after)

    def _absence(self, absent: Absent, after: After) -> Absence:
        assert absent.time is not None
        return Absence(self._place(absent.step, after, takes=False), absent.time, absent.step)

    def _sequence(self, sequence: Sequence, after: After, never: tuple[On, ...]) -> Entry:
        entries: list[Entry] = []
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

    def _linked(self, link: Link, after: After, never: tuple[On, ...]) -> tuple[After, Entry]:
        """What comes after a part, given the link that follows it and what comes after that; and how that begins."""
        if link.how == "not_next" or link.how == "not_then":
            return After().join(after, forbidding(link)), Entry(())
        entry = self._part(link.to, after, never)
        return self._before(link.how, entry, after), entry

    def _before(self, how: How, entry: Entry, after: After) -> After:
        """Wait for a part; or for what comes after it, if it may be left out."""
        made = After(way.wait(how) for way in entry.ways)
        for guards in entry.skips:
            made.join(after, guarding(placed(guards, how)))
        return made

    def _repeated(self, repeated: Repeated, after: After, never: tuple[On, ...]) -> Entry:
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
            return Entry(ways, entry.skips)
        guards = (entry.guard(None, repeated.stop),) if repeated.is_greedy else ()
        return Entry(ways, (guards, *entry.skips))

    def _again(self, repeated: Repeated, here: After, entry: Entry, never: tuple[On, ...]) -> None:
        """After one time: once more."""
        for way in entry.ways:
            wait = way.wait(repeated.how, repeated.stop)
            here.add(replace(wait, never=wait.never + never))

    def _leave(self, repeated: Repeated, here: After, entry: Entry, after: After) -> None:
        """After one time: on to what follows."""
        guard = entry.guard(repeated.how, repeated.stop)
        here.join(after, guarding((guard,) if repeated.is_greedy else ()))

    def _any_of(self, any_of: AnyOf, after: After, never: tuple[On, ...]) -> Entry:
        """Their first ways are one."""
        entries = [self._part(part, after, never) for part in any_of.of]
        first = choosing(entry.ways[0] for entry in entries)
        others = [way for entry in entries for way in entry.ways[1:]]
        return Entry((first, *others), tuple(skip for entry in entries for skip in entry.skips))

    def _all_of(self, parts: tuple[Pattern, ...], after: After) -> Entry:
        """A place for each step and set of steps that have come, and for each absence that is complete.

        All times are counted from the same moment, so absences are complete in the order of their times: those of the
        same time are one, and `silent` of them are complete. The time of the next goes on from one place to another."""
        steps = [part for part in parts if isinstance(part, On)]
        absences = [part for part in parts if isinstance(part, Absent)]
        times = sorted({part.time for part in absences if part.time is not None})
        made: dict[tuple[int, int, int], Place] = {}

        def place(number: int, done: int, silent: int) -> Place:
            """The place that a step leads to, or an absence, whose number is -1."""
            if (number, done, silent) not in made:
                is_all = done == (1 << len(steps)) - 1 and silent == len(times)
                ahead = after if is_all else After([waiting(number, done, silent)])
                on = steps[number] if number >= 0 else next(each.step for each in absences if each.time is not None)
                made[number, done, silent] = self._place(on, ahead, takes=number >= 0)
            return made[number, done, silent]

        def waiting(number: int, done: int, silent: int) -> Wait:
            wait = way(done, silent).wait("then")
            if number >= 0:
                return replace(wait, goes_on=True)
            return replace(wait, time=times[silent] - times[silent - 1]) if silent < len(times) else wait

        def way(done: int, silent: int) -> Way:
            ahead = tuple(place(each, done | 1 << each, silent) for each in range(len(steps)) if not done >> each & 1)
            wanted = set(times[silent:])
            never = tuple(each.step for each in absences if each.time is None or each.time in wanted)
            if not wanted:
                return Way(ahead, never=never)
            return Way(ahead, absence=Absence(place(-1, done, silent + 1), times[silent], never[0]), never=never)

        return Entry((way(0, 0),))

    def _every(self, every: Every, after: After) -> Entry:
        """When it is complete, it begins again after what is before it. At the beginning of a pattern an event begins
        it, if none is open; see `Plan.open`."""
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
    """The part with which a sequence begins."""
    return pattern.first if isinstance(pattern, Sequence) else pattern


def taking(pattern: Pattern) -> list[On]:
    """The steps that take events."""
    if isinstance(pattern, On):
        return [pattern]
    if isinstance(pattern, Absent):
        return []
    if isinstance(pattern, Sequence):
        wanted = [link.to for link in pattern.links if link.how not in ("not_next", "not_then")]
        return [step for part in (pattern.first, *wanted) for step in taking(part)]
    return [step for part in pattern.parts() for step in taking(part)]
