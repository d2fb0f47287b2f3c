"""Patterns expanded for `brute.py`: each choice of alternatives, orders and repetitions gives a *row* of consecutive
parts, with the rules for the events between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple, TypeGuard

from penstock.cep.match import Match
from penstock.cep.pattern import Absent, AllOf, AnyOf, Every, Link, On, Pattern, Repeated, Sequence

Steps = tuple[On, ...]
Test = Callable[[Any, Match], bool]
ROWS_MAX = 20_000


class TooMany(Exception):
    """The pattern has more rows than `ROWS_MAX`."""


class Greedy(NamedTuple):
    """A greedy repetition that was ended, or omitted. It could continue with the next event alone if `how` is next."""

    step: On
    how: str | None
    stop: Test | None


class Rival(NamedTuple):
    """A step that is waited for at the same time, until an event calls it off."""

    step: On
    never: Steps = ()
    stops: tuple[Test, ...] = ()


@dataclass(frozen=True)
class Between:
    """Rules for the events from one part of a row to the next. Without `how` the part follows as its group does."""

    how: str | None = None
    rivals: tuple[Rival, ...] = ()
    """Steps that are waited for at the same time: with `then` the first event that fits one of them is taken."""
    quiet: tuple[Absent, ...] = ()
    """Absences that are waited for at the same time."""
    never: Steps = ()
    not_next: Steps = ()
    stops: tuple[Test, ...] = ()
    greedy: tuple[Greedy, ...] = ()
    skips: bool = False
    """Whether a part was left out here."""

    def joined(self, other: Between) -> Between:
        return Between(
            other.how or self.how,
            other.rivals,
            other.quiet,
            self.never + other.never,
            self.not_next + other.not_next,
            self.stops + other.stops,
            self.greedy + other.greedy,
            self.skips or other.skips,
        )


@dataclass(frozen=True)
class Part:
    """One condition to be met: an event for the only step, a chain of events for the steps of an `every`, or an
    absence. `opens` is the first part of an `all_of`, `inside` a later one; `silences` are the absences of that which
    have a time. `lap` counts the occurrences of an absence that is repeated without a limit, from the smallest number
    of occurrences on."""

    steps: Steps = ()
    absent: Absent | None = None
    is_every: bool = False
    opens: bool = False
    inside: bool = False
    silences: Steps = ()
    lap: int = 0


@dataclass(frozen=True)
class Row:
    """Parts and the rules between them: one rule more than there are parts, for the events before and after them."""

    parts: tuple[Part, ...]
    between: tuple[Between, ...]

    def then(self, other: Row) -> Row:
        joined = self.between[-1].joined(other.between[0])
        return Row(self.parts + other.parts, (*self.between[:-1], joined, *other.between[1:]))

    def before(self, **changes: Any) -> Row:
        return Row(self.parts, (replace(self.between[0], **changes), *self.between[1:]))

    def after(self, **changes: Any) -> Row:
        return Row(self.parts, (*self.between[:-1], replace(self.between[-1], **changes)))

    def counted(self, lap: int) -> Row:
        return Row((*self.parts[:-1], replace(self.parts[-1], lap=lap)), self.between)

    @cached_property
    def takes(self) -> int:
        return sum(len(part.steps) for part in self.parts)

    @cached_property
    def lasts(self) -> timedelta:
        """The least time that it takes."""
        times = [part.absent.time for part in self.parts if part.absent is not None and not part.inside]
        return sum((time for time in times if time is not None), timedelta(0))


EMPTY = Row((), (Between(),))


@dataclass(frozen=True)
class Writer:
    """Expands a pattern, as far as there are events and time for it."""

    events: int
    within: timedelta | None

    def kept(self, rows: Iterator[Row]) -> list[Row]:
        short_rows = []
        for row in rows:
            if row.takes <= self.events and (self.within is None or row.lasts <= self.within):
                short_rows.append(row)
            if len(short_rows) > ROWS_MAX:
                raise TooMany
        return short_rows

    def rows(self, pattern: Pattern, behind: Steps = ()) -> list[Row]:
        """Return the rows of a pattern. `behind` are the steps of a `not_then` right after it."""
        if isinstance(pattern, On):
            return [Row((Part((pattern,)),), (Between(rivals=(Rival(pattern),)), Between()))]
        if isinstance(pattern, Absent):
            return [Row((Part(absent=pattern),), (Between(), Between()))]
        if isinstance(pattern, Every):
            steps = tuple(in_order(pattern.of))
            return [Row((Part(steps, is_every=True),), (Between(rivals=(Rival(steps[0]),)), Between()))]
        if isinstance(pattern, Sequence):
            return self.sequence(pattern, behind)
        if isinstance(pattern, AnyOf):
            return self.kept(self.any_of(pattern, behind))
        if isinstance(pattern, AllOf):
            return self.kept(self.all_of(pattern))
        assert isinstance(pattern, Repeated)
        return self.kept(self.repeated(pattern, behind))

    def sequence(self, pattern: Sequence, behind: Steps) -> list[Row]:
        rows = self.rows(pattern.first, forbidden(pattern.links, behind))
        for number, link in enumerate(pattern.links, start=1):
            if link.how in ("not_then", "not_next"):
                assert isinstance(link.to, On)
                rule = Between(never=(link.to,)) if link.how == "not_then" else Between(not_next=(link.to,))
                unwanted = Row((), (rule,))
                rows = [row.then(unwanted) for row in rows]
            else:
                following = [
                    follows(row, link) for row in self.rows(link.to, forbidden(pattern.links[number:], behind))
                ]
                rows = self.kept(row.then(next_row) for row in rows for next_row in following)
        return rows

    def any_of(self, pattern: AnyOf, behind: Steps) -> Iterator[Row]:
        """Combine the first steps: the one that begins first ends the wait for the others."""
        rivals, quiet = begin(pattern), begin_absences(pattern)
        for part in pattern.of:
            for row in self.rows(part, behind):
                yield row if row.between[0].skips else row.before(rivals=rivals, quiet=quiet)

    def all_of(self, pattern: AllOf) -> Iterator[Row]:
        """Combine an event for each step and the time of each absence, in any order."""
        never, silences = untimed(pattern), tuple(part.step for part in pattern.of if is_timed(part))
        needed = [part for part in pattern.of if not (isinstance(part, Absent) and part.time is None)]
        for order in permutations(needed):
            row = EMPTY
            for number, part in enumerate(order):
                rivals = tuple(Rival(step) for step in order[number:] if isinstance(step, On))
                rule = Between("then" if number else None, rivals, never=never)
                single = self.rows(part)[0].parts[0]
                single = replace(single, opens=number == 0, inside=number > 0, silences=silences)
                row = row.then(Row((single,), (rule, Between())))
            yield row

    def repeated(self, pattern: Repeated, behind: Steps) -> Iterator[Row]:
        stops = () if pattern.stop is None else (pattern.stop,)
        if pattern.optionally:
            assert not pattern.is_greedy or isinstance(pattern.of, On)
            left = (Greedy(pattern.of, None, pattern.stop),) if pattern.is_greedy else ()  # type: ignore[arg-type]
            yield Row((), (Between(greedy=left, skips=True),))
        once = self.rows(pattern.of, behind)
        again = [Row(row.parts, (again_rule(row.between[0], pattern, behind, stops), *row.between[1:])) for row in once]
        rows, times = [row.before(stops=stops + row.between[0].stops) for row in once], 1
        while rows:
            if times >= pattern.low:
                if pattern.high is None and isinstance(pattern.of, Absent):
                    rows = [row.counted(times - pattern.low + 1) for row in rows]
                for row in rows:
                    left = ()
                    if pattern.is_greedy and times != pattern.high:
                        left = (Greedy(pattern.of, pattern.how, pattern.stop),)  # type: ignore[arg-type]
                    yield row.after(greedy=row.between[-1].greedy + left)
            if times == pattern.high:
                return
            rows, times = self.kept(row.then(next_row) for row in rows for next_row in again), times + 1


def again_rule(rule: Between, pattern: Repeated, behind: Steps, stops: tuple[Test, ...]) -> Between:
    how = rule.how or pattern.how
    greedy = tuple(repetition._replace(how=repetition.how or pattern.how) for repetition in rule.greedy)
    return replace(rule, how=how, never=rule.never + behind, stops=stops + rule.stops, greedy=greedy)


def follows(row: Row, link: Link) -> Row:
    greedy = tuple(repetition._replace(how=repetition.how or link.how) for repetition in row.between[0].greedy)
    return row.before(how=row.between[0].how or link.how, greedy=greedy)


def forbidden(links: tuple[Link, ...], behind: Steps) -> Steps:
    """Return the steps of each `not_then` right after a part, given the links after it."""
    steps: Steps = ()
    for link in links:
        if link.how not in ("not_next", "not_then"):
            return steps
        if link.how == "not_then":
            assert isinstance(link.to, On)
            steps += (link.to,)
    return steps + behind


def begin(pattern: Pattern) -> tuple[Rival, ...]:
    """Return the steps with which it begins if nothing is left out."""
    if isinstance(pattern, On):
        return (Rival(pattern),)
    if isinstance(pattern, Absent):
        return ()
    if isinstance(pattern, AnyOf):
        return tuple(rival for part in pattern.of for rival in begin(part))
    if isinstance(pattern, AllOf):
        return tuple(rival._replace(never=untimed(pattern)) for part in pattern.of for rival in begin(part))
    rivals = begin(pattern.parts()[0])
    if isinstance(pattern, Repeated) and pattern.stop is not None:
        return tuple(rival._replace(stops=(*rival.stops, pattern.stop)) for rival in rivals)
    return rivals


def begin_absences(pattern: Pattern) -> tuple[Absent, ...]:
    """Return the absences with which it begins."""
    if isinstance(pattern, Absent):
        return (pattern,)
    if isinstance(pattern, On | AllOf):
        return ()
    parts = pattern.of if isinstance(pattern, AnyOf) else pattern.parts()[:1]
    return tuple(absence for part in parts for absence in begin_absences(part))


def is_timed(part: Pattern) -> TypeGuard[Absent]:
    return isinstance(part, Absent) and part.time is not None


def untimed(pattern: AllOf) -> Steps:
    """Return the steps that must not come before an `all_of` is complete."""
    return tuple(part.step for part in pattern.of if isinstance(part, Absent) and part.time is None)


def in_order(pattern: Pattern) -> Iterator[On]:
    """Yield the steps inside an `every`, in order."""
    if isinstance(pattern, On):
        yield pattern
    for part in pattern.parts():
        for _ in range(pattern.low if isinstance(pattern, Repeated) else 1):
            yield from in_order(part)
