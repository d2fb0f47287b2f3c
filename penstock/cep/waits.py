"""What a partial match can be at, and wait for: places, waits, and how a part of a pattern begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from penstock.cep.pattern import How, Link, On, Predicate

Waiting = Literal["next", "then", "then_any", "absent", "end", "end_next", "end_within"]


@dataclass(eq=False)
class Place:
    """A step that has just taken an event; `step` is its number. An absence has a place too, which takes none."""

    step: int
    on: On
    after: After


@dataclass(eq=False)
class Guard:
    """What a wait gives way to: a greedy repetition that could take the event. `how` and `stop` say until when; `how`
    is that of the wait, if it is None."""

    places: tuple[Place, ...]
    how: How | None
    stop: Predicate | None


@dataclass(eq=False)
class Absence:
    """That a step does not come for a time, and the place that is reached then."""

    place: Place
    time: timedelta
    step: On


@dataclass(eq=False)
class Choice:
    """An alternative of an `any_of` that can be called off on its own: by an event of one of the steps in `never`, or
    for which `stop` holds. It begins with an event that one of `places` takes, or with an absence."""

    places: tuple[Place, ...]
    never: tuple[On, ...]
    stop: Predicate | None
    absence: Absence | None


@dataclass(eq=False)
class Wait:
    """What a partial match waits for: an event that one of `places` takes. `end` is there at once, `end_next` with any
    event, `end_within` when the time is over; `absent` waits for a `time` of its own.

    `never` must not come meanwhile, `not_now` not as the next event; `stop` ends it. With a `rival`, an absence is
    waited for as well, and what is there first counts. With `choices`, the same of several alternatives, whose places
    are `places`. With `goes_on`, its time has begun with an earlier wait. With `back`, an `every` begins again: the
    partial match is without so many of its last events.
    """

    how: Waiting
    places: tuple[Place, ...] = ()
    time: timedelta | None = None
    never: tuple[On, ...] = ()
    not_now: tuple[On, ...] = ()
    stop: Predicate | None = None
    guards: tuple[Guard, ...] = ()
    rival: Absence | None = None
    goes_on: bool = False
    back: int = 0
    choices: tuple[Choice, ...] = ()

    @property
    def silences(self) -> list[tuple[int, Absence]]:
        """The absences that are waited for, each after the bit that says that it is off."""
        if self.choices:
            bits = self.choice_bits
            return [(bit, each.absence) for bit, each in zip(bits, self.choices, strict=True) if each.absence]
        if self.how == "absent":
            assert self.time is not None
            return [(0, Absence(self.places[0], self.time, self.never[-1]))]
        return [] if self.rival is None else [(0, self.rival)]

    @property
    def choice_bits(self) -> list[int]:
        """The bit of `Run.past` for each choice, that says that it is off. The lowest ones are those of guards."""
        return [2 << len(self.guards) + number for number in range(len(self.choices))]


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
class Way:
    """One way to begin a part: with an event that one of the places takes, unless it comes to a stop before; or with an
    absence, or with what is first of both. `how` is how that event follows; None as the part itself does. An event of
    one of the steps in `never` ends it. With `choices`, which have all of the places, no more is said."""

    places: tuple[Place, ...]
    guards: tuple[Guard, ...] = ()
    stop: Predicate | None = None
    how: How | None = None
    absence: Absence | None = None
    never: tuple[On, ...] = ()
    choices: tuple[Choice, ...] = ()

    def wait(self, how: How, stop: Predicate | None = None) -> Wait:
        guards, ends, absence = placed(self.guards, how), either(stop, self.stop), self.absence
        if self.choices:
            time = min((each.absence.time for each in self.choices if each.absence is not None), default=None)
            return Wait(self.how or how, self.places, time, guards=guards, stop=ends, choices=self.choices)
        if absence is None:
            return Wait(self.how or how, self.places, never=self.never, guards=guards, stop=ends)
        if not self.places:
            never = self.never or (absence.step,)
            return Wait("absent", (absence.place,), absence.time, never, guards=guards, stop=ends)
        return Wait(self.how or how, self.places, absence.time, self.never, guards=guards, stop=ends, rival=absence)


@dataclass(frozen=True)
class Entry:
    """How a part begins, and the ways to leave it out, if there are: each is what it gives way to then."""

    ways: tuple[Way, ...]
    skips: tuple[tuple[Guard, ...], ...] = ()

    def guard(self, how: How | None, stop: Predicate | None) -> Guard:
        return Guard(tuple(place for way in self.ways for place in way.places), how, stop)


def first(entries: list[Entry]) -> Entry:
    """How a sequence begins: with its first part, or with the next one if that may be left out, and so on."""
    ways: list[Way] = []
    left_out: tuple[tuple[Guard, ...], ...] = ((),)
    for entry in entries:
        ways += [replace(way, guards=(*guards, *way.guards)) for guards in left_out for way in entry.ways]
        if not entry.skips:
            return Entry(tuple(ways))
        left_out = tuple((*guards, *more) for guards in left_out for more in entry.skips)
        if () in left_out:  # nothing stops it, so no other way matters
            left_out = ((),)
    return Entry(tuple(ways), left_out)


def apart(entry: Entry) -> Entry:
    """How a pattern begins: with any of the choices, each on its own, for each may begin a match. An absence and events
    in one way are those of an `all_of`: its first event is the first one that fits."""
    ways: list[Way] = []
    for way in entry.ways:
        ways += [
            replace(_way(each), how=way.how, guards=way.guards, stop=either(way.stop, each.stop))
            for each in way.choices
        ]
        if not way.choices:
            ways.append(replace(way, how="then") if way.absence is not None else way)
    return Entry(tuple(ways), entry.skips)


def _way(choice: Choice) -> Way:
    return Way(choice.places, absence=choice.absence, never=choice.never)


def choosing(ways: Iterable[Way]) -> Way:
    """The first ways of alternatives as one: what begins first ends the wait for the others."""
    choices = [each for way in ways for each in _choices(way)]
    places = tuple(place for each in choices for place in each.places)
    can_be_off = any(each.never or each.stop is not None for each in choices)
    return Way(places, choices=tuple(choices) if can_be_off else ())


def _choices(way: Way) -> Iterable[Choice]:
    if not way.choices:
        never = way.never if way.absence is None else (way.absence.step,)
        return [Choice(way.places, never, way.stop, way.absence)]
    return [replace(each, stop=either(way.stop, each.stop)) for each in way.choices]


def following(entry: Entry, link: Link) -> Entry:
    """How a sequence goes on with a later part, if all before it is left out: as that part follows, not the first."""
    how = link.how
    if how == "not_next" or how == "not_then":
        return entry
    ways = [replace(way, how=way.how or how, guards=placed(way.guards, how)) for way in entry.ways]
    return Entry(tuple(ways), tuple(placed(guards, how) for guards in entry.skips))


def either(one: Predicate | None, other: Predicate | None) -> Predicate | None:
    """What holds if one of them does."""
    if one is None or other is None:
        return other if one is None else one
    return lambda event, match: one(event, match) or other(event, match)


def placed(guards: tuple[Guard, ...], how: How) -> tuple[Guard, ...]:
    return tuple(guard if guard.how is not None else replace(guard, how=how) for guard in guards)


def forbidding(link: Link) -> Change:
    """The same wait, while a step must not come."""
    assert isinstance(link.to, On)
    unwanted = (link.to,)
    if link.how == "not_next":
        return lambda wait: replace(
            wait, how="end_next" if wait.how == "end" else wait.how, not_now=unwanted + wait.not_now
        )
    return lambda wait: replace(wait, how="end_within" if wait.how == "end" else wait.how, never=unwanted + wait.never)


def guarding(guards: tuple[Guard, ...]) -> Change:
    """The same wait, that gives way to greedy repetitions."""
    return lambda wait: replace(wait, guards=(*wait.guards, *guards)) if guards else wait
