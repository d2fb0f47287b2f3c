"""Random small patterns over random short lists, against trying everything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import permutations
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import cep
from penstock.cep import skip
from penstock.cep.engine import Engine
from penstock.cep.finding import At
from penstock.cep.memory import memory_class
from penstock.cep.pattern import Absent, AllOf, On, Pattern, Repeated
from penstock.cep.plan import taking
from penstock.cep.problems import problems
from penstock.cep.search import Search
from tests.cep.brute import Brute, Found, Numbered, told
from tests.cep.letters import BEGIN, Letter, letters
from tests.cep.overdue import Overdue
from tests.cep.rows import TooMany, Writer

S = timedelta(seconds=1)
EVENTS_MAX = 7
SECOND = 1_000_000
"""In microseconds: some events come one too early or too late for what is due."""
KINDS = ["a", "b", "ab", "ab", "bc", "abc"]
Choose = Callable[[Sequence[Any]], Any]
"""Gives one of several."""


def step(name: str, kinds: str, rising: bool) -> On:
    def fits(event: Letter, match: cep.Match) -> bool:
        return event.kind in kinds and not (rising and match.events and event.number <= match.events[-1].number)

    fits.__qualname__ = f"{kinds}{'+' if rising else ''}"
    return cep.on(name, Letter, fits)


class Shapes:
    """Makes a pattern, each step with a name of its own."""

    def __init__(self, choose: Choose) -> None:
        self.choose, self.count = choose, 0

    def single(self, kinds: str | None = None) -> On:
        self.count += 1
        return step(f"s{self.count}", kinds or self.choose(KINDS), self.choose(range(6)) == 0)

    def silence(self) -> Pattern:
        made = cep.absent(self.single(), for_=self.choose(range(1, 5)) * S)
        kind = self.choose(["once", "once", "once", "times", "at_least"])
        return made if kind == "once" else made.times(2) if kind == "times" else made.at_least(1)

    def absent(self) -> Pattern:
        """A part of an `all_of`, with a time or without one."""
        return cep.absent(self.single(), for_=self.choose([None, S, 2 * S, 2 * S, 3 * S]))

    def every(self) -> Pattern:
        made: Pattern = self.single()
        for _ in range(self.choose([0, 1, 1, 2])):
            made = made.then(self.single())
        return cep.every(made.times(2) if self.choose(range(4)) == 0 else made)

    def whole(self, depth: int) -> Pattern:
        """A sequence. What may stand only in some places is drawn more often than it would be by chance."""
        rare = ["every", "absent first", "silent first", "absences", "alternatives", "left out", "greedy"]
        kind = self.choose(["any", "any", "any", *rare])
        if kind == "any":
            return self.sequence(depth)
        if kind == "left out":
            made = self.linked(self.single(), self.left_out())
            return made if self.choose(range(3)) == 0 else self.linked(made, self.single())
        if kind == "greedy":
            return self.greedy_parts()
        if kind == "silent first":
            return self.silent_first(depth)
        if kind == "alternatives":
            made = self.alternatives()
            if self.choose(range(4)):
                before = self.before_alternatives()
                made = self.linked(before, made) if self.choose(range(4)) == 0 else before.then(made)
            return made if self.choose(range(2)) == 0 else self.sequence(depth, made)
        if kind == "every" and self.choose(range(2)) == 0:
            return self.sequence(depth, self.every())
        steps = [self.single() for _ in range(self.choose([1, 1, 2]))]
        if kind == "absent first":
            unwanted = [cep.absent(self.single()) for _ in range(self.choose([1, 1, 2]))]
            return self.sequence(depth, cep.all_of(*unwanted, *steps))
        silent = [self.absent() for _ in range(2)]
        part = self.every() if kind == "every" else cep.all_of(*silent, *steps[1:])
        before = self.single() if self.choose(range(3)) else self.sequence(1)
        made = before.then(part)
        return made if self.choose(range(2)) == 0 else self.sequence(depth, made)

    def greedy_parts(self) -> Pattern:
        """Greedy repetitions, one after the other, and a step that could take what they take."""
        made = self.greedy() if self.choose(range(2)) == 0 else self.linked(self.single(), self.greedy())
        if self.choose(range(2)) == 0:
            made = self.linked(made, self.greedy().optional())
        elif self.choose(range(3)) == 0:
            made = made.not_next(self.single())
        return self.linked(made, self.single())

    def greedy(self) -> Repeated:
        made = self.single().at_least(1) if self.choose(range(2)) == 0 else self.single().times(1, 2)
        made = made.consecutive() if self.choose(range(2)) == 0 else made
        made = made.optional() if self.choose(range(4)) == 0 else made
        return (self.until(made) if self.choose(range(3)) == 0 else made).greedy()

    def left_out(self) -> Pattern:
        """A group whose first parts may be left out, or all of it."""
        made = self.optional()
        for _ in range(self.choose([1, 1, 2])):
            made = self.linked(made, self.single() if self.choose(range(3)) == 0 else self.optional())
        if self.choose(range(4)) == 0:
            return self.linked(self.optional(), made)
        if self.choose(range(4)) == 0:
            return self.linked(made, cep.any_of(self.single(), self.alternative("until")))
        return made

    def optional(self) -> Pattern:
        made = self.single().at_least(1) if self.choose(range(3)) == 0 else self.single()
        return made.optional().greedy() if self.choose(range(2)) == 0 else made.optional()

    def linked(self, made: Pattern, following: Pattern) -> Pattern:
        how = self.choose(["next", "then", "then", "then_any"])
        linked: Pattern = getattr(made, how)(following)
        return linked

    def silent_first(self, depth: int) -> Pattern:
        """A pattern that begins with silence, alone or with others in an `all_of`."""
        silent = [cep.absent(self.single(), for_=self.choose(range(1, 4)) * S) for _ in range(self.choose([1, 1, 2]))]
        steps = [self.single() for _ in range(self.choose(range(3)))]
        made: Pattern = cep.all_of(*silent, *steps) if len(silent) + len(steps) > 1 else silent[0]
        return made if self.choose(range(3)) == 0 else self.sequence(depth, made)

    def alternatives(self) -> Pattern:
        """Parts of which each can be called off, and it alone."""
        if self.choose(range(3)) == 0:
            return cep.any_of(*self.silences())
        kinds = ["silence", "silence", "absent", "until", "step", "any_of"]
        made = [self.alternative(self.choose(kinds)) for _ in range(2)]
        if self.choose(range(3)) == 0:
            made.append(self.alternative(self.choose(["silence", "absent"])))
        whole = cep.any_of(*made)
        kind = self.choose(["once", "once", "once", "times", "until"])
        return whole if kind == "once" else whole.times(2) if kind == "times" else self.until(whole.times(1, 2))

    def before_alternatives(self) -> Pattern:
        """A part that leaves more for the next events to decide, or after which the same is waited for repeatedly."""
        kind = self.choose(["step", "step", "greedy", "greedy", "silence"])
        made: Pattern = self.greedy() if kind == "greedy" else self.single()
        if kind == "silence":
            return made.then(cep.absent(self.single(), for_=S).at_least(1))
        return made.not_next(self.single()) if self.choose(range(3)) == 0 else made

    def silences(self) -> list[Pattern]:
        """Absences of different events for different times: when the first is called off, the next is due later."""
        kinds, times = self.choose([*permutations("abc")]), self.choose([*permutations(range(2, 5))])
        made = [cep.absent(self.single(kind), for_=time * S) for kind, time in zip(kinds, times, strict=True)]
        return [each.then(self.single()) if self.choose(range(3)) == 0 else each for each in made]

    def alternative(self, kind: str) -> Pattern:
        made: Pattern = self.single()
        if kind == "silence":
            made = self.silence()
        elif kind == "absent":
            made = cep.all_of(made, cep.absent(self.single()), *([self.single()] if self.choose(range(3)) == 0 else ()))
        elif kind == "until":
            made = self.until(made.at_least(self.choose([1, 2])))
        elif kind == "any_of":
            made = self.until(cep.any_of(made, self.alternative(self.choose(["absent", "until"]))).times(1, 2))
        return made.then(self.single()) if self.choose(range(3)) == 0 else made

    def pattern(self, depth: int) -> Pattern:
        if depth and self.choose(range(8)) == 0:
            return self.silence()
        made = self.shape(depth)
        return self.repeated(made) if self.choose(range(3)) == 0 else made

    def shape(self, depth: int) -> Pattern:
        kind = self.choose(["step", "step", "sequence", "any_of", "all_of"]) if depth else "step"
        if kind == "step":
            return self.single()
        if kind == "any_of":
            return cep.any_of(*(self.pattern(depth - 1) for _ in range(2)))
        if kind == "all_of":
            silent = [self.absent() for _ in range(self.choose([0, 0, 0, 1, 1, 2]))]
            steps = [self.single() for _ in range(self.choose(range(max(0, 2 - len(silent)), 4)))]
            return cep.all_of(*steps, *silent)
        return self.sequence(depth)

    def sequence(self, depth: int, first: Pattern | None = None) -> Pattern:
        made: Any = self.pattern(depth - 1) if first is None else first
        for _ in range(self.choose(range(1, 4))):
            how = self.choose(["next", "then", "then", "then_any", "not_next", "not_then", "absent"])
            if how == "absent":
                made = made.then(self.silence())
            elif how.startswith("not"):
                made = getattr(made, how)(self.single())
            else:
                made = getattr(made, how)(self.pattern(depth - 1))
        assert isinstance(made, Pattern)
        return made

    def repeated(self, made: Pattern) -> Pattern:
        low, more = self.choose(range(1, 3)), self.choose(range(3))
        plain = made.at_least(low) if more == 2 else made.times(low, low + more)
        again: Repeated = self.choose([plain, plain, plain.consecutive(), plain.combinations()])
        again = again.optional() if self.choose(range(4)) == 0 else again
        again = again.greedy() if self.choose(range(4)) == 0 else again
        return self.until(again) if self.choose(range(5)) == 0 else again

    def until(self, again: Repeated) -> Repeated:
        kind = self.choose("abcd")
        return again.until(lambda event, match: event.kind == kind)


@dataclass(frozen=True)
class Case:
    """A pattern, the times that a match may take, and whether there is an index of partial matches."""

    pattern: Pattern
    within: timedelta | None
    gap: timedelta | None
    is_indexed: bool

    @property
    def times(self) -> dict[str, Any]:
        return {"within": self.within, "gap": self.gap}


def made_case(choose: Choose) -> Case:
    within, gap = choose([None, 4 * S, 8 * S]), choose([None, None, 2 * S, 4 * S])
    depth = choose([1, 1, 2])
    made = Shapes(choose).whole(depth)
    while any(problems(made, within=within, gap=gap)) or not is_short(made, within):
        made = Shapes(choose).whole(depth)
    return Case(made, within, gap, choose([False, True]))


def is_short(pattern: Pattern, within: timedelta | None) -> bool:
    """Whether it can be written out in a reasonable number of rows."""
    try:
        return len(Writer(EVENTS_MAX, within).rows(pattern)) < 5_000
    except TooMany:
        return False


def made_list(choose: Choose) -> list[Letter]:
    at, words = 0, []
    for _ in range(choose(range(3, EVENTS_MAX + 1))):
        at += choose([0, *[SECOND] * 5, SECOND + 1, SECOND - 1, 2 * SECOND])
        words.append(f"{choose('aaabbbcd')}{choose(range(4))}@{at / SECOND:.6f}")
    return letters(" ".join(words))


@st.composite
def cases(draw: Any) -> Case:
    return made_case(lambda several: draw(st.sampled_from(several)))


@st.composite
def lists(draw: Any) -> list[Letter]:
    return made_list(lambda several: draw(st.sampled_from(several)))


@contextmanager
def indexed(is_indexed: bool) -> Iterator[None]:
    """Have even a few partial matches an index, as many have."""
    few = 0 if is_indexed else 16
    with patch("penstock.cep.runs.FEW", few), patch("penstock.cep.engine.FEW", few):
        yield


def taken_by(path: tuple[int, ...]) -> list[int]:
    """The events that steps have taken; a first silence is counted from one that none has."""
    return [event for step, event in zip(path[::2], path[1::2], strict=True) if step >= 0]


QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
PAIRS = 20_000
"""Of the long test. They are drawn without hypothesis, which takes several times as long as the rest."""
TIMED_OUT_EACH = 8
"""For one pair of so many, partial matches whose time was over are compared too: that takes longer than the rest."""


def found_by(matches: list[cep.Match], events: list[Letter]) -> list[Found]:
    numbered = {id(event): place for place, event in enumerate(events)}
    made = []
    for each in matches:
        assert each.began is not None
        assert each.ended is not None
        made.append(Found(tuple((name, numbered[id(event)]) for name, event in each.rows), each.began, each.ended))
    return made


def compare(case: Case, events: list[Letter]) -> list[Numbered]:
    """Returns the matches."""
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, **case.times)
    expected = Brute(events, case.within, case.gap).matches(case.pattern)
    assert Counter(found_by(matches, events)) == Counter(each for _, each in expected), told_of(case, events)
    return expected


def compare_once(case: Case, events: list[Letter], expected: list[Numbered]) -> None:
    """`every=False` gives one of those that are complete first."""
    with indexed(case.is_indexed):
        found = found_by(cep.find(case.pattern, events, every=False, **case.times), events)
    earliest = min((each.ended for _, each in expected), default=None)
    assert len(found) == min(1, len(expected)), told_of(case, events)
    assert all(each in [match for _, match in expected] and each.ended == earliest for each in found)


def compare_timed_out(case: Case, events: list[Letter]) -> bool:
    """Returns whether there were any. One that has the events of a match does not count: it may be told or not."""
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, timed_out=True, **case.times)
    complete = {each.taken for each in found_by([each for each in matches if not each.timed_out], events)}
    found = found_by([each for each in matches if each.timed_out], events)
    try:
        expected = Overdue(events, case.within, case.gap).timed_out(case.pattern)
    except TooMany:
        return False
    one, other = (Counter(each for each in several if each.taken not in complete) for several in (found, expected))
    assert one == other, told_of(case, events)
    return bool(one)


def told_of(case: Case, events: list[Letter]) -> str:
    return f"{[f'{each.text}@{(each.at - BEGIN).total_seconds()}' for each in events]} {case}"


def compare_skipping(case: Case, events: list[Letter], expected: list[Numbered], after: skip.Skip) -> None:
    if any(problems(case.pattern, skip=after, **case.times)):
        return  # an `every` at the beginning takes few of them
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, skip=after, **case.times)
    if after.name is not None and len({(numbers, each.ended) for numbers, each in expected}) < len(expected):
        return  # which step took an event decides what is skipped, and either of them may be told
    found = [_unnamed(each) for each in found_by(matches, events)]
    assert found == [_unnamed(each) for each in told(expected, after)], f"{after} {told_of(case, events)}"


def _unnamed(found: Found) -> tuple[Any, ...]:
    """Which step took an event does not count: of two matches with the same events either may be told."""
    return [place for _, place in found.taken], found.began, found.ended


@QUICK
@given(cases(), lists())
def test_find_gives_what_trying_everything_gives(case: Case, events: list[Letter]) -> None:
    compare(case, events)


def skips(case: Case, choose: Choose) -> list[skip.Skip]:
    name = choose([step.name for step in taking(case.pattern)] or [""])
    named = [skip.to_first(name), skip.to_last(name)] if name else []
    return [skip.to_next, skip.past_last, *named]


@QUICK
@given(cases(), lists(), st.data())
def test_skipping_gives_what_trying_everything_and_skipping_gives(
    case: Case, events: list[Letter], data: st.DataObject
) -> None:
    matches = compare(case, events)
    for each in skips(case, lambda several: data.draw(st.sampled_from(several))):
        compare_skipping(case, events, matches, each)


@QUICK
@given(cases(), lists())
def test_once_gives_one_of_the_matches_that_are_complete_first(case: Case, events: list[Letter]) -> None:
    compare_once(case, events, Brute(events, case.within, case.gap).matches(case.pattern))


@QUICK
@given(cases(), lists())
def test_partial_matches_whose_time_was_over_are_those_that_trying_everything_finds_waiting(
    case: Case, events: list[Letter]
) -> None:
    compare_timed_out(case, events)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thousands_of_pairs_give_what_trying_everything_gives() -> None:
    seed, counts = os.environ["TEST_SEED"], Counter[str]()
    print(f"TEST_SEED={seed}")
    for number in range(PAIRS):
        choose = Random(f"{seed}/{number}").choice
        case, events = made_case(choose), made_list(choose)
        matches = compare(case, events)
        counts["with matches"] += bool(matches)
        for each in skips(case, choose):
            compare_skipping(case, events, matches, each)
        compare_once(case, events, matches)
        if number % TIMED_OUT_EACH == 0:
            counts["with some timed out"] += compare_timed_out(case, events)
        counts.update({type(part).__name__ for part in walk(case.pattern)})
        counts["absences without a time"] += "time=None" in repr(case.pattern)
        counts["absences together"] += any(map(has_two_absences, walk(case.pattern)))
    print(f"{PAIRS} pairs: {dict(counts)}")
    assert counts["with some timed out"] > PAIRS / TIMED_OUT_EACH / 4
    wanted = ("On", "Sequence", "Repeated", "AnyOf", "AllOf", "Absent", "Every")
    least = min(counts[each] for each in (*wanted, "absences without a time", "absences together", "with matches"))
    assert least > PAIRS / 20


def walk(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    for part in pattern.parts():
        yield from walk(part)


def has_two_absences(part: Pattern) -> bool:
    return isinstance(part, AllOf) and sum(isinstance(each, Absent) for each in part.of) > 1


@QUICK
@given(
    cases(),
    lists(),
    st.sampled_from([skip.none, skip.to_next, skip.past_last]),
    st.sampled_from(["drop_oldest", "refuse_new"]),
)
def test_no_more_is_kept_than_may_be_and_no_event_that_nothing_has(
    case: Case, events: list[Letter], after: skip.Skip, full: Any
) -> None:
    search = Search(case.pattern, case.within, after, bounds=cep.Bounds(partial=3, events=3, full=full), gap=case.gap)
    engine, memory = Engine(search, [Letter]), memory_class("Kept", [Letter])()
    lost = 0
    for event in events:
        with indexed(case.is_indexed):
            found = engine.feed(memory, event, event.at, At(event.at))
        lost += len(found.lost) if found is not None else 0
        kept = [*memory.runs, *memory.complete]
        assert len(kept) <= 3
        assert set(memory.held_0) == {number for each in kept for number in taken_by(each.path)}
    assert memory.lost == lost
