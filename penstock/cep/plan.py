"""A pattern compiled: places that a partial match can be at, and what it waits for there.

A place is that a step has just taken an event. After it, the match waits in one or several ways at once, each on its
own: for one more of a repetition, for the step after it, for the one after that if the step is optional. So a partial
match is one of the waits and the events so far, and what becomes of it at an event is decided by that event alone: it
goes on, stays, or ends.

It is built from the end: what a part is compiled with is what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from typing import Literal

from penstock.cep.pattern import Absent, AllOf, AnyOf, How, Link, On, Pattern, Predicate, Repeated, Sequence

PLACES_MAX = 2_000
"""A repetition is written out, so `times(3)` of a step has three places."""

Waiting = Literal["next", "then", "then_any", "absent", "end", "end_next", "end_within"]


class TooLarge(Exception):
    """The pattern has more places than `PLACES_MAX`."""


@dataclass(eq=False)
class Place:
    """A step that has just taken an event; `step` is its number. An absence has a place too, which takes none."""

    step: int
    on: On
    after: After


@dataclass(eq=False)
class Guard:
    """What a wait gives way to: a greedy repetition that could take the event. `how` and `stop` say until when."""

    places: tuple[Place, ...]
    how: How
    stop: Predicate | None


@dataclass(eq=False)
class Wait:
    """What a partial match waits for: an event that one of `places` takes. `end` is there at once, `end_next` with any
    event, `end_within` when the time is over; `absent` waits for a `time` of its own.

    `never` must not come meanwhile, `not_now` not as the next event; `stop` ends it.
    """

    how: Waiting
    places: tuple[Place, ...] = ()
    time: timedelta | None = None
    never: tuple[On, ...] = ()
    not_now: tuple[On, ...] = ()
    stop: Predicate | None = None
    guards: tuple[Guard, ...] = ()


Change = Callable[[Wait], Wait]


class After:
    """All the ways to go on. Some may be those of another one that is still being filled, changed in some way: they are
    put together when all is there."""

    def __init__(self, waits: Iterable[Wait] = ()) -> None:
        self._given: list[Wait | tuple[After, Change]] = list(waits)
        self._made: list[Wait] | None = None

    def add(self, wait: Wait) -> None:
        self._given.append(wait)

    def join(self, other: After, change: Change = lambda wait: wait) -> After:
        """All the ways of another one too."""
        self._given.append((other, change))
        return self

    @property
    def waits(self) -> list[Wait]:
        if self._made is None:
            self._made = []
            for each in self._given:
                self._made += [each] if isinstance(each, Wait) else map(each[1], each[0].waits)
        return self._made

    @property
    def is_final(self) -> bool:
        return any(wait.how == "end" for wait in self.waits)


@dataclass(frozen=True)
class Plan:
    """A pattern compiled. `waits` are numbered by where they stand in the list; `start` are those of a new match."""

    places: tuple[Place, ...]
    waits: tuple[Wait, ...]
    start: tuple[Wait, ...]
    steps: tuple[On, ...]
    fingerprint: str


@dataclass(frozen=True)
class _Way:
    """One way to begin a part: with an event that one of the places takes."""

    places: tuple[Place, ...]
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class _Entry:
    """How a part begins, and whether it may be left out; and what gives way to it then, if it is greedy."""

    ways: tuple[_Way, ...]
    may_skip: bool = False
    greedy: bool = False

    def guard(self, how: How, stop: Predicate | None = None) -> Guard:
        return Guard(tuple(place for way in self.ways for place in way.places), how, stop)


def plan(pattern: Pattern) -> Plan:
    """Compile a pattern that has no `problems`."""
    return _Builder(pattern).plan()


class _Builder:
    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.steps = tuple(dict.fromkeys(taking(pattern)))
        self.numbers = {step: number for number, step in enumerate(self.steps)}
        self.places: list[Place] = []

    def plan(self) -> Plan:
        end = After([Wait("end")])
        start = self._before("then_any", self._part(self.pattern, end), end).waits
        waits = list(dict.fromkeys([*start, *(wait for place in self.places for wait in place.after.waits)]))
        return Plan(tuple(self.places), tuple(waits), tuple(start), self.steps, self._fingerprint(waits))

    def _fingerprint(self, waits: list[Wait]) -> str:
        """The same for the same structure: partial matches that are kept name waits and steps by number."""
        place_of = {place: number for number, place in enumerate(self.places)}
        wait_of = {wait: number for number, wait in enumerate(waits)}
        told = [
            [step.name for step in self.steps],
            [(wait.how, [place_of[place] for place in wait.places], str(wait.time)) for wait in waits],
            [(place.step, [wait_of[wait] for wait in place.after.waits]) for place in self.places],
        ]
        return blake2b(repr(told).encode(), digest_size=8).hexdigest()

    def _place(self, on: On, after: After, takes: bool = True) -> Place:
        place = Place(self.numbers[on] if takes else -1, on, after)
        self.places.append(place)
        if len(self.places) > PLACES_MAX:
            raise TooLarge
        return place

    def _part(self, pattern: Pattern, after: After) -> _Entry:
        if isinstance(pattern, On):
            return _Entry((_Way((self._place(pattern, after),)),))
        if isinstance(pattern, Sequence):
            return self._sequence(pattern, after)
        if isinstance(pattern, Repeated):
            return self._repeated(pattern, after)
        if isinstance(pattern, AnyOf):
            return self._any_of(pattern, after)
        assert isinstance(pattern, AllOf), pattern
        return self._all_of([part for part in pattern.of if isinstance(part, On)], after)

    def _sequence(self, sequence: Sequence, after: After) -> _Entry:
        entries: list[_Entry] = []
        for link in reversed(sequence.links):
            after, entry = self._linked(link, after)
            entries.append(entry)
        entries.append(self._part(sequence.first, after))
        return _first(entries[::-1])

    def _linked(self, link: Link, after: After) -> tuple[After, _Entry]:
        """What comes after a part, given the link that follows it and what comes after that; and how that begins."""
        if link.how == "not_next" or link.how == "not_then":
            return After().join(after, _forbidding(link)), _Entry(())
        if isinstance(link.to, Absent):
            place = self._place(link.to.step, after, takes=False)
            return After([Wait("absent", (place,), link.to.time, never=(link.to.step,))]), _Entry(())
        entry = self._part(link.to, after)
        return self._before(link.how, entry, after), entry

    def _before(self, how: How, entry: _Entry, after: After) -> After:
        """Wait for a part; or for what comes after it, if it may be left out."""
        made = After(Wait(how, way.places, guards=way.guards) for way in entry.ways)
        if entry.may_skip:
            made.join(after, _guarding(entry.guard(how)) if entry.greedy else _as_it_is)
        return made

    def _repeated(self, repeated: Repeated, after: After) -> _Entry:
        if repeated.high is None:
            here = After()
            entry = self._part(repeated.of, here)
            self._again(repeated, here, entry, after, True)
            turns = repeated.low - 1
        else:
            entry, turns = self._part(repeated.of, after), repeated.high - 1
        for turn in range(turns, 0, -1):
            here = After()
            self._again(repeated, here, entry, after, turn >= repeated.low)
            entry = self._part(repeated.of, here)
        return replace(entry, may_skip=repeated.optionally or entry.may_skip, greedy=repeated.is_greedy)

    def _again(self, repeated: Repeated, here: After, entry: _Entry, after: After, may_leave: bool) -> None:
        """After one time: once more, or on to what follows."""
        for way in entry.ways:
            here.add(Wait(repeated.how, way.places, guards=way.guards, stop=repeated.stop))
        if may_leave:
            guard = entry.guard(repeated.how, repeated.stop)
            here.join(after, _guarding(guard) if repeated.is_greedy else _as_it_is)

    def _any_of(self, any_of: AnyOf, after: After) -> _Entry:
        """Their first ways are one: what begins first ends the wait for the others."""
        entries = [self._part(part, after) for part in any_of.of]
        first = _Way(tuple(place for entry in entries for place in entry.ways[0].places))
        others = [way for entry in entries for way in entry.ways[1:]]
        return _Entry((first, *others), any(entry.may_skip for entry in entries))

    def _all_of(self, steps: list[On], after: After) -> _Entry:
        """A place for each step and each set of steps that are done with it."""
        made: dict[tuple[int, int], Place] = {}

        def place(number: int, done: int) -> Place:
            if (number, done) not in made:
                rest = [each for each in range(len(steps)) if not done >> each & 1]
                places = tuple(place(each, done | 1 << each) for each in rest)
                made[number, done] = self._place(steps[number], After([Wait("then", places)]) if rest else after)
            return made[number, done]

        return _Entry((_Way(tuple(place(number, 1 << number) for number in range(len(steps)))),))


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


def _first(entries: list[_Entry]) -> _Entry:
    """How a sequence begins: with its first part, or with the next one if that may be left out, and so on."""
    ways: list[_Way] = []
    guards: tuple[Guard, ...] = ()
    for entry in entries:
        ways += [_Way(way.places, (*guards, *way.guards)) for way in entry.ways]
        if not entry.may_skip:
            return _Entry(tuple(ways))
        if entry.greedy:
            guards = (*guards, entry.guard("then"))
    return _Entry(tuple(ways), may_skip=True)


def _as_it_is(wait: Wait) -> Wait:
    return wait


def _forbidding(link: Link) -> Change:
    """The same wait, while a step must not come."""
    assert isinstance(link.to, On)
    unwanted = (link.to,)
    if link.how == "not_next":
        return lambda wait: replace(
            wait, how="end_next" if wait.how == "end" else wait.how, not_now=unwanted + wait.not_now
        )
    return lambda wait: replace(wait, how="end_within" if wait.how == "end" else wait.how, never=unwanted + wait.never)


def _guarding(guard: Guard) -> Change:
    """The same wait, that gives way to a greedy repetition."""
    return lambda wait: replace(wait, guards=(*wait.guards, guard))
