"""What a pattern means, once more: by trying everything, over a whole list. Slow, and made of other thoughts.

A match is a choice of events for the steps, in order. What stands between two of them is a *gap*: the events from one
that may be taken next up to the one that is. Everything the language says about what may come between is a rule about
one gap, so a choice is a match if all its gaps keep their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock.cep.match import Match
from penstock.cep.pattern import Absent, AllOf, AnyOf, Link, On, Pattern, Repeated, Sequence
from penstock.cep.skip import Skip

Steps = tuple[On, ...]
Taken = tuple[tuple[str, int], ...]
SILENCE = "silence"
"""How nothing follows but an absence that begins a match."""
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
    silence: Absent | None = None
    """An absence that would end the wait, if it is there first."""


@dataclass(frozen=True)
class Here:
    """How far a choice has come: what was taken, the first event that may be taken next, and since when it waits. If it
    begins with an absence, `anchor` is the event that this is counted from."""

    taken: Taken
    place: int
    since: datetime | None
    gap: Gap = Gap()
    anchor: int | None = None

    @property
    def places(self) -> tuple[int, ...]:
        begin = () if self.anchor is None else (self.anchor,)
        return (*begin, *(place for _, place in self.taken))


class Found(NamedTuple):
    """A match: the steps' names with the places of their events, when it began and when it was complete."""

    taken: Taken
    began: datetime
    ended: datetime


