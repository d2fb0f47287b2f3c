"""Random small patterns over random short lists, compared with brute force."""

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
from penstock.cep.engine import PatternEngine
from penstock.cep.finding import At
from penstock.cep.memory import memory_class
from penstock.cep.pattern import Absent, AllOf, On, Pattern, Repeated
from penstock.cep.plan import taking
from penstock.cep.problems import problems
from penstock.cep.search import Search
from tests.cep.brute import Brute, BruteMatch, Numbered, reported
from tests.cep.letters import BEGIN, Letter, letters
from tests.cep.overdue import Overdue
from tests.cep.rows import TooMany, Writer

S = timedelta(seconds=1)
EVENTS_MAX = 7
SECOND = 1_000_000
"""In microseconds: some events come one too early or too late for a deadline."""
KINDS = ["a", "b", "ab", "ab", "bc", "abc"]
Choose = Callable[[Sequence[Any]], Any]
"""Returns one of several."""


def step(name: str, kinds: str, rising: bool) -> On:
    def fits(event: Letter, match: cep.Match) -> bool:
        return event.kind in kinds and not (rising and match.events and event.number <= match.events[-1].number)

    fits.__qualname__ = f"{kinds}{'+' if rising else ''}"
    return cep.on(name, Letter, fits)


class Shapes:
    """Generates a pattern in which each step has a different name."""

    def __init__(self, choose: Choose) -> None:
        self.choose, self.count = choose, 0

    def single(self, kinds: str | None = None) -> On:
        self.count += 1
        return step(f"s{self.count}", kinds or self.choose(KINDS), self.choose(range(6)) == 0)

    def silence(self) -> Pattern:
        silence = cep.absent(self.single(), for_=self.choose(range(1, 5)) * S)
        kind = self.choose(["once", "once", "once", "times", "at_least"])
        return silence if kind == "once" else silence.times(2) if kind == "times" else silence.at_least(1)

    def absent(self) -> Pattern:
        """Return a part of an `all_of`, with a time or without one."""
        return cep.absent(self.single(), for_=self.choose([None, S, 2 * S, 2 * S, 3 * S]))

    def every(self) -> Pattern:
        pattern: Pattern = self.single()
        for _ in range(self.choose([0, 1, 1, 2])):
            pattern = pattern.then(self.single())
        return cep.every(pattern.times(2) if self.choose(range(4)) == 0 else pattern)

    def whole(self, depth: int) -> Pattern:
        """Return a sequence. Parts that are allowed only in some places are drawn more often than they would be by
        chance."""
        rare = ["every", "absent first", "silent first", "absences", "alternatives", "left out", "greedy"]
        kind = self.choose(["any", "any", "any", *rare])
        if kind == "any":
            return self.sequence(depth)
        if kind == "left out":
            pattern = self.linked(self.single(), self.left_out())
            return pattern if self.choose(range(3)) == 0 else self.linked(pattern, self.single())
        if kind == "greedy":
            return self.greedy_parts()
        if kind == "silent first":
            return self.silent_first(depth)
        if kind == "alternatives":
            pattern = self.alternatives()
            if self.choose(range(4)):
                before = self.before_alternatives()
                pattern = self.linked(before, pattern) if self.choose(range(4)) == 0 else before.then(pattern)
            return pattern if self.choose(range(2)) == 0 else self.sequence(depth, pattern)
        if kind == "every" and self.choose(range(2)) == 0:
            return self.sequence(depth, self.every())
        steps = [self.single() for _ in range(self.choose([1, 1, 2]))]
        if kind == "absent first":
            unwanted = [cep.absent(self.single()) for _ in range(self.choose([1, 1, 2]))]
            return self.sequence(depth, cep.all_of(*unwanted, *steps))
        silent = [self.absent() for _ in range(2)]
        part = self.every() if kind == "every" else cep.all_of(*silent, *steps[1:])
        before = self.single() if self.choose(range(3)) else self.sequence(1)
        pattern = before.then(part)
        return pattern if self.choose(range(2)) == 0 else self.sequence(depth, pattern)

    def greedy_parts(self) -> Pattern:
        """Return greedy repetitions, one after the other, and a step that could take their events."""
        pattern = self.greedy() if self.choose(range(2)) == 0 else self.linked(self.single(), self.greedy())
        if self.choose(range(2)) == 0:
            pattern = self.linked(pattern, self.greedy().optional())
        elif self.choose(range(3)) == 0:
            pattern = pattern.not_next(self.single())
        return self.linked(pattern, self.single())

    def greedy(self) -> Repeated:
        repeated = self.single().at_least(1) if self.choose(range(2)) == 0 else self.single().times(1, 2)
        repeated = repeated.consecutive() if self.choose(range(2)) == 0 else repeated
        repeated = repeated.optional() if self.choose(range(4)) == 0 else repeated
        return (self.until(repeated) if self.choose(range(3)) == 0 else repeated).greedy()

    def left_out(self) -> Pattern:
        """Return a group whose first parts, or all parts, may be omitted."""
        pattern = self.optional()
        for _ in range(self.choose([1, 1, 2])):
            pattern = self.linked(pattern, self.single() if self.choose(range(3)) == 0 else self.optional())
        if self.choose(range(4)) == 0:
            return self.linked(self.optional(), pattern)
        if self.choose(range(4)) == 0:
            return self.linked(pattern, cep.any_of(self.single(), self.alternative("until")))
        return pattern

    def optional(self) -> Pattern:
        part = self.single().at_least(1) if self.choose(range(3)) == 0 else self.single()
        return part.optional().greedy() if self.choose(range(2)) == 0 else part.optional()

    def linked(self, pattern: Pattern, following: Pattern) -> Pattern:
        how = self.choose(["next", "then", "then", "then_any"])
        linked: Pattern = getattr(pattern, how)(following)
        return linked

    def silent_first(self, depth: int) -> Pattern:
        """Return a pattern that begins with an absence, alone or with others in an `all_of`."""
        silent = [cep.absent(self.single(), for_=self.choose(range(1, 4)) * S) for _ in range(self.choose([1, 1, 2]))]
        steps = [self.single() for _ in range(self.choose(range(3)))]
        pattern: Pattern = cep.all_of(*silent, *steps) if len(silent) + len(steps) > 1 else silent[0]
        return pattern if self.choose(range(3)) == 0 else self.sequence(depth, pattern)

    def alternatives(self) -> Pattern:
        """Return parts that can be called off one by one."""
        if self.choose(range(3)) == 0:
            return cep.any_of(*self.silences())
        kinds = ["silence", "silence", "absent", "until", "step", "any_of"]
        alternatives = [self.alternative(self.choose(kinds)) for _ in range(2)]
        if self.choose(range(3)) == 0:
            alternatives.append(self.alternative(self.choose(["silence", "absent"])))
        whole = cep.any_of(*alternatives)
        kind = self.choose(["once", "once", "once", "times", "until"])
        return whole if kind == "once" else whole.times(2) if kind == "times" else self.until(whole.times(1, 2))

    def before_alternatives(self) -> Pattern:
        """Return a part that leaves more for the next events to decide, or after which the same is waited for
        repeatedly."""
        kind = self.choose(["step", "step", "greedy", "greedy", "silence"])
        pattern: Pattern = self.greedy() if kind == "greedy" else self.single()
        if kind == "silence":
            return pattern.then(cep.absent(self.single(), for_=S).at_least(1))
        return pattern.not_next(self.single()) if self.choose(range(3)) == 0 else pattern

    def silences(self) -> list[Pattern]:
        """Return absences of different events for different times: when the first is called off, the next is due
        later."""
        kinds, times = self.choose([*permutations("abc")]), self.choose([*permutations(range(2, 5))])
        silences = [cep.absent(self.single(kind), for_=time * S) for kind, time in zip(kinds, times, strict=True)]
        return [silence.then(self.single()) if self.choose(range(3)) == 0 else silence for silence in silences]

    def alternative(self, kind: str) -> Pattern:
        pattern: Pattern = self.single()
        if kind == "silence":
            pattern = self.silence()
        elif kind == "absent":
            pattern = cep.all_of(
                pattern, cep.absent(self.single()), *([self.single()] if self.choose(range(3)) == 0 else ())
            )
        elif kind == "until":
            pattern = self.until(pattern.at_least(self.choose([1, 2])))
        elif kind == "any_of":
            pattern = self.until(cep.any_of(pattern, self.alternative(self.choose(["absent", "until"]))).times(1, 2))
        return pattern.then(self.single()) if self.choose(range(3)) == 0 else pattern

    def pattern(self, depth: int) -> Pattern:
        if depth and self.choose(range(8)) == 0:
            return self.silence()
        pattern = self.shape(depth)
        return self.repeated(pattern) if self.choose(range(3)) == 0 else pattern

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
        pattern: Any = self.pattern(depth - 1) if first is None else first
        for _ in range(self.choose(range(1, 4))):
            how = self.choose(["next", "then", "then", "then_any", "not_next", "not_then", "absent"])
            if how == "absent":
                pattern = pattern.then(self.silence())
            elif how.startswith("not"):
                pattern = getattr(pattern, how)(self.single())
            else:
                pattern = getattr(pattern, how)(self.pattern(depth - 1))
        assert isinstance(pattern, Pattern)
        return pattern

    def repeated(self, pattern: Pattern) -> Pattern:
        low, more = self.choose(range(1, 3)), self.choose(range(3))
        plain = pattern.at_least(low) if more == 2 else pattern.times(low, low + more)
        again: Repeated = self.choose([plain, plain, plain.consecutive(), plain.combinations()])
        again = again.optional() if self.choose(range(4)) == 0 else again
        again = again.greedy() if self.choose(range(4)) == 0 else again
        return self.until(again) if self.choose(range(5)) == 0 else again

    def until(self, again: Repeated) -> Repeated:
        kind = self.choose("abcd")
        return again.until(lambda event, match: event.kind == kind)


