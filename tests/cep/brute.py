"""What docs/patterns.md says a match is, tried on everything: short lists only, for the cost is exponential.

First the pattern is written out: every choice of alternatives, orders and numbers of times gives a *row* of parts, one
after the other, with the rules for what may stand between two of them. Then every choice of events for a row is a
candidate, and `Judge` says whether the sentences of the page hold for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

from penstock.cep.match import Match
from penstock.cep.pattern import Absent, AllOf, AnyOf, Every, Link, On, Pattern, Repeated, Sequence
from penstock.cep.skip import Skip

Steps = tuple[On, ...]
Test = Callable[[Any, Match], bool]
ROWS_MAX = 20_000


class TooMany(Exception):
    """The pattern has more rows than `ROWS_MAX`."""


class Greedy(NamedTuple):
    """A greedy repetition that was left, or left out. It could go on with the next event alone if `how` is next."""

    step: On
    how: str | None
    stop: Test | None


@dataclass(frozen=True)
class Between:
    """Rules for the events from one part of a row to the next. Without `how` the part follows as its group does."""

    how: str | None = None
    rivals: Steps = ()
    """Steps that are waited for at the same time: with `then` the first event that fits one of them is taken."""
    quiet: Absent | None = None
    """An absence that is waited for at the same time."""
    never: Steps = ()
    not_next: Steps = ()
    stops: tuple[Test, ...] = ()
    greedy: tuple[Greedy, ...] = ()
    skips: bool = False
    """A part was left out here."""

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
    """One thing that must come true: an event for the only step, a chain of events for the steps of an `every`, or an
    absence. `opens` is the first part of an `all_of`, `inside` a later one."""

    steps: Steps = ()
    absent: Absent | None = None
    is_every: bool = False
    opens: bool = False
    inside: bool = False


@dataclass(frozen=True)
class Row:
    """Parts and what is between them: one rule more than there are parts, for what is before and after them."""

    parts: tuple[Part, ...]
    between: tuple[Between, ...]

    def then(self, other: Row) -> Row:
        joined = self.between[-1].joined(other.between[0])
        return Row(self.parts + other.parts, (*self.between[:-1], joined, *other.between[1:]))

    def before(self, **changes: Any) -> Row:
        return Row(self.parts, (replace(self.between[0], **changes), *self.between[1:]))

    def after(self, **changes: Any) -> Row:
        return Row(self.parts, (*self.between[:-1], replace(self.between[-1], **changes)))

    @cached_property
    def takes(self) -> int:
        return sum(len(part.steps) for part in self.parts)

    @cached_property
    def lasts(self) -> timedelta:
        """The least time that it takes."""
        times = [part.absent.time for part in self.parts if part.absent is not None and not part.inside]
        return sum((each for each in times if each is not None), timedelta(0))


EMPTY = Row((), (Between(),))


@dataclass(frozen=True)
class Writer:
    """Writes a pattern out, as far as there are events and time for it."""

    events: int
    within: timedelta | None

    def kept(self, rows: Iterator[Row]) -> list[Row]:
        made = []
        for row in rows:
            if row.takes <= self.events and (self.within is None or row.lasts <= self.within):
                made.append(row)
            if len(made) > ROWS_MAX:
                raise TooMany
        return made

    def rows(self, pattern: Pattern, behind: Steps = ()) -> list[Row]:
        """`behind` are the steps of a `not_then` right behind the pattern."""
        if isinstance(pattern, On):
            return [Row((Part((pattern,)),), (Between(rivals=(pattern,)), Between()))]
        if isinstance(pattern, Absent):
            return [Row((Part(absent=pattern),), (Between(), Between()))]
        if isinstance(pattern, Every):
            steps = tuple(in_order(pattern.of))
            return [Row((Part(steps, is_every=True),), (Between(rivals=steps[:1]), Between()))]
        if isinstance(pattern, Sequence):
            return self.sequence(pattern, behind)
        if isinstance(pattern, AnyOf):
            return self.kept(self.any_of(pattern, behind))
        if isinstance(pattern, AllOf):
            return self.kept(self.all_of(pattern))
        assert isinstance(pattern, Repeated)
        return self.kept(self.repeated(pattern, behind))

    def sequence(self, pattern: Sequence, behind: Steps) -> list[Row]:
        made = self.rows(pattern.first, forbidden(pattern.links, behind))
        for number, link in enumerate(pattern.links, start=1):
            if link.how in ("not_then", "not_next"):
                assert isinstance(link.to, On)
                rule = Between(never=(link.to,)) if link.how == "not_then" else Between(not_next=(link.to,))
                unwanted = Row((), (rule,))
                made = [row.then(unwanted) for row in made]
            else:
                following = [
                    follows(row, link) for row in self.rows(link.to, forbidden(pattern.links[number:], behind))
                ]
                made = self.kept(row.then(each) for row in made for each in following)
        return made

    def any_of(self, pattern: AnyOf, behind: Steps) -> Iterator[Row]:
        """What begins first ends the wait for the others."""
        steps = begin(pattern)
        quiet = next((each for part in pattern.of if (each := begin_absence(part)) is not None), None)
        for part in pattern.of:
            for row in self.rows(part, behind):
                yield row if row.between[0].skips else row.before(rivals=steps, quiet=quiet)

    def all_of(self, pattern: AllOf) -> Iterator[Row]:
        """An event for each step and the time of each absence, in any order."""
        never = tuple(part.step for part in pattern.of if isinstance(part, Absent) and part.time is None)
        needed = [part for part in pattern.of if not (isinstance(part, Absent) and part.time is None)]
        for order in permutations(needed):
            made = EMPTY
            for number, part in enumerate(order):
                rivals = tuple(each for each in order[number:] if isinstance(each, On))
                rule = Between("then" if number else None, rivals, never=never)
                single = replace(self.rows(part)[0].parts[0], opens=number == 0, inside=number > 0)
                made = made.then(Row((single,), (rule, Between())))
            yield made

    def repeated(self, pattern: Repeated, behind: Steps) -> Iterator[Row]:
        stops = () if pattern.stop is None else (pattern.stop,)
        if pattern.optionally:
            assert not pattern.is_greedy or isinstance(pattern.of, On)
            left = (Greedy(pattern.of, None, pattern.stop),) if pattern.is_greedy else ()  # type: ignore[arg-type]
            yield Row((), (Between(greedy=left, skips=True),))
        once = self.rows(pattern.of, behind)
        again = [Row(row.parts, (again_rule(row.between[0], pattern, behind, stops), *row.between[1:])) for row in once]
        made, times = [row.before(stops=stops + row.between[0].stops) for row in once], 1
        while made:
            if times >= pattern.low:
                for row in made:
                    left = ()
                    if pattern.is_greedy and times != pattern.high:
                        left = (Greedy(pattern.of, pattern.how, pattern.stop),)  # type: ignore[arg-type]
                    yield row.after(greedy=row.between[-1].greedy + left)
            if times == pattern.high:
                return
            made, times = self.kept(row.then(each) for row in made for each in again), times + 1


def again_rule(rule: Between, pattern: Repeated, behind: Steps, stops: tuple[Test, ...]) -> Between:
    how = rule.how or pattern.how
    greedy = tuple(each._replace(how=each.how or pattern.how) for each in rule.greedy)
    return replace(rule, how=how, never=rule.never + behind, stops=stops + rule.stops, greedy=greedy)


def follows(row: Row, link: Link) -> Row:
    greedy = tuple(each._replace(how=each.how or link.how) for each in row.between[0].greedy)
    return row.before(how=row.between[0].how or link.how, greedy=greedy)


def forbidden(links: tuple[Link, ...], behind: Steps) -> Steps:
    """The steps of each `not_then` right behind a part, given the links after it."""
    found: Steps = ()
    for link in links:
        if link.how not in ("not_next", "not_then"):
            return found
        if link.how == "not_then":
            assert isinstance(link.to, On)
            found += (link.to,)
    return found + behind


def begin(pattern: Pattern) -> Steps:
    """The steps with which it begins if nothing is left out."""
    if isinstance(pattern, On):
        return (pattern,)
    if isinstance(pattern, Absent):
        return ()
    if isinstance(pattern, AnyOf | AllOf):
        return tuple(step for part in pattern.of for step in begin(part))
    return begin(pattern.parts()[0])


def begin_absence(pattern: Pattern) -> Absent | None:
    if isinstance(pattern, Absent):
        return pattern
    if isinstance(pattern, On | AllOf):
        return None
    parts = pattern.of if isinstance(pattern, AnyOf) else pattern.parts()[:1]
    return next((each for part in parts if (each := begin_absence(part)) is not None), None)


def in_order(pattern: Pattern) -> Iterator[On]:
    """The steps of what stands in `every`, one after the other."""
    if isinstance(pattern, On):
        yield pattern
    for part in pattern.parts():
        for _ in range(pattern.low if isinstance(pattern, Repeated) else 1):
            yield from in_order(part)


class Found(NamedTuple):
    """A match: names of steps with the numbers of their events, when it began and when it was complete."""

    taken: tuple[tuple[str, int], ...]
    began: datetime
    ended: datetime


Numbered = tuple[tuple[int, ...], Found]
"""A match after the numbers of its events, and before those that of the event which a first absence is counted from."""


def told(matches: list[Numbered], skip: Skip) -> list[Found]:
    """Those that `skip` leaves, in the order in which they began."""
    left = sorted(matches, key=lambda each: (each[0][0], each[1].ended, each[0][-1], *each))
    kept: list[Found] = []
    while left:
        numbers, found = left.pop(0)
        kept.append(found)
        of_step = [number for name, number in found.taken if name == skip.name]
        if skip.kind == "to_first":
            first = min(of_step, default=0)
        elif skip.kind == "to_last":
            first = max(of_step, default=0)
        else:
            first = 1 + (numbers[0] if skip.kind == "to_next" else numbers[-1])
        left = [each for each in left if each[0][0] >= first]
    return kept


@dataclass(frozen=True)
class Candidate:
    """Events for the first parts of a row. `anchor` is the event that an absence at the beginning is counted from,
    `place` the first event that is not over, `since` when the last part came true; `block_place`, `block_since` the
    same at the beginning of the last `all_of`."""

    taken: tuple[tuple[str, int], ...] = ()
    anchor: int | None = None
    place: int = 0
    since: datetime | None = None
    block_place: int = 0
    block_since: datetime | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        return (*(() if self.anchor is None else (self.anchor,)), *(number for _, number in self.taken))


@dataclass(frozen=True)
class Brute:
    """All matches in a list of events that is in order of time."""

    events: list[Any]
    within: timedelta | None = None
    gap: timedelta | None = None

    def matches(self, pattern: Pattern) -> list[Numbered]:
        """Every match."""
        found = {}
        for row in Writer(len(self.events), self.within).rows(pattern):
            for candidate in self.candidates(row):
                ended = self.ended(row.between[-1], candidate)
                if ended is not None:
                    numbers = candidate.numbers
                    made = numbers, Found(candidate.taken, self.events[numbers[0]].at, ended)
                    found[made] = made
        return list(found.values())

    def candidates(self, row: Row) -> list[Candidate]:
        """Every choice of events for a row that no rule is against."""
        if not row.parts:
            return []
        found = list(self.begun(row.parts[0], row.between[0]))
        for part, rule in zip(row.parts[1:], row.between[1:-1], strict=True):
            found = [each for candidate in found for each in self.further(part, rule, candidate)]
        return found

    def begun(self, part: Part, rule: Between) -> Iterator[Candidate]:
        """Each event may begin a match, an absence is counted from what it does not want or the first event."""
        if part.is_every:
            for chain in self.chains(part.steps, 0, Candidate(), is_first=True):
                yield self.taking(Candidate(), part, chain)
            return
        for number, event in enumerate(self.events):
            if part.absent is not None:
                if number == 0 or self.fits(part.absent.step, number, ()):
                    start = Candidate(anchor=number, place=number + 1, since=event.at)
                    yield from self.silent(part, Between(), start)
            elif self.fits(part.steps[0], number, ()) and self.may_begin(rule, number):
                yield self.taking(Candidate(), part, (number,))

    def may_begin(self, rule: Between, number: int) -> bool:
        """The event is no stop and none for a greedy repetition that was left out; what must not have come has not."""
        if any(self.fits(step, each, ()) for step in rule.never for each in range(number + 1)):
            return False
        greedy = tuple(each._replace(how="next") for each in rule.greedy)
        return self.allows(replace(rule, never=(), greedy=greedy), range(number, number + 1), ())

    def further(self, part: Part, rule: Between, candidate: Candidate) -> Iterator[Candidate]:
        if part.opens:
            candidate = replace(candidate, block_place=candidate.place, block_since=candidate.since)
        if part.absent is not None:
            yield from self.silent(part, rule, candidate)
        elif part.is_every:
            chains = self.chains(part.steps, candidate.place, candidate)
            if chains and self.may_take(rule, candidate, chains[0][0]):
                yield from (self.taking(candidate, part, chain) for chain in chains)
        else:
            for number in range(candidate.place, len(self.events)):
                if self.fits(part.steps[0], number, candidate.taken) and self.may_take(rule, candidate, number):
                    yield self.taking(candidate, part, (number,))

    def taking(self, candidate: Candidate, part: Part, numbers: tuple[int, ...]) -> Candidate:
        added = tuple((step.name, number) for step, number in zip(part.steps, numbers, strict=True))
        taken = candidate.taken + added
        return replace(candidate, taken=taken, place=numbers[-1] + 1, since=self.events[numbers[-1]].at)

    def may_take(self, rule: Between, candidate: Candidate, number: int) -> bool:
        deadline, window = self.deadline(candidate), range(candidate.place, number + 1)
        if deadline is not None and self.events[number].at > deadline:
            return False
        if rule.how == "next" and number != candidate.place:
            return False
        if rule.how == "then" and any(self.fits_any(rule.rivals, each, candidate.taken) for each in window[:-1]):
            return False
        if rule.quiet is not None and self.was_quiet(rule.quiet, candidate, number):
            return False
        return self.allows(rule, window, candidate.taken)

    def allows(self, rule: Between, window: range, taken: tuple[tuple[str, int], ...]) -> bool:
        """Whether these events may come: nothing that must not, no stop, none that a greedy repetition would take."""
        seen = self.seen(taken)
        if any(self.fits_any(rule.never, number, taken) for number in window):
            return False
        if len(window) and self.fits_any(rule.not_next, window[0], taken):
            return False
        if any(stop(self.events[number], seen) for stop in rule.stops for number in window):
            return False
        return not any(self.goes_on(greedy, window, taken) for greedy in rule.greedy)

    def goes_on(self, greedy: Greedy, window: range, taken: tuple[tuple[str, int], ...]) -> bool:
        for number in window:
            if greedy.stop is not None and greedy.stop(self.events[number], self.seen(taken)):
                return False
            if self.fits(greedy.step, number, taken):
                return True
            if greedy.how == "next":
                return False
        return False

    def silent(self, part: Part, rule: Between, candidate: Candidate) -> Iterator[Candidate]:
        """An absence, counted from what is before it, or before the `all_of` that it is in."""
        absent, is_block = part.absent, part.opens or part.inside
        since = candidate.block_since if is_block else candidate.since
        first = candidate.block_place if is_block else candidate.place
        assert absent is not None
        assert absent.time is not None
        assert since is not None
        assert candidate.since is not None
        due, deadline = since + absent.time, self.deadline(candidate)
        if deadline is not None and due > deadline:
            return
        if any(self.events[number].at >= due for _, number in candidate.taken if number >= first):
            return  # then the absence was complete before that event
        if is_block and candidate.since > due:
            return
        passed = [number for number in range(first, len(self.events)) if self.events[number].at < due]
        for number in passed:
            before = tuple(each for each in candidate.taken if each[1] < number)
            if self.fits(absent.step, number, before):
                return
        window = range(candidate.place, first + len(passed))
        if any(self.fits_any(rule.rivals, number, candidate.taken) for number in window):
            return
        if self.allows(rule, window, candidate.taken):
            yield replace(candidate, place=first + len(passed), since=due)

    def was_quiet(self, absent: Absent, candidate: Candidate, number: int) -> bool:
        """Whether an absence was complete before an event."""
        assert candidate.since is not None
        assert absent.time is not None
        due, deadline = candidate.since + absent.time, self.deadline(candidate)
        if self.events[number].at < due or (deadline is not None and due > deadline):
            return False
        passed = [each for each in range(candidate.place, number) if self.events[each].at < due]
        return not any(self.fits(absent.step, each, candidate.taken) for each in passed)

    def chains(self, steps: Steps, start: int, candidate: Candidate, is_first: bool = False) -> list[tuple[int, ...]]:
        """The events of each `every`, one begun after the other. One whose time is over makes room for the next, if
        there is nothing before it."""
        found: list[tuple[int, ...]] = []
        chain: tuple[int, ...] = ()
        for number in range(start, len(self.events)):
            taken = candidate.taken + tuple((step.name, each) for step, each in zip(steps, chain, strict=False))
            deadline = self.deadline(replace(candidate, taken=taken))
            if deadline is not None and self.events[number].at > deadline:
                if not is_first:
                    return found
                chain, taken = (), ()
            if self.fits(steps[len(chain)], number, taken):
                chain = (*chain, number)
            if len(chain) == len(steps):
                found.append(chain)
                chain = ()
        return found

    def ended(self, rule: Between, candidate: Candidate) -> datetime | None:
        """When a candidate for a whole row is complete: `not_then` at the end holds until the time is over, `not_next`
        is decided by the next event. None if it is no match."""
        deadline, taken = self.deadline(candidate), candidate.taken
        rest = [
            number
            for number in range(candidate.place, len(self.events))
            if deadline is None or self.events[number].at <= deadline
        ]
        if rule.never:
            return None if any(self.fits_any(rule.never, number, taken) for number in rest) else deadline
        if rule.not_next:
            is_match = bool(rest) and not self.fits_any(rule.not_next, rest[0], taken)
            return self.events[rest[0]].at if is_match else None
        return candidate.since

    def deadline(self, candidate: Candidate) -> datetime | None:
        """The last moment for what comes next."""
        ends = []
        if self.within is not None and candidate.numbers:
            ends.append(self.events[candidate.numbers[0]].at + self.within)
        if self.gap is not None and candidate.taken:
            ends.append(self.events[candidate.taken[-1][1]].at + self.gap)
        return min(ends, default=None)

    def seen(self, taken: tuple[tuple[str, int], ...]) -> Match:
        return Match([(name, self.events[number]) for name, number in taken])

    def fits(self, step: On, number: int, taken: tuple[tuple[str, int], ...]) -> bool:
        return step.predicate is None or step.predicate(self.events[number], self.seen(taken))

    def fits_any(self, steps: Steps, number: int, taken: tuple[tuple[str, int], ...]) -> bool:
        return any(self.fits(step, number, taken) for step in steps)
