"""Partial matches that timed out, by the rules of docs/patterns.md: brute force, as in `brute.py`.

A candidate for the first parts of a row has timed out if it still waits for the next part at its deadline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile

from penstock.cep.pattern import Absent, AnyOf, Pattern, Repeated, Sequence
from tests.cep.brute import Brute, BruteMatch, Candidate
from tests.cep.rows import Between, Part, Rival, Row, Writer


@dataclass(frozen=True)
class Overdue(Brute):
    """Partial matches that timed out in a list of events."""

    def timed_out(self, pattern: Pattern) -> list[BruteMatch]:
        """Return one for each event that begins it: two events of one time may each begin an absence. Those with the
        events of a match may be missing, or be too many."""
        events = len(self.events) + 1 + 2 * least(pattern)
        within = None if self.within is None else self.within + least_time(pattern)
        matches = set()
        for row in Writer(events, within).rows(pattern):
            for candidate, deadline in self.waiting(row):
                first = candidate.numbers[0]
                matches.add((first, BruteMatch(candidate.taken, self.events[first].at, deadline)))
        return [match for _, match in matches]

    def waiting(self, row: Row) -> Iterator[tuple[Candidate, datetime]]:
        """Yield the candidates for each number of first parts that still wait at their deadlines."""
        if not row.parts:
            return
        yield from self.first_waiting(row)
        candidates = list(self.begun(row.parts[0], row.between[0]))
        for number, (part, rule) in enumerate(zip(row.parts[1:], row.between[1:-1], strict=True), start=1):
            for candidate in candidates:
                for open_candidate in self.open(candidate, row.parts[number:], rule, row.between[-1]):
                    deadline = self.deadline(open_candidate)
                    if deadline is not None:
                        yield open_candidate, deadline
            candidates = [successor for candidate in candidates for successor in self.further(part, rule, candidate)]
        if not row.between[-1].not_next:
            return
        for candidate in candidates:
            deadline = self.deadline(candidate)
            if deadline is not None and not self.until(candidate, deadline):
                yield candidate, deadline

    def first_waiting(self, row: Row) -> Iterator[tuple[Candidate, datetime]]:
        """Yield candidates that wait in the first part: an `every`, or an absence that the first event begins."""
        part = row.parts[0]
        if part.is_every:
            for chain in self.broken(part):
                candidate = self.taking(Candidate(), replace(part, steps=part.steps[: len(chain)]), chain)
                deadline = self.deadline(candidate)
                assert deadline is not None
                yield candidate, deadline
        elif part.absent is not None or part.silences:
            for number, event in enumerate(self.events):
                start = Candidate(anchor=number, place=number + 1, since=event.at)
                deadline = self.deadline(start)
                if deadline is not None and self.is_anchor(row, number):
                    rule = replace(row.between[0], how="then", rivals=self.rivals(row), quiet=())
                    yield from (
                        (open_candidate, deadline)
                        for open_candidate in self.open(start, row.parts, rule, row.between[-1])
                    )

    def rivals(self, row: Row) -> tuple[Rival, ...]:
        """Return the steps of an `all_of` at the beginning; alternatives wait separately there."""
        return row.between[0].rivals if row.parts[0].silences else ()

    def is_anchor(self, row: Row, number: int) -> bool:
        """Return whether an absence at the beginning is counted from an event that none of its steps takes."""
        part = row.parts[0]
        unwanted = part.silences
        if not unwanted and part.absent is not None:
            unwanted = (part.absent.step,)
        if self.fits_any(unwanted, number, ()):
            return True
        return number == 0 and not any(self.fits(rival.step, 0, ()) for rival in self.rivals(row))

    def until(self, candidate: Candidate, deadline: datetime) -> range:
        """Return the events that come before the deadline is over."""
        count = sum(event.at <= deadline for event in self.events)
        return range(candidate.place, max(count, candidate.place))

    def open(self, candidate: Candidate, parts: tuple[Part, ...], rule: Between, end: Between) -> Iterator[Candidate]:
        """Yield the candidate, if it waits for the first of these parts at its deadline."""
        deadline, part = self.deadline(candidate), parts[0]
        if deadline is None:
            return
        if not part.inside:
            candidate = replace(candidate, block_place=candidate.place, block_since=candidate.since)
        window = self.until(candidate, deadline)
        if part.is_every:
            is_match = len(parts) == 1 and not (end.never or end.not_next)
            yield from self.open_every(candidate, part, rule, is_match, window)
            return
        is_block = part.opens or part.inside
        rest = (part, *takewhile(lambda later_part: is_block and later_part.inside, parts[1:]))
        silences = [part.absent for part in rest if part.absent is not None]
        goes_on = all(self.is_silent(silence, candidate, deadline) for silence in silences)
        if goes_on and self.waits(rule, candidate, window, deadline):
            yield candidate

    def waits(self, rule: Between, candidate: Candidate, window: range, deadline: datetime) -> bool:
        if rule.how == "next" and window:
            return False
        if rule.how == "then" and self.is_taken(rule.rivals, window, candidate):
            return False
        if any(self.was_quiet(absence, candidate, deadline) for absence in rule.quiet):
            return False
        return self.allows(rule, window, candidate.taken)

    def is_silent(self, absent: Absent, candidate: Candidate, deadline: datetime) -> bool:
        """Return whether an absence is open at the deadline: nothing has broken it, and it is not complete."""
        assert candidate.block_since is not None
        assert absent.time is not None
        if candidate.block_since + absent.time <= deadline:
            return False
        for number in range(candidate.block_place, len(self.events)):
            before = tuple(pair for pair in candidate.taken if pair[1] < number)
            if self.events[number].at <= deadline and self.fits(absent.step, number, before):
                return False
        return True

    def open_every(
        self, candidate: Candidate, part: Part, rule: Between, is_match: bool, window: range
    ) -> Iterator[Candidate]:
        """Yield an `every` after a step: the one that is open at the deadline, with its events so far."""
        chains = self.chains(part.steps, candidate.place, candidate)
        last = chains[-1][-1] + 1 if chains else candidate.place
        chain: tuple[int, ...] = ()
        for number in range(last, window.stop):
            taken = candidate.taken + named(part, chain)
            if self.fits(part.steps[len(chain)], number, taken):
                chain = (*chain, number)
        begun, deadline = [*chains, chain][0], self.deadline(candidate)
        assert deadline is not None
        may_be = self.may_take(rule, candidate, begun[0]) if begun else self.waits(rule, candidate, window, deadline)
        if not may_be:
            return
        if chain:
            yield self.taking(candidate, replace(part, steps=part.steps[: len(chain)]), chain)
        elif not (is_match and chains):
            yield candidate

    def broken(self, part: Part) -> Iterator[tuple[int, ...]]:
        """Yield the events of each `every` at the beginning that timed out."""
        chain: tuple[int, ...] = ()
        for number, event in enumerate(self.events):
            taken = named(part, chain)
            deadline = self.deadline(Candidate(taken=taken))
            if deadline is not None and event.at > deadline:
                if chain:
                    yield chain
                chain, taken = (), ()
            if self.fits(part.steps[len(chain)], number, taken):
                chain = (*chain, number)
            if len(chain) == len(part.steps):
                chain = ()
        if chain and (self.within is not None or self.gap is not None):
            yield chain


def named(part: Part, chain: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    """Return the events of an incomplete `every`, with the names of their steps."""
    return tuple((step.name, number) for step, number in zip(part.steps, chain, strict=False))


def least_time(pattern: Pattern) -> timedelta:
    """Return the least time that its absences take, one after the other."""
    if isinstance(pattern, Repeated):
        return pattern.low * least_time(pattern.of)
    if isinstance(pattern, Absent):
        return pattern.time or timedelta(0)
    return sum(map(least_time, pattern.parts()), timedelta(0))


def least(pattern: Pattern) -> int:
    """Return the least number of events that it has, if nothing is left out."""
    if isinstance(pattern, Repeated):
        return pattern.low * least(pattern.of)
    if isinstance(pattern, AnyOf):
        return max(map(least, pattern.of))
    if isinstance(pattern, Sequence):
        return least(pattern.first) + sum(least(link.to) for link in pattern.links if not link.how.startswith("not"))
    if isinstance(pattern, Absent):
        return 0
    return sum(map(least, pattern.parts())) or 1
