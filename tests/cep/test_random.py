"""Random small patterns over random short lists, against trying everything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from penstock import cep
from penstock.cep import skip
from penstock.cep.engine import Engine
from penstock.cep.finding import At
from penstock.cep.memory import memory_class
from penstock.cep.pattern import On, Pattern, Repeated
from penstock.cep.problems import problems
from penstock.cep.search import Search
from tests.cep.letters import Letter, letters
from tests.cep.naive import Naive

S = timedelta(seconds=1)
KINDS = st.sampled_from(["a", "b", "ab", "ab", "bc", "abc"])


def step(name: str, kinds: str, rising: bool) -> On:
    def fits(event: Letter, match: cep.Match) -> bool:
        return event.kind in kinds and not (rising and match.events and event.number <= match.events[-1].number)

    fits.__qualname__ = f"{kinds}{'+' if rising else ''}"
    return cep.on(name, Letter, fits)


class Shapes:
    """Draws a pattern, each step with a name of its own."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.count = draw, 0

    def single(self) -> On:
        self.count += 1
        return step(f"s{self.count}", self.draw(KINDS), self.draw(st.integers(0, 5)) == 0)

    def pattern(self, depth: int) -> Pattern:
        made = self.shape(depth)
        return self.repeated(made) if self.draw(st.integers(0, 2)) == 0 else made

    def shape(self, depth: int) -> Pattern:
        kind = self.draw(st.sampled_from(["step", "step", "sequence", "any_of", "all_of"])) if depth else "step"
        if kind == "step":
            return self.single()
        if kind == "any_of":
            return cep.any_of(*(self.pattern(depth - 1) for _ in range(2)))
        if kind == "all_of":
            return cep.all_of(*(self.single() for _ in range(self.draw(st.integers(2, 3)))))
        return self.sequence(depth)

    def sequence(self, depth: int) -> Pattern:
        made: Any = self.pattern(depth - 1)
        for _ in range(self.draw(st.integers(1, 3))):
            how = self.draw(st.sampled_from(["next", "then", "then", "then_any", "not_next", "not_then", "absent"]))
            if how == "absent":
                made = made.then(cep.absent(self.single(), for_=self.draw(st.integers(1, 4)) * S))
            elif how.startswith("not"):
                made = getattr(made, how)(self.single())
            else:
                made = getattr(made, how)(self.pattern(depth - 1))
        assert isinstance(made, Pattern)
        return made

    def repeated(self, made: Pattern) -> Pattern:
        low, more = self.draw(st.integers(1, 2)), self.draw(st.integers(0, 2))
        plain = made.at_least(low) if more == 2 else made.times(low, low + more)
        again: Repeated = self.draw(st.sampled_from([plain, plain, plain.consecutive(), plain.combinations()]))
        again = again.optional() if self.draw(st.integers(0, 3)) == 0 else again
        again = again.greedy() if self.draw(st.integers(0, 3)) == 0 else again
        if self.draw(st.integers(0, 4)) == 0:
            kind = self.draw(st.sampled_from("abcd"))
            again = again.until(lambda event, match: event.kind == kind)
        return again


@st.composite
def patterns(draw: Any) -> tuple[Pattern, timedelta | None]:
    within = draw(st.sampled_from([None, 4 * S, 8 * S]))
    depth = draw(st.sampled_from([1, 1, 2]))
    made = Shapes(draw).sequence(depth)
    while any(problems(made, within=within)):
        made = Shapes(draw).sequence(depth)
    return made, within


@st.composite
def lists(draw: Any) -> list[Letter]:
    at, words = 0, []
    for _ in range(draw(st.integers(3, 7))):
        at += draw(st.sampled_from([0, 1, 1, 1, 1, 2]))
        words.append(f"{draw(st.sampled_from('aaabbbcd'))}{draw(st.integers(0, 3))}@{at}")
    return letters(" ".join(words))


QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(patterns(), lists())
def test_find_gives_what_trying_everything_gives(given_pattern: tuple[Pattern, timedelta | None], events: Any) -> None:
    pattern, within = given_pattern
    note(f"{[each.text + str(each.at.second) for each in events]} within {within}")
    numbered = {id(event): place for place, event in enumerate(events)}
    matches = cep.find(pattern, events, within=within)
    found = [
        (tuple((name, numbered[id(event)]) for name, event in zip(each.steps, each.events, strict=True)), each.ended)
        for each in matches
    ]
    assert len(set(found)) == len(found)
    assert set(found) == Naive(events, within).matches(pattern)


@QUICK
@given(patterns(), lists(), st.sampled_from([skip.to_next, skip.past_last]))
def test_skipping_gives_what_trying_everything_and_skipping_gives(
    given_pattern: tuple[Pattern, timedelta | None], events: Any, after: skip.Skip
) -> None:
    pattern, within = given_pattern
    note(f"{[each.text + str(each.at.second) for each in events]} within {within}")
    numbered = {id(event): place for place, event in enumerate(events)}
    matches = cep.find(pattern, events, within=within, skip=after)
    told = [(numbered[id(each.events[0])], each.ended) for each in matches]
    assert told == Naive(events, within).told(pattern, after)


@QUICK
@given(
    patterns(),
    lists(),
    st.sampled_from([skip.none, skip.to_next, skip.past_last]),
    st.sampled_from(["drop_oldest", "refuse_new"]),
)
def test_no_more_is_kept_than_may_be_and_no_event_that_nothing_has(
    given_pattern: tuple[Pattern, timedelta | None], events: Any, after: skip.Skip, full: Any
) -> None:
    pattern, within = given_pattern
    search = Search(pattern, within, after, bounds=cep.Bounds(partial=3, events=3, full=full))
    engine, memory = Engine(search, [Letter]), memory_class("Kept", [Letter])()
    lost = 0
    for event in events:
        found = engine.feed(memory, event, event.at, At(event.at))
        lost += len(found.lost) if found is not None else 0
        kept = [*memory.runs, *memory.complete]
        assert len(kept) <= 3
        assert set(memory.held_0) == {number for each in kept for number in each.path[1::2]}
    assert memory.lost == lost
