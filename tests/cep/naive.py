"""What a pattern means, once more: by trying everything, over a whole list. Slow, and made of other thoughts.

A match is a choice of events for the steps, in order. What stands between two of them is a *gap*: the events from one
that may be taken next up to the one that is. Everything the language says about what may come between is a rule about
one gap, so a choice is a match if all its gaps keep their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from penstock.cep.match import Match
from penstock.cep.pattern import Absent, AllOf, AnyOf, On, Pattern, Repeated, Sequence
from penstock.cep.skip import Skip

Taken = tuple[tuple[str, int], ...]
Test = Callable[[Any, Match], bool]


@dataclass(frozen=True)
class Greed:
    """A repetition that was left, and must not have been able to go on."""

    tests: tuple[Test, ...]
    how: str
    stop: Test | None


@dataclass(frozen=True)
class Gap:
    """The rules for what is between the last event and the next."""

    how: str = "then_any"
    rivals: tuple[On, ...] | None = None
    never: tuple[On, ...] = ()
    not_now: tuple[On, ...] = ()
    stop: Test | None = None
    greed: tuple[Greed, ...] = ()


@dataclass(frozen=True)
class Here:
    """How far a choice has come: what was taken, the first event that may be taken next, and since when it waits."""

    taken: Taken
    place: int
    since: datetime | None
    gap: Gap = Gap()


@dataclass(frozen=True)
class Naive:
    events: list[Any]
    within: timedelta | None = None

    def matches(self, pattern: Pattern) -> set[tuple[Taken, datetime]]:
        """Every match: the steps' names with the places of their events, and when it was complete."""
        found = set()
        for start in range(len(self.events)):
            first = Here((), start, None, Gap("next"))
            for here in self.part(pattern, first):
                ended = self.ended(here)
                if here.taken and here.taken[0][1] == start and ended is not None:
                    found.add((here.taken, ended))
        return found

    def told(self, pattern: Pattern, skip: Skip) -> list[tuple[int, datetime]]:
        """The first event and the end of each match that is told, in the order of their first events."""
        waiting = sorted(self.matches(pattern), key=lambda each: (each[0][0][1], each[1], each[0][-1][1]))
        told: list[tuple[int, datetime]] = []
        while waiting:
            taken, ended = waiting.pop(0)
            told.append((taken[0][1], ended))
            before = taken[0][1] + 1 if skip.kind == "to_next" else taken[-1][1] + 1
            waiting = [each for each in waiting if each[0][0][1] >= before]
        return told

    def deadline(self, taken: Taken) -> datetime | None:
        return None if self.within is None else self.events[taken[0][1]].at + self.within

    def seen(self, taken: Taken) -> Match:
        return Match([(name, self.events[place]) for name, place in taken])

    def fits(self, on: On, place: int, taken: Taken) -> bool:
        return on.predicate is None or on.predicate(self.events[place], self.seen(taken))

    def any_fits(self, steps: tuple[On, ...], place: int, taken: Taken) -> bool:
        return any(self.fits(step, place, taken) for step in steps)

    def ended(self, here: Here) -> datetime | None:
        """When a choice without further steps is complete; None if it is not."""
        gap, deadline = here.gap, self.deadline(here.taken)
        rest = range(here.place, len(self.events))
        if gap.not_now:
            if not rest or (deadline is not None and self.events[here.place].at > deadline):
                return None
            fits = self.any_fits(gap.not_now + gap.never, here.place, here.taken)
            return None if fits else self.events[here.place].at
        if gap.never:
            assert deadline is not None
            inside = [place for place in rest if self.events[place].at <= deadline]
            return None if any(self.any_fits(gap.never, place, here.taken) for place in inside) else deadline
        return here.since

    def keeps(self, gap: Gap, here: Here, place: int) -> bool:
        """Whether the event at a place may be the next one taken."""
        between = range(here.place, place + 1)
        deadline = self.deadline(here.taken) if here.taken else None
        seen = self.seen(here.taken)
        if deadline is not None and self.events[place].at > deadline:
            return False
        if any(self.any_fits(gap.never, each, here.taken) for each in between):
            return False
        if self.any_fits(gap.not_now, here.place, here.taken):
            return False
        if gap.stop is not None and any(gap.stop(self.events[each], seen) for each in between):
            return False
        if gap.how == "next" and place != here.place:
            return False
        if gap.how == "then" and any(self.any_fits(gap.rivals or (), each, here.taken) for each in between[:-1]):
            return False
        return not any(self.could_go_on(greed, here, between) for greed in gap.greed)

    def could_go_on(self, greed: Greed, here: Here, between: range) -> bool:
        for each in between:
            event, seen = self.events[each], self.seen(here.taken)
            if greed.stop is not None and greed.stop(event, seen):
                return False
            if any(test(event, seen) for test in greed.tests):
                return True
            if greed.how == "next":
                return False
        return False

    def part(self, pattern: Pattern, here: Here) -> Iterator[Here]:
        """Every way to match a part from here on."""
        if isinstance(pattern, On):
            gap = here.gap if here.gap.rivals is not None else replace(here.gap, rivals=(pattern,))
            for place in range(here.place, len(self.events)):
                if self.fits(pattern, place, here.taken) and self.keeps(gap, here, place):
                    yield Here((*here.taken, (pattern.name, place)), place + 1, self.events[place].at)
        elif isinstance(pattern, Sequence):
            yield from self.sequence(pattern, here)
        elif isinstance(pattern, AnyOf):
            rivals = here.gap.rivals if here.gap.rivals is not None else firsts(pattern)
            for each in pattern.of:
                yield from self.part(each, replace(here, gap=replace(here.gap, rivals=rivals)))
        elif isinstance(pattern, AllOf):
            yield from self.all_of(pattern.of, here)
        elif isinstance(pattern, Repeated):
            yield from self.repeated(pattern, here)

    def sequence(self, pattern: Sequence, here: Here) -> Iterator[Here]:
        reached = list(self.part(pattern.first, here))
        for link in pattern.links:
            further: list[Here] = []
            for each in reached:
                gap = each.gap
                if link.how == "not_next":
                    assert isinstance(link.to, On)
                    further.append(replace(each, gap=replace(gap, not_now=(*gap.not_now, link.to))))
                elif link.how == "not_then":
                    assert isinstance(link.to, On)
                    further.append(replace(each, gap=replace(gap, never=(*gap.never, link.to))))
                elif isinstance(link.to, Absent):
                    further += self.absent(link.to, each)
                else:
                    how = link.how if each.taken else gap.how
                    further += self.part(link.to, replace(each, gap=replace(gap, how=how, rivals=None)))
            reached = further
        yield from reached

    def absent(self, pattern: Absent, here: Here) -> Iterator[Here]:
        assert here.since is not None
        due, deadline = here.since + pattern.time, self.deadline(here.taken)
        inside = [place for place in range(here.place, len(self.events)) if self.events[place].at < due]
        if deadline is not None and due > deadline:
            return
        if any(self.any_fits((pattern.step, *here.gap.never), place, here.taken) for place in inside):
            return
        if here.gap.not_now and inside and self.any_fits(here.gap.not_now, inside[0], here.taken):
            return
        if inside and any(self.could_go_on(greed, here, range(here.place, inside[-1] + 1)) for greed in here.gap.greed):
            return
        yield Here(here.taken, here.place + len(inside), due)

    def repeated(self, pattern: Repeated, here: Here) -> Iterator[Here]:
        if pattern.optionally:
            greed = (Greed(self.tests(pattern.of), here.gap.how, pattern.stop),) if pattern.is_greedy else ()
            yield replace(here, gap=replace(here.gap, rivals=None, greed=here.gap.greed + greed))
        until = replace(here, gap=replace(here.gap, stop=either(here.gap.stop, pattern.stop)))
        reached, times = list(self.part(pattern.of, until)), 1
        while reached:
            if times >= pattern.low:
                full = times == pattern.high
                again = () if full or not pattern.is_greedy else (
                    Greed(self.tests(pattern.of), pattern.how, pattern.stop),
                )  # fmt: skip
                for each in reached:
                    yield replace(each, gap=replace(each.gap, greed=each.gap.greed + again))
            if times == pattern.high:
                return
            reached = [
                further
                for each in reached
                for further in self.part(
                    pattern.of, replace(each, gap=replace(each.gap, how=pattern.how, rivals=None, stop=pattern.stop))
                )
            ]
            times += 1

    def tests(self, pattern: Pattern) -> tuple[Test, ...]:
        return tuple(step.predicate or (lambda event, match: True) for step in firsts(pattern))

    def all_of(self, steps: tuple[Pattern, ...], here: Here) -> Iterator[Here]:
        rivals = here.gap.rivals if here.gap.rivals is not None else firsts(AllOf(steps))
        for number, step in enumerate(steps):
            rest = steps[:number] + steps[number + 1 :]
            for each in self.part(step, replace(here, gap=replace(here.gap, rivals=rivals))):
                if rest:
                    yield from self.all_of(rest, replace(each, gap=Gap("then")))
                else:
                    yield each


def either(one: Test | None, other: Test | None) -> Test | None:
    known = [each for each in (one, other) if each is not None]
    return (lambda event, match: any(each(event, match) for each in known)) if known else None


def firsts(pattern: Pattern) -> tuple[On, ...]:
    """The steps with which a pattern begins, if nothing is left out."""
    if isinstance(pattern, On):
        return (pattern,)
    if isinstance(pattern, Sequence):
        return firsts(pattern.first)
    if isinstance(pattern, Repeated):
        return firsts(pattern.of)
    return tuple(step for part in pattern.parts() for step in firsts(part))