@dataclass(frozen=True)
class Naive:
    events: list[Any]
    within: timedelta | None = None
    gap: timedelta | None = None

    def matches(self, pattern: Pattern) -> list[Found]:
        """Every match."""
        return [found for _, found in self._found(pattern)]

    def _found(self, pattern: Pattern) -> list[tuple[tuple[int, ...], Found]]:
        found: dict[Any, tuple[tuple[int, ...], Found]] = {}
        for start, event in enumerate(self.events):
            for first in (Here((), start, None, Gap("next")), Here((), start + 1, event.at, Gap(SILENCE), start)):
                for here in self.part(pattern, first):
                    ended = self.ended(here)
                    if here.places and here.places[0] == start and ended is not None:
                        made = here.places, Found(here.taken, event.at, ended)
                        found[made] = made
        return list(found.values())

    def told(self, pattern: Pattern, skip: Skip) -> list[Found]:
        """Each match that is told, in the order of their first events. Of those with the same first event the one that
        is complete first is told, then the one with the earlier last event, then the one whose events, one by one, are
        the earlier."""
        waiting = sorted(
            self._found(pattern),
            key=lambda each: (each[0][0], each[1].ended, each[0][-1], each[0], len(each[1].taken), each[1].taken),
        )
        told: list[Found] = []
        while waiting:
            places, found = waiting.pop(0)
            told.append(found)
            before = places[0] + 1 if skip.kind == "to_next" else places[-1] + 1
            waiting = [each for each in waiting if each[0][0] >= before]
        return told

    def deadline(self, here: Here) -> datetime | None:
        """The last moment for what comes next: of all, and since the last event."""
        ends = []
        if self.within is not None and here.places:
            ends.append(self.events[here.places[0]].at + self.within)
        if self.gap is not None and here.taken:
            ends.append(self.events[here.taken[-1][1]].at + self.gap)
        return min(ends, default=None)

    def seen(self, taken: Taken) -> Match:
        return Match([(name, self.events[place]) for name, place in taken])

    def fits(self, on: On, place: int, taken: Taken) -> bool:
        return on.predicate is None or on.predicate(self.events[place], self.seen(taken))

    def any_fits(self, steps: tuple[On, ...], place: int, taken: Taken) -> bool:
        return any(self.fits(step, place, taken) for step in steps)

    def ended(self, here: Here) -> datetime | None:
        """When a choice without further steps is complete; None if it is not."""
        gap, deadline = here.gap, self.deadline(here)
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
        deadline = self.deadline(here)
        seen = self.seen(here.taken)
        if deadline is not None and self.events[place].at > deadline:
            return False
        if any(self.any_fits(gap.never, each, here.taken) for each in between):
            return False
        if self.any_fits(gap.not_now, here.place, here.taken):
            return False
        if gap.stop is not None and any(gap.stop(self.events[each], seen) for each in between):
            return False
        if gap.how == SILENCE or (gap.how == "next" and place != here.place):
            return False
        if gap.silence is not None and self.was_silent(gap.silence, here, place):
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

    def part(self, pattern: Pattern, here: Here, behind: Steps = ()) -> Iterator[Here]:
        """Every way to match a part from here on. `behind` is what must not come right behind it: that holds between
        two times of a repetition too."""
        if isinstance(pattern, On):
            gap = here.gap if here.gap.rivals is not None else replace(here.gap, rivals=(pattern,))
            for place in range(here.place, len(self.events)):
                if self.fits(pattern, place, here.taken) and self.keeps(gap, here, place):
                    taken = (*here.taken, (pattern.name, place))
                    yield Here(taken, place + 1, self.events[place].at, anchor=here.anchor)
        elif isinstance(pattern, Sequence):
            yield from self.sequence(pattern, here, behind)
        elif isinstance(pattern, AnyOf):
            gap = here.gap
            if gap.rivals is None:
                gap = replace(gap, rivals=firsts(pattern), silence=silent(pattern) if here.since else None)
            for each in pattern.of:
                yield from self.part(each, replace(here, gap=gap), behind)
        elif isinstance(pattern, Absent):
            yield from self.absent(pattern, here, here.since)
        elif isinstance(pattern, AllOf):
            yield from self.all_of(pattern.of, here, here.since)
        elif isinstance(pattern, Repeated):
            yield from self.repeated(pattern, here, behind)

    def sequence(self, pattern: Sequence, here: Here, behind: Steps) -> Iterator[Here]:
        reached = list(self.part(pattern.first, here, unwanted(pattern.links, behind)))
        for number, link in enumerate(pattern.links, start=1):
            further: list[Here] = []
            for each in reached:
                gap = each.gap
                if link.how == "not_next":
                    assert isinstance(link.to, On)
                    further.append(replace(each, gap=replace(gap, not_now=(*gap.not_now, link.to))))
                elif link.how == "not_then":
                    assert isinstance(link.to, On)
                    further.append(replace(each, gap=replace(gap, never=(*gap.never, link.to))))
                else:
                    how = link.how if each.places and gap.how != SILENCE else gap.how
                    after = unwanted(pattern.links[number:], behind)
                    further += self.part(link.to, replace(each, gap=replace(gap, how=how, rivals=None)), after)
            reached = further
        yield from reached

    def was_silent(self, pattern: Absent, here: Here, place: int) -> bool:
        """Whether an absence was complete before an event."""
        assert here.since is not None
        due, deadline = here.since + pattern.time, self.deadline(here)
        inside = [each for each in range(here.place, place) if self.events[each].at < due]
        if self.events[place].at < due or (deadline is not None and due > deadline):
            return False
        return not any(self.fits(pattern.step, each, here.taken) for each in inside)

    def absent(self, pattern: Absent, here: Here, since: datetime | None) -> Iterator[Here]:
        gap = here.gap
        if since is None or (gap.how == SILENCE and not self.begins(pattern, here)):
            return
        due, deadline = since + pattern.time, self.deadline(here)
        inside = [place for place in range(here.place, len(self.events)) if self.events[place].at < due]
        if deadline is not None and due > deadline:
            return
        unwanted = (pattern.step, *gap.never, *(gap.rivals or ()))
        if any(self.any_fits(unwanted, place, here.taken) for place in inside):
            return
        if gap.not_now and inside and self.any_fits(gap.not_now, inside[0], here.taken):
            return
        if inside and any(self.could_go_on(greed, here, range(here.place, inside[-1] + 1)) for greed in gap.greed):
            return
        yield Here(here.taken, here.place + len(inside), due, anchor=here.anchor)

    def begins(self, pattern: Absent, here: Here) -> bool:
        """Whether an absence at the beginning is counted from the event right before this."""
        return here.place == 1 or self.fits(pattern.step, here.place - 1, ())

    def repeated(self, pattern: Repeated, here: Here, behind: Steps) -> Iterator[Here]:
        if pattern.optionally:
            greed = (Greed(self.tests(pattern.of), here.gap.how, pattern.stop),) if pattern.is_greedy else ()
            yield replace(here, gap=replace(here.gap, rivals=None, silence=None, greed=here.gap.greed + greed))
        until = replace(here, gap=replace(here.gap, stop=either(here.gap.stop, pattern.stop)))
        reached, times = list(self.part(pattern.of, until, behind)), 1
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
                for further in self.part(pattern.of, replace(each, gap=again_gap(pattern, each.gap, behind)), behind)
            ]
            times += 1

    def tests(self, pattern: Pattern) -> tuple[Test, ...]:
        return tuple(step.predicate or (lambda event, match: True) for step in firsts(pattern))

    def all_of(self, parts: tuple[Pattern, ...], here: Here, since: datetime | None) -> Iterator[Here]:
        """Each part once, whatever the order. An absence is counted from the same moment, whatever came before it."""
        rivals = here.gap.rivals if here.gap.rivals is not None else firsts(AllOf(parts))
        silence = next((each for each in parts if isinstance(each, Absent)), None)
        for number, part in enumerate(parts):
            rest = parts[:number] + parts[number + 1 :]
            for each in self.one_of_all(part, replace(here, gap=replace(here.gap, rivals=rivals)), silence, since):
                if rest:
                    yield from self.all_of(rest, replace(each, gap=Gap("then")), since)
                else:
                    yield each

    def one_of_all(self, part: Pattern, here: Here, silence: Absent | None, since: datetime | None) -> Iterator[Here]:
        if isinstance(part, Absent):
            yield from self.absent(part, here, since)
        elif silence is None:
            yield from self.part(part, here)
        elif since is not None:
            never = (*here.gap.never, silence.step)
            for each in self.part(part, replace(here, gap=replace(here.gap, never=never))):
                if self.events[each.place - 1].at < since + silence.time:
                    yield each


def unwanted(links: tuple[Link, ...], behind: Steps) -> Steps:
    """The steps that `not_then` forbids right behind a part, given the links after it and what is behind them all."""
    found: Steps = ()
    for link in links:
        if link.how not in ("not_next", "not_then"):
            return found
        if link.how == "not_then":
            assert isinstance(link.to, On)
            found += (link.to,)
    return found + behind


def silent(pattern: Pattern) -> Absent | None:
    """The absence with which a pattern may begin."""
    if isinstance(pattern, Absent):
        return pattern
    if isinstance(pattern, Sequence):
        return silent(pattern.first)
    if isinstance(pattern, Repeated):
        return silent(pattern.of)
    if isinstance(pattern, AnyOf):
        return next((found for each in pattern.of if (found := silent(each)) is not None), None)
    return None


def again_gap(pattern: Repeated, gap: Gap, behind: Steps) -> Gap:
    """The gap between one time of a repetition and the next."""
    return replace(gap, how=pattern.how, rivals=None, stop=pattern.stop, never=gap.never + behind)


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
    if isinstance(pattern, Absent):
        return ()
    return tuple(step for part in pattern.parts() for step in firsts(part))
