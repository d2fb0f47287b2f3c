"""Patterns as values: the steps to find, their order, and how often they repeat. Patterns do not run themselves;
`plan.py` compiles them.

    probe = on("probe", Payment, lambda p, m: p.amount < 1)
    spend = on("spend", Payment, lambda p, m: p.amount > 500 and p.country != m["probe"].country)
    probe.times(2).then(spend)

Each pattern is frozen and consists of named parts, so SQL text can be turned into the same values. This module does not
reject invalid patterns, so that `problems.py` can report all errors at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from penstock.cep.match import Match
from penstock.core.schema import Event

Predicate = Callable[[Any, Match], bool]
How = Literal["next", "then", "then_any"]
Join = Literal["next", "then", "then_any", "not_next", "not_then"]
E = TypeVar("E", bound=Event)


class Pattern:
    """A pattern: one step, or a combination of several. A pattern can be used wherever a step can."""

    def next(self, following: Pattern) -> Sequence:
        """Require that the very next event matches the following pattern."""
        return self._joined("next", following)

    def then(self, following: Pattern) -> Sequence:
        """Require the following pattern later, after any number of other events. The first event that fits is
        taken."""
        return self._joined("then", following)

    def then_any(self, following: Pattern) -> Sequence:
        """Require the following pattern later, after any number of other events. Every event that fits is taken, each
        in a separate match."""
        return self._joined("then_any", following)

    def not_next(self, unwanted: On) -> Sequence:
        """Require that the very next event does not match `unwanted`."""
        return self._joined("not_next", unwanted)

    def not_then(self, unwanted: On) -> Sequence:
        """Require that no event matches `unwanted` before the next step or, at the end of a pattern, before `within`
        ends."""
        return self._joined("not_then", unwanted)

    def times(self, low: int, high: int | None = None) -> Repeated:
        """Repeat the pattern `low` times, or from `low` to `high` times."""
        return replace(self._repeated(), low=low, high=low if high is None else high)

    def at_least(self, low: int) -> Repeated:
        """Repeat the pattern `low` times or more."""
        return replace(self._repeated(), low=low, high=None)

    def optional(self) -> Repeated:
        """Make the pattern optional."""
        return replace(self._repeated(), optionally=True)

    def _joined(self, how: Join, to: Pattern) -> Sequence:
        return Sequence(self, (Link(how, to),))

    def _repeated(self) -> Repeated:
        return Repeated(self)

    def parts(self) -> tuple[Pattern, ...]:
        """Return the parts of this pattern, in order."""
        return ()

    def steps(self) -> Iterator[On]:
        """Yield the steps, including unwanted ones, in order."""
        for part in self.parts():
            yield from part.steps()


@dataclass(frozen=True)
class On(Pattern):
    """A step that matches an event of one class if the predicate is true. The predicate is called with the event and
    the match so far."""

    name: str
    event: type[Event]
    predicate: Predicate | None = None

    def steps(self) -> Iterator[On]:
        yield self


@dataclass(frozen=True)
class Absent(Pattern):
    """An absence: for some time, no event matches `step`. The time is counted from the previous step or, at the
    beginning of a pattern, from the last such event or the key's first event. An absence in an `all_of` does not need a
    time; without one, it lasts until the `all_of` is complete.
    """

    step: On
    time: timedelta | None

    def parts(self) -> tuple[Pattern, ...]:
        return (self.step,)


@dataclass(frozen=True)
class Link:
    """A part of a pattern's sequence, and how it follows the previous part."""

    how: Join
    to: Pattern


@dataclass(frozen=True)
class Sequence(Pattern):
    """A sequence of patterns."""

    first: Pattern
    links: tuple[Link, ...]

    def _joined(self, how: Join, to: Pattern) -> Sequence:
        return Sequence(self.first, (*self.links, Link(how, to)))

    def parts(self) -> tuple[Pattern, ...]:
        return (self.first, *(link.to for link in self.links))


@dataclass(frozen=True)
class AllOf(Pattern):
    """A pattern part: one event for each step, in any order."""

    of: tuple[Pattern, ...]

    def parts(self) -> tuple[Pattern, ...]:
        return self.of


@dataclass(frozen=True)
class AnyOf(Pattern):
    """Alternatives: the first one that begins is taken."""

    of: tuple[Pattern, ...]

    def parts(self) -> tuple[Pattern, ...]:
        return self.of


@dataclass(frozen=True)
class Repeated(Pattern):
    """A pattern part that repeats from `low` to `high` times (None means no limit). With `optionally`, zero times are
    also allowed. `how` is the link between repetitions.

    `is_reluctant` matters only if one of several matches is preferred: it means that continuing with the next step is
    preferred to another repetition.
    """

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
        """Return the pattern as a repetition. If it already has a count, it becomes a group, which `times` and
        `at_least` repeat."""
        return self if self.low == self.high == 1 else Repeated(self)

    def greedy(self) -> Repeated:
        """Repeat as often as possible: an event that fits the repetition is always used for the repetition, and for
        nothing else."""
        return replace(self, is_greedy=True)

    def until(self, stop: Callable[[Any, Match], bool]) -> Repeated:
        """End the repetition at the first event for which `stop` is true."""
        return replace(self, stop=stop)

    def consecutive(self) -> Repeated:
        """Require that repetitions follow each other directly, with no other events in between."""
        return replace(self, how="next")

    def combinations(self) -> Repeated:
        """Take any combination of the events that fit. Each combination is a separate match."""
        return replace(self, how="then_any")

    def parts(self) -> tuple[Pattern, ...]:
        return (self.of,)


@dataclass(frozen=True)
class Every(Pattern):
    """A part that begins again each time it is complete, but not earlier."""

    of: Pattern

    def parts(self) -> tuple[Pattern, ...]:
        return (self.of,)


def on(name: str, event: type[E], predicate: Callable[[E, Match], bool] | None = None) -> On:
    """Create a step, which matches one event of the class if `predicate(event, match)` is true. Without a predicate,
    any event of the class fits. `match` contains the events matched so far: `match["probe"]` is an event, and
    `match.all("probe")` is a list."""
    return On(name, event, predicate)


def absent(step: On, *, for_: timedelta | None = None) -> Absent:
    """Create an absence: no such event occurs for a time, as in `order.then(absent(paid, for_=timedelta(hours=1)))`. If
    it is the first step, it means that such events have stopped, as in `absent(heartbeat, for_=timedelta(seconds=5))`.
    If it is a part of `all_of` and has no time, it means that no such event occurs before the other parts are
    complete."""
    return Absent(step, for_)


def all_of(*steps: Pattern) -> AllOf:
    """Match one event for each step, in any order."""
    return AllOf(steps)


def every(pattern: Pattern) -> Every:
    """Begin the pattern again each time it is complete, as in `every(a.then(b)).then(c)`. No other repetition begins
    while one is incomplete. All complete repetitions wait together for the next step."""
    return Every(pattern)


def any_of(*patterns: Pattern) -> AnyOf:
    """Match one of the patterns: the first one that begins, or whose absence is complete. If two patterns begin with
    the same event, both begin."""
    return AnyOf(patterns)