@dataclass(frozen=True)
class Case:
    """A pattern, the time limits of a match, and whether partial matches have an index."""

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
    pattern = Shapes(choose).whole(depth)
    while any(problems(pattern, within=within, gap=gap)) or not is_short(pattern, within):
        pattern = Shapes(choose).whole(depth)
    return Case(pattern, within, gap, choose([False, True]))


def is_short(pattern: Pattern, within: timedelta | None) -> bool:
    """Return whether it expands to a reasonable number of rows."""
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
    """Give even a few partial matches an index, as many have."""
    few = 0 if is_indexed else 16
    with patch("penstock.cep.runs.FEW", few), patch("penstock.cep.engine.FEW", few):
        yield


def taken_by(path: tuple[int, ...]) -> list[int]:
    """Return the events that steps have taken; a first absence is counted from one that none has."""
    return [event for step, event in zip(path[::2], path[1::2], strict=True) if step >= 0]


QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
PAIRS = 20_000
"""Pairs of the long test. They are drawn without hypothesis, which takes several times as long as the rest."""
TIMED_OUT_EACH = 8
"""For one pair in this many, partial matches that timed out are compared too: that takes longer than the rest."""


def found_by(matches: list[cep.Match], events: list[Letter]) -> list[BruteMatch]:
    numbered = {id(event): place for place, event in enumerate(events)}
    hits = []
    for match in matches:
        assert match.began is not None
        assert match.ended is not None
        hits.append(
            BruteMatch(tuple((name, numbered[id(event)]) for name, event in match.rows), match.began, match.ended)
        )
    return hits


