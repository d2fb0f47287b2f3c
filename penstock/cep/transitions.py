"""The parts of a plan: places, waits, and entries for the pattern's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from penstock.cep.pattern import How, Link, On, Predicate

Waiting = Literal["next", "then", "then_any", "absent", "end", "end_next", "end_within"]


@dataclass(eq=False)
class AutomatonState:
    """A place in a pattern: the position after a step has taken an event; `step` is the step's number. A complete
    absence also leads to a place, where no event is taken."""

    step: int
    on: On
    after: After


@dataclass(eq=False)
class Guard:
    """A greedy repetition that has precedence over a wait in a pattern. `how` and `stop` decide how long it has
    precedence; if `how` is None, the wait's `how` applies."""

    places: tuple[AutomatonState, ...]
    how: How | None
    stop: Predicate | None


@dataclass(eq=False)
class Absence:
    """An absence: a step that must not occur for a time, and the place that is reached after this time."""

    place: AutomatonState
    time: timedelta
    step: On


@dataclass(eq=False)
class Alternative:
    """An alternative in an `any_of` that can be ruled out independently, by an event that fits a step in `never` or for
    which `stop` is true. The alternative begins with an event taken by one of `places`, or with an absence."""

    places: tuple[AutomatonState, ...]
    never: tuple[On, ...]
    stop: Predicate | None
    absence: Absence | None


@dataclass(eq=False)
class Transition:
    """The wait of a partial match for an event that one of `places` takes. A match with the wait `end` is complete
    immediately, with `end_next` on the next event, and with `end_within` when it times out; `absent` waits for `time`.

    The steps in `never` must not occur during the wait, and the steps in `not_now` not as the next event; `stop` ends
    the wait. With a `rival`, the match also waits for an absence, and whichever occurs first decides. With `choices`,
    the same applies to several alternatives, and `places` contains the places of all of them. With `goes_on`, the time
    began with an earlier wait. With `back`, an `every` begins again, and this number of events is removed from the end
    of the partial match.
    """

    how: Waiting
    places: tuple[AutomatonState, ...] = ()
    time: timedelta | None = None
    never: tuple[On, ...] = ()
    not_now: tuple[On, ...] = ()
    stop: Predicate | None = None
    guards: tuple[Guard, ...] = ()
    rival: Absence | None = None
    goes_on: bool = False
    back: int = 0
    choices: tuple[Alternative, ...] = ()

    @property
    def silences(self) -> list[tuple[int, Absence]]:
        """The wait's absences, each with the bit that marks it as ruled out."""
        if self.choices:
            bits = self.choice_bits
            return [(bit, choice.absence) for bit, choice in zip(bits, self.choices, strict=True) if choice.absence]
        if self.how == "absent":
            assert self.time is not None
            return [(0, Absence(self.places[0], self.time, self.never[-1]))]
        return [] if self.rival is None else [(0, self.rival)]

    @property
    def choice_bits(self) -> list[int]:
        """For each choice, the bit in `PartialMatch.past` that marks it as ruled out. Guards use lower bits."""
        return [2 << len(self.guards) + number for number in range(len(self.choices))]


Change = Callable[[Transition], Transition]


class After:
    """All ways to continue a partial match. They can include the ways from another `After` that is still under
    construction, each changed by a function. Those ways are added when `transitions` is first read."""

    def __init__(self, transitions: Iterable[Transition] = ()) -> None:
        self._given: list[Transition | tuple[After, Change]] = list(transitions)
        self._transitions: list[Transition] | None = None

    def add(self, wait: Transition) -> None:
        self._given.append(wait)

    def join(self, other: After, change: Change = lambda wait: wait) -> After:
        """Add all ways from another `After`."""
        self._given.append((other, change))
        return self

    @property
    def transitions(self) -> list[Transition]:
        if self._transitions is None:
            self._transitions = []
            for part in self._given:
                self._transitions += [part] if isinstance(part, Transition) else map(part[1], part[0].transitions)
        return self._transitions

    @property
    def is_final(self) -> bool:
        return any(wait.how == "end" for wait in self.transitions)


@dataclass(frozen=True)
class Way:
    """One way to begin a pattern's part: with an event that one of the places takes, unless `stop` is true first; with
    an absence; or with whichever of the two occurs first. `how` is the event's link; None means the part's own link. An
    event that fits a step in `never` ends the way. With `choices`, which contain all of the places, `never` and
    `absence` are not used."""

    places: tuple[AutomatonState, ...]
    guards: tuple[Guard, ...] = ()
    stop: Predicate | None = None
    how: How | None = None
    absence: Absence | None = None
    never: tuple[On, ...] = ()
    choices: tuple[Alternative, ...] = ()

    def wait(self, how: How, stop: Predicate | None = None) -> Transition:
        guards, ends, absence = placed(self.guards, how), either(stop, self.stop), self.absence
        if self.choices:
            time = min((choice.absence.time for choice in self.choices if choice.absence is not None), default=None)
            return Transition(self.how or how, self.places, time, guards=guards, stop=ends, choices=self.choices)
        if absence is None:
            return Transition(self.how or how, self.places, never=self.never, guards=guards, stop=ends)
        if not self.places:
            never = self.never or (absence.step,)
            return Transition("absent", (absence.place,), absence.time, never, guards=guards, stop=ends)
        return Transition(
            self.how or how, self.places, absence.time, self.never, guards=guards, stop=ends, rival=absence
        )


