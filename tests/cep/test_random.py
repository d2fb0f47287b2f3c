"""Random small patterns over random short lists, against trying everything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
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
from penstock.cep.pattern import On, Pattern, Repeated
from penstock.cep.problems import problems
from penstock.cep.runs import events_of
from penstock.cep.search import Search
from tests.cep.letters import Letter, letters
from tests.cep.naive import Found, Naive

S = timedelta(seconds=1)
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

    def single(self) -> On:
        self.count += 1
        return step(f"s{self.count}", self.choose(KINDS), self.choose(range(6)) == 0)

    def silence(self) -> Pattern:
        made = cep.absent(self.single(), for_=self.choose(range(1, 5)) * S)
        kind = self.choose(["once", "once", "once", "times", "at_least"])
        return made if kind == "once" else made.times(2) if kind == "times" else made.at_least(1)

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
            silence = [self.silence()] if self.choose(range(3)) == 0 else []
            return cep.all_of(*(self.single() for _ in range(self.choose(range(2 - len(silence), 4)))), *silence)
        return self.sequence(depth)

    def sequence(self, depth: int) -> Pattern:
        made: Any = self.pattern(depth - 1)
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
        if self.choose(range(5)) == 0:
            kind = self.choose("abcd")
            again = again.until(lambda event, match: event.kind == kind)
        return again


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
    made = Shapes(choose).sequence(depth)
    while any(problems(made, within=within, gap=gap)):
        made = Shapes(choose).sequence(depth)
    return Case(made, within, gap, choose([False, True]))


def made_list(choose: Choose) -> list[Letter]:
    at, words = 0, []
    for _ in range(choose(range(3, 8))):
        at += choose([0, 1, 1, 1, 1, 2])
        words.append(f"{choose('aaabbbcd')}{choose(range(4))}@{at}")
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


QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
PAIRS = 20_000
"""Of the long test. They are drawn without hypothesis, which takes several times as long as the rest."""


def found_by(matches: list[cep.Match], events: list[Letter]) -> list[Found]:
    numbered = {id(event): place for place, event in enumerate(events)}
    made = []
    for each in matches:
        assert each.began is not None
        assert each.ended is not None
        made.append(Found(tuple((name, numbered[id(event)]) for name, event in each.rows), each.began, each.ended))
    return made


def compare(case: Case, events: list[Letter]) -> int:
    """Returns how many matches there are."""
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, **case.times)
    expected = Naive(events, case.within, case.gap).matches(case.pattern)
    assert Counter(found_by(matches, events)) == Counter(expected), told_of(case, events)
    return len(expected)


def told_of(case: Case, events: list[Letter]) -> str:
    return f"{[f'{each.text}@{each.at.second}' for each in events]} {case}"


def compare_skipping(case: Case, events: list[Letter], after: skip.Skip) -> None:
    with indexed(case.is_indexed):
        matches = cep.find(case.pattern, events, skip=after, **case.times)
    told = Naive(events, case.within, case.gap).told(case.pattern, after)
    found = [_unnamed(each) for each in found_by(matches, events)]
    assert found == [_unnamed(each) for each in told], f"{after} {told_of(case, events)}"


def _unnamed(found: Found) -> tuple[Any, ...]:
    """Which step took an event does not count: of two matches with the same events either may be told."""
    return [place for _, place in found.taken], found.began, found.ended


@QUICK
@given(cases(), lists())
def test_find_gives_what_trying_everything_gives(case: Case, events: list[Letter]) -> None:
    compare(case, events)


@QUICK
@given(cases(), lists(), st.sampled_from([skip.to_next, skip.past_last]))
def test_skipping_gives_what_trying_everything_and_skipping_gives(
    case: Case, events: list[Letter], after: skip.Skip
) -> None:
    compare_skipping(case, events, after)


@pytest.mark.soak
def test_thousands_of_pairs_give_what_trying_everything_gives() -> None:
    matches = Counter[str]()
    for seed in range(PAIRS):
        choose = Random(f"{os.environ['TEST_SEED']}/{seed}").choice
        case, events = made_case(choose), made_list(choose)
        matches["pairs with matches"] += compare(case, events) > 0
        compare_skipping(case, events, skip.to_next)
        compare_skipping(case, events, skip.past_last)
    assert matches["pairs with matches"] > PAIRS / 10


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
        assert set(memory.held_0) == {number for each in kept for number in events_of(each.path)}
    assert memory.lost == lost
