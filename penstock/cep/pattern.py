"""A pattern as a value: what to look for, in which order, how often. Nothing here runs; `plan.py` reads these.

    probe = on("probe", Payment, lambda p, m: p.amount < 1)
    spend = on("spend", Payment, lambda p, m: p.amount > 500 and p.country != m["probe"].country)
    probe.times(2).then(spend)

Each is frozen and made of parts with names, so that another front (a text) can make the same values. Nothing is refused
here either: `problems.py` tells all that is wrong at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from penstock.cep.match import Match
from penstock.schema import Event

Predicate = Callable[[Any, Match], bool]
How = Literal["next", "then", "then_any"]
Join = Literal["next", "then", "then_any", "not_next", "not_then"]
E = TypeVar("E", bound=Event)


class Pattern:
    """Something to look for. A step, or several of them put together: wherever a step may stand, a pattern may."""

    def next(self, following: Pattern) -> Sequence:
        """And then, as the very next event, that."""
        return self._joined("next", following)

    def then(self, following: Pattern) -> Sequence:
        """And then that, whatever else comes between: the first event that fits."""
        return self._joined("then", following)

    def then_any(self, following: Pattern) -> Sequence:
        """And then that, whatever comes between: every event that fits, each in a match of its own."""
        return self._joined("then_any", following)

    def not_next(self, unwanted: On) -> Sequence:
        """And not, as the very next event, that."""
        return self._joined("not_next", unwanted)

    def not_then(self, unwanted: On) -> Sequence:
        """And not that, until what follows; at the end of a pattern, until its `within` is over."""
        return self._joined("not_then", unwanted)

    def times(self, low: int, high: int | None = None) -> Repeated:
        """So often; or from `low` to `high` times."""
        return replace(self._repeated(), low=low, high=low if high is None else high)

    def at_least(self, low: int) -> Repeated:
        """So often or more."""
        return replace(self._repeated(), low=low, high=None)

    def optional(self) -> Repeated:
        """Or not at all."""
        return replace(self._repeated(), optionally=True)

    def _joined(self, how: Join, to: Pattern) -> Sequence:
        return Sequence(self, (Link(how, to),))

    def _repeated(self) -> Repeated:
        return Repeated(self)

    def parts(self) -> tuple[Pattern, ...]:
        """The patterns that it is made of, in order."""
        return ()

    def steps(self) -> Iterator[On]:
        """Its steps, those that must not come among them, in order."""
        for part in self.parts():
            yield from part.steps()


@dataclass(frozen=True)
class On(Pattern):
    """One event of a class for which the predicate holds, which is given the event and what has matched so far."""

    name: str
    event: type[Event]
    predicate: Predicate | None = None

    def steps(self) -> Iterator[On]:
        yield self


@dataclass(frozen=True)
class Absent(Pattern):
    """That such an event does not come for a time, counted from what is before it; at the beginning of a pattern, from
    the last such event, or the first event of the key. Without a time, in an `all_of`: until that is complete."""

    step: On
    time: timedelta | None

    def parts(self) -> tuple[Pattern, ...]:
        return (self.step,)


@dataclass(frozen=True)
class Link:
    """How a part of a sequence follows what is before it."""

    how: Join
    to: Pattern


@dataclass(frozen=True)
class Sequence(Pattern):
    """One after the other."""

    first: Pattern
    links: tuple[Link, ...]

    def _joined(self, how: Join, to: Pattern) -> Sequence:
        return Sequence(self.first, (*self.links, Link(how, to)))

    def parts(self) -> tuple[Pattern, ...]:
        return (self.first, *(link.to for link in self.links))


@dataclass(frozen=True)
class AllOf(Pattern):
    """An event for each step, in any order."""

    of: tuple[Pattern, ...]

    def parts(self) -> tuple[Pattern, ...]:
        return self.of


@dataclass(frozen=True)
class AnyOf(Pattern):
    """One of them: the first that begins."""

    of: tuple[Pattern, ...]

    def parts(self) -> tuple[Pattern, ...]:
        return self.of


@dataclass(frozen=True)
class Repeated(Pattern):
    """From `low` to `high` times (None: without end), or also not at all. `how` is between one time and the next.

    `is_reluctant` counts only where one of several matches is preferred: then it goes on rather than once more."""

    of: Pattern
    low: int = 1
    high: int | None = 1
    how: How = "then"
    is_greedy: bool = False
    optionally: bool = False
    stop: Predicate | None = None
    is_reluctant: bool = False

    def optional(self) -> Repeated:
        return replace(self, optionally=True)

    def _repeated(self) -> Repeated:
        """What has a number already is a group, of which `times` and `at_least` say how often it comes."""
        return self if self.low == self.high == 1 else Repeated(self)

    def greedy(self) -> Repeated:
        """As often as it goes: while an event fits once more, it is taken so, and nothing else is tried with it."""
        return replace(self, is_greedy=True)

    def until(self, stop: Callable[[Any, Match], bool]) -> Repeated:
        """No more of it from the first event for which `stop` holds."""
        return replace(self, stop=stop)

    def consecutive(self) -> Repeated:
        """Each time right after the one before, with no other event between."""
        return replace(self, how="next")

    def combinations(self) -> Repeated:
        """Any of those that fit, also with some left out: every choice is a match."""
        return replace(self, how="then_any")

    def parts(self) -> tuple[Pattern, ...]:
        return (self.of,)


@dataclass(frozen=True)
class Every(Pattern):
    """A part that begins again each time it is complete, and not before."""

    of: Pattern

    def parts(self) -> tuple[Pattern, ...]:
        return (self.of,)


def on(name: str, event: type[E], predicate: Callable[[E, Match], bool] | None = None) -> On:
    """One event of that class for which `predicate(event, match)` holds; any one, if there is none. `match` has what
    came before it: `match["probe"]` is an event, `match.all("probe")` a list."""
    return On(name, event, predicate)


def absent(step: On, *, for_: timedelta | None = None) -> Absent:
    """That no such event comes for a time: `order.then(absent(paid, for_=timedelta(hours=1)))`. As the first step, that
    they have stopped: `absent(heartbeat, for_=timedelta(seconds=5))`. Without a time, as a part of `all_of`: that none
    comes before the other parts are complete."""
    return Absent(step, for_)


def all_of(*steps: Pattern) -> AllOf:
    """An event for each of the steps, in any order."""
    return AllOf(steps)


def every(pattern: Pattern) -> Every:
    """Each time that the pattern is complete, begin it again: `every(a.then(b)).then(c)`. While one is open, no other
    begins; those that are complete wait for what follows together."""
    return Every(pattern)


def any_of(*patterns: Pattern) -> AnyOf:
    """One of the patterns: the first that begins, or whose absence is complete. An event with which two begin begins
    both."""
    return AnyOf(patterns)