@dataclass(frozen=True)
class PartEntry:
    """The ways to begin a pattern's part, and the ways to skip it. Each way to skip the part lists the guards that take
    precedence in that case."""

    ways: tuple[Way, ...]
    skips: tuple[tuple[Guard, ...], ...] = ()

    def guard(self, how: How | None, stop: Predicate | None) -> Guard:
        return Guard(tuple(place for way in self.ways for place in way.places), how, stop)


def first(entries: list[PartEntry]) -> PartEntry:
    """Return the entry of a pattern's sequence: the entry of its first part, plus the next part's entry if the first
    part is optional, and so on."""
    ways: list[Way] = []
    left_out: tuple[tuple[Guard, ...], ...] = ((),)
    for entry in entries:
        ways += [replace(way, guards=(*guards, *way.guards)) for guards in left_out for way in entry.ways]
        if not entry.skips:
            return PartEntry(tuple(ways))
        left_out = tuple((*guards, *more) for guards in left_out for more in entry.skips)
        if () in left_out:  # nothing has precedence, so no other way matters
            left_out = ((),)
    return PartEntry(tuple(ways), left_out)


def apart(entry: PartEntry) -> PartEntry:
    """Return the entry of a whole pattern. Choices become separate ways, because each choice can begin a match. A way
    with both an absence and events belongs to an `all_of`, and begins with the first event that fits."""
    ways: list[Way] = []
    for way in entry.ways:
        ways += [
            replace(_way_of_alternative(choice), how=way.how, guards=way.guards, stop=either(way.stop, choice.stop))
            for choice in way.choices
        ]
        if not way.choices:
            ways.append(replace(way, how="then") if way.absence is not None else way)
    return PartEntry(tuple(ways), entry.skips)


def _way_of_alternative(choice: Alternative) -> Way:
    return Way(choice.places, absence=choice.absence, never=choice.never)


def choosing(ways: Iterable[Way]) -> Way:
    """Combine the first ways of a pattern's alternatives into one way, in which the alternative that begins first ends
    the wait for the others."""
    choices = [choice for way in ways for choice in _alternatives_of_way(way)]
    places = tuple(place for choice in choices for place in choice.places)
    can_be_off = any(choice.never or choice.stop is not None for choice in choices)
    return Way(places, choices=tuple(choices) if can_be_off else ())


def _alternatives_of_way(way: Way) -> Iterable[Alternative]:
    if not way.choices:
        never = way.never if way.absence is None else (way.absence.step,)
        return [Alternative(way.places, never, way.stop, way.absence)]
    return [replace(choice, stop=either(way.stop, choice.stop)) for choice in way.choices]


def following(entry: PartEntry, link: Link) -> PartEntry:
    """Return the entry for beginning a pattern's sequence with a later part, after all parts before it were skipped. It
    uses the link of the later part instead of the first part's link."""
    how = link.how
    if how == "not_next" or how == "not_then":
        return entry
    ways = [replace(way, how=way.how or how, guards=placed(way.guards, how)) for way in entry.ways]
    return PartEntry(tuple(ways), tuple(placed(guards, how) for guards in entry.skips))


def either(one: Predicate | None, other: Predicate | None) -> Predicate | None:
    """Return an event predicate that is true if either of two predicates is true. Either predicate can be None."""
    if one is None or other is None:
        return other if one is None else one
    return lambda event, match: one(event, match) or other(event, match)


def placed(guards: tuple[Guard, ...], how: How) -> tuple[Guard, ...]:
    return tuple(guard if guard.how is not None else replace(guard, how=how) for guard in guards)


def forbidding(link: Link) -> Change:
    """Return a function that changes a partial match's wait so that a step must not occur during the wait, or as the
    next event."""
    assert isinstance(link.to, On)
    unwanted = (link.to,)
    if link.how == "not_next":
        return lambda wait: replace(
            wait, how="end_next" if wait.how == "end" else wait.how, not_now=unwanted + wait.not_now
        )
    return lambda wait: replace(wait, how="end_within" if wait.how == "end" else wait.how, never=unwanted + wait.never)


def guarding(guards: tuple[Guard, ...]) -> Change:
    """Return a function that changes a partial match's wait so that greedy repetitions have precedence over it."""
    return lambda wait: replace(wait, guards=(*wait.guards, *guards)) if guards else wait
