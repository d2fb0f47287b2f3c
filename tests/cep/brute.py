"""A brute-force matcher by the rules of docs/patterns.md, for short lists only: its cost is exponential.

The pattern is first expanded to rows of parts (`rows.py`). Then every choice of events for a row is a candidate, and
`Brute` decides whether the rules of the page hold for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock import cep
from penstock.cep.match import Match
from penstock.cep.pattern import Absent, On, Pattern
from penstock.cep.skip import Skip
from tests.cep.rows import Between, Greedy, Part, Rival, Row, Steps, Writer

TICK = timedelta(microseconds=1)


class BruteMatch(NamedTuple):
    """A match: names of steps with the numbers of their events, when it began and when it was complete."""

    taken: tuple[tuple[str, int], ...]
    began: datetime
    ended: datetime


Numbered = tuple[tuple[int, ...], BruteMatch]
"""A match with the numbers of its events, preceded by that of the event from which a first absence is counted."""


def _order(numbered: Numbered) -> tuple[Any, ...]:
    """Return the sort key: first events, times, last events, all events; then matches that begin with an absence."""
    numbers, match = numbered
    return numbers[0], match.ended, numbers[-1], numbers, len(match.taken), match


def reported(matches: list[Numbered], skip: Skip) -> list[BruteMatch]:
    """Return the matches that `skip` leaves, in the order in which they began."""
    left = sorted(matches, key=_order)
    kept: list[BruteMatch] = []
    while left:
        numbers, match = left.pop(0)
        kept.append(match)
        of_step = [number for name, number in match.taken if name == skip.name]
        if skip.kind == "to_first":
            first = min(of_step, default=0)
        elif skip.kind == "to_last":
            first = max(of_step, default=0)
        else:
            first = 1 + (numbers[0] if skip.kind == "to_next" else numbers[-1])
        left = [numbered for numbered in left if numbered[0][0] >= first]
    return kept


@dataclass(frozen=True)
class Candidate:
    """Events for the first parts of a row. `anchor` is the event that an absence at the beginning is counted from,
    `place` the first event that is not over, `since` when the last part came true; `block_place`, `block_since` the
    same at the beginning of the last `all_of`. `laps` counts how often a repeated absence was complete since the last
    event, and `is_left_out` means that this was once too often."""

    taken: tuple[tuple[str, int], ...] = ()
    anchor: int | None = None
    place: int = 0
    since: datetime | None = None
    block_place: int = 0
    block_since: datetime | None = None
    laps: int = 0
    is_left_out: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        return (*(() if self.anchor is None else (self.anchor,)), *(number for _, number in self.taken))


@dataclass(frozen=True)
class Brute:
    """All matches in a list of events that is in order of time."""

    events: list[Any]
    within: timedelta | None = None
    gap: timedelta | None = None
    periods: int = cep.Bounds().periods

    def matches(self, pattern: Pattern) -> list[Numbered]:
        """Return every match."""
        matches = {}
        for row in Writer(len(self.events), self.within).rows(pattern):
            for candidate in self.candidates(row):
                if candidate.is_left_out:
                    continue
                ended = self.ended(row.between[-1], candidate)
                if ended is not None:
                    numbers = candidate.numbers
                    numbered = numbers, BruteMatch(candidate.taken, self.events[numbers[0]].at, ended)
                    matches[numbered] = numbered
        return list(matches.values())

    def candidates(self, row: Row) -> list[Candidate]:
        """Return every choice of events for a row that no rule excludes."""
        if not row.parts:
            return []
        candidates = list(self.begun(row.parts[0], row.between[0]))
        for part, rule in zip(row.parts[1:], row.between[1:-1], strict=True):
            going_on = [candidate for candidate in candidates if part.lap > 1 or not candidate.is_left_out]
            candidates = [successor for candidate in going_on for successor in self.further(part, rule, candidate)]
        return candidates

    def begun(self, part: Part, rule: Between) -> Iterator[Candidate]:
        """Yield candidates: each event may begin a match; an absence is counted from an unwanted event or the first
        event."""
        if part.is_every:
            for chain in self.chains(part.steps, 0, Candidate(), is_first=True):
                yield self.taking(Candidate(), part, chain)
            return
        for number, event in enumerate(self.events):
            if part.silences:
                yield from self.begun_silent(part, rule, number)
            elif part.absent is not None:
                if number == 0 or self.fits(part.absent.step, number, ()):
                    start = Candidate(anchor=number, place=number + 1, since=event.at)
                    yield from self.silent(part, Between(), start)
            elif self.fits(part.steps[0], number, ()) and self.may_begin(rule, number):
                yield self.taking(Candidate(), part, (number,))

    def begun_silent(self, part: Part, rule: Between, number: int) -> Iterator[Candidate]:
        """Begin an `all_of` with an absence, which is counted from an unwanted event, or from the first
        event. That event may belong to one of its steps."""
        at, is_unwanted = self.events[number].at, self.fits_any(part.silences, number, ())
        start = Candidate(anchor=number, place=number + 1, since=at, block_place=number + 1, block_since=at)
        if is_unwanted or (number == 0 and not any(self.fits(rival.step, 0, ()) for rival in rule.rivals)):
            yield from self.further(part, replace(rule, how="then"), start)
        elif number == 0 and part.steps and self.fits(part.steps[0], 0, ()):
            yield self.taking(start, part, (0,))

    def may_begin(self, rule: Between, number: int) -> bool:
        """Return whether an event is not a stop, not taken by an omitted greedy repetition, and has no barred event
        before it."""
        if any(self.fits(step, index, ()) for step in rule.never for index in range(number + 1)):
            return False
        greedy = tuple(repetition._replace(how="next") for repetition in rule.greedy)
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
        if rule.how == "then" and self.is_taken(rule.rivals, window[:-1], candidate):
            return False
        if any(self.was_quiet(absence, candidate, self.events[number].at) for absence in rule.quiet):
            return False
        return self.allows(rule, window, candidate.taken)

    def is_taken(self, rivals: tuple[Rival, ...], window: range, candidate: Candidate) -> bool:
        """Return whether another step takes one of these events."""
        for rival in rivals:
            for number in window:
                stops = any(stop(self.events[number], self.seen(candidate.taken)) for stop in rival.stops)
                if stops or self.fits_any(rival.never, number, candidate.taken):
                    break
                if self.fits(rival.step, number, candidate.taken):
                    return True
        return False

    def allows(self, rule: Between, window: range, taken: tuple[tuple[str, int], ...]) -> bool:
        """Return whether these events may come: none is unwanted, a stop, or one that a greedy repetition would
        take."""
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
        """Extend by an absence, counted from the part before it, or before the `all_of` that contains it."""
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
            before = tuple(pair for pair in candidate.taken if pair[1] < number)
            if self.fits(absent.step, number, before):
                return
        window = range(candidate.place, first + len(passed))
        if self.is_taken(rule.rivals, window, candidate):
            return
        if any(self.was_quiet(absence, candidate, due - TICK) for absence in rule.quiet):
            return
        if self.allows(rule, window, candidate.taken):
            place = first + len(passed)
            laps = candidate.laps + 1 if part.lap > 1 and place == candidate.place else 1
            is_left_out = part.lap > 0 and laps > self.periods and not self.is_last(place, due + absent.time, deadline)
            yield replace(candidate, place=place, since=due, laps=laps, is_left_out=is_left_out)

    def is_last(self, place: int, following: datetime, deadline: datetime | None) -> bool:
        """Return whether an absence cannot be complete once more before the next event."""
        ends = [deadline, *(event.at for event in self.events[place : place + 1])]
        return any(end is not None and following > end for end in ends)

    def was_quiet(self, absent: Absent, candidate: Candidate, time: datetime) -> bool:
        """Return whether an absence was complete by then, before the events of that time."""
        assert candidate.since is not None
        assert absent.time is not None
        due, deadline = candidate.since + absent.time, self.deadline(candidate)
        if time < due or (deadline is not None and due > deadline):
            return False
        passed = [number for number in range(candidate.place, len(self.events)) if self.events[number].at < due]
        return not any(self.fits(absent.step, number, candidate.taken) for number in passed)

    def chains(self, steps: Steps, start: int, candidate: Candidate, is_first: bool = False) -> list[tuple[int, ...]]:
        """Return the events of each `every`, one begun after the other. One whose time is over makes room for the next,
        if there is nothing before it."""
        chains: list[tuple[int, ...]] = []
        chain: tuple[int, ...] = ()
        for number in range(start, len(self.events)):
            taken = candidate.taken + tuple(
                (step.name, event_number) for step, event_number in zip(steps, chain, strict=False)
            )
            deadline = self.deadline(replace(candidate, taken=taken))
            if deadline is not None and self.events[number].at > deadline:
                if not is_first:
                    return chains
                chain, taken = (), ()
            if self.fits(steps[len(chain)], number, taken):
                chain = (*chain, number)
            if len(chain) == len(steps):
                chains.append(chain)
                chain = ()
        return chains

    def ended(self, rule: Between, candidate: Candidate) -> datetime | None:
        """Return when a candidate for a whole row is complete: `not_then` at the end holds until the time is over,
        `not_next` is decided by the next event. None if it is not a match."""
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
        """Return the last moment for the next part."""
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