def compare(case: Case, events: list[Letter]) -> list[Numbered]:
    """Compare both results; returns the matches."""
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, **case.times)
    expected = Brute(events, case.within, case.gap).matches(case.pattern)
    assert Counter(found_by(matches, events)) == Counter(match for _, match in expected), told_of(case, events)
    return expected


def compare_once(case: Case, events: list[Letter], expected: list[Numbered]) -> None:
    """Compare with `every=False`, which gives one of the matches that are complete first."""
    with indexed(case.is_indexed):
        hits = found_by(cep.find(case.pattern, events, every=False, **case.times), events)
    earliest = min((match.ended for _, match in expected), default=None)
    assert len(hits) == min(1, len(expected)), told_of(case, events)
    assert all(hit in [match for _, match in expected] and hit.ended == earliest for hit in hits)


def compare_timed_out(case: Case, events: list[Letter]) -> bool:
    """Compare time-outs; returns whether there were any. One with the events of a match is ignored: it may be reported
    or not."""
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, timed_out=True, **case.times)
    complete = {match.taken for match in found_by([match for match in matches if not match.timed_out], events)}
    hits = found_by([match for match in matches if match.timed_out], events)
    try:
        expected = Overdue(events, case.within, case.gap).timed_out(case.pattern)
    except TooMany:
        return False
    one, other = (Counter(hit for hit in several if hit.taken not in complete) for several in (hits, expected))
    assert one == other, told_of(case, events)
    return bool(one)


def told_of(case: Case, events: list[Letter]) -> str:
    return f"{[f'{event.text}@{(event.at - BEGIN).total_seconds()}' for event in events]} {case}"


def compare_skipping(case: Case, events: list[Letter], expected: list[Numbered], after: skip.Skip) -> None:
    if any(problems(case.pattern, skip=after, **case.times)):
        return  # an `every` at the beginning takes few of them
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, skip=after, **case.times)
    if after.name is not None and len({(numbers, match.ended) for numbers, match in expected}) < len(expected):
        return  # which step took an event decides what is skipped, and either match may be emitted
    hits = [_unnamed(hit) for hit in found_by(matches, events)]
    assert hits == [_unnamed(hit) for hit in reported(expected, after)], f"{after} {told_of(case, events)}"


def _unnamed(hit: BruteMatch) -> tuple[Any, ...]:
    """Return the match without the names of steps: of two matches with the same events either may be emitted."""
    return [place for _, place in hit.taken], hit.began, hit.ended


@QUICK
@given(cases(), lists())
def test_find_gives_what_trying_everything_gives(case: Case, events: list[Letter]) -> None:
    compare(case, events)


def made_silent_case(choose: Choose) -> Case:
    """Return a pattern with one absence, which is repeated without a limit."""
    shapes, within, gap = Shapes(choose), choose([4 * S, 12 * S, 12 * S]), choose([None, None, 6 * S])
    silence: Any = cep.absent(shapes.single(), for_=choose([S, S, 2 * S])).at_least(choose([1, 1, 2]))
    pattern = silence
    if choose(range(3)):
        pattern = shapes.single().then(cep.any_of(silence, shapes.single()) if choose(range(3)) == 0 else silence)
    if choose(range(2)):
        pattern = shapes.linked(pattern, shapes.single())
    if choose(range(4)) == 0:
        pattern = getattr(pattern, choose(["not_then", "not_next"]))(shapes.single())
    return Case(pattern, within, gap, choose([False, True]))


@st.composite
def silent_cases(draw: Any) -> tuple[Case, list[Letter]]:
    def choose(several: Sequence[Any]) -> Any:
        return draw(st.sampled_from(several))

    case = made_silent_case(choose)
    while any(problems(case.pattern, **case.times)):
        case = made_silent_case(choose)
    times = [choose(range(7)) for _ in range(choose(range(1, 5)))]
    words = [f"{choose('aaabbbcd')}{choose(range(4))}@{sum(times[: count + 1])}" for count in range(len(times))]
    return case, letters(" ".join(words))


@QUICK
@given(silent_cases(), st.integers(1, 4))
def test_of_the_periods_of_a_repeated_absence_only_the_first_ones_and_the_last_one_of_a_step_count(
    pair: tuple[Case, list[Letter]], periods: int
) -> None:
    case, events = pair
    with indexed(case.is_indexed):
        bounds = cep.Bounds(partial=10_000, events=10_000, periods=periods)
        matches = cep.find(case.pattern, events, bounds=bounds, **case.times)
    expected = Brute(events, case.within, case.gap, periods).matches(case.pattern)
    assert Counter(found_by(matches, events)) == Counter(match for _, match in expected), told_of(case, events)


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
    for after in skips(case, lambda several: data.draw(st.sampled_from(several))):
        compare_skipping(case, events, matches, after)


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
        for after in skips(case, choose):
            compare_skipping(case, events, matches, after)
        compare_once(case, events, matches)
        if number % TIMED_OUT_EACH == 0:
            counts["with some timed out"] += compare_timed_out(case, events)
        counts.update({type(part).__name__ for part in walk(case.pattern)})
        counts["absences without a time"] += "time=None" in repr(case.pattern)
        counts["absences together"] += any(map(has_two_absences, walk(case.pattern)))
    print(f"{PAIRS} pairs: {dict(counts)}")
    assert counts["with some timed out"] > PAIRS / TIMED_OUT_EACH / 4
    wanted = ("On", "Sequence", "Repeated", "AnyOf", "AllOf", "Absent", "Every")
    least = min(counts[kind] for kind in (*wanted, "absences without a time", "absences together", "with matches"))
    assert least > PAIRS / 20


def walk(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    for part in pattern.parts():
        yield from walk(part)


def has_two_absences(part: Pattern) -> bool:
    return isinstance(part, AllOf) and sum(isinstance(member, Absent) for member in part.of) > 1


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
    engine, memory = PatternEngine(search, [Letter]), memory_class("Kept", [Letter])()
    lost = 0
    for event in events:
        with indexed(case.is_indexed):
            outcome = engine.feed(memory, event, event.at, At(event.at))
        lost += len(outcome.lost) if outcome is not None else 0
        kept = [*memory.runs, *memory.complete]
        assert len(kept) <= 3
        assert set(memory.held_0) == {number for run in kept for number in taken_by(run.path)}
    assert memory.lost == lost
