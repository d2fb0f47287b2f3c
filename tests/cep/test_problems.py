"""The patterns that `check` refuses, each with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from penstock import App, Event, cep, joins
from penstock.app.check import check
from penstock.cep import skip
from penstock.core.errors import DeclarationError
from tests.cep.letters import Letter, letters, on

S = timedelta(seconds=1)
a, b, c = (cast(Any, on(name)) for name in "abc")  # most of these mistakes would be reported by a type checker
step: Any = cep.on
bounds: Any = cep.Bounds


class Hit(Event):
    key: str


class Other(Event, time="at"):
    at: datetime
    key: str


class Timeless(Event):
    key: str


def hit(match: cep.Match) -> Hit:
    return Hit(key=match.key)


def fits(event: Letter, match: cep.Match) -> bool:
    return True


async def hit_later(match: cep.Match) -> Hit:
    return Hit(key=match.key)


def declare(app: App, pattern: Any, **options: Any) -> None:
    given: dict[str, Any] = {"within": 10 * S, "reads": "letters", "key": "key"} | options
    app.match("hits", pattern=pattern, emits=Hit, **given)(hit)


def tell_timeouts(app: App, times: int, **options: Any) -> None:
    given: dict[str, Any] = {"pattern": a.then(b), "within": S} | options
    hits = app.match("hits", reads="letters", key="key", emits=Hit, **given)(hit)
    for _ in range(times):
        hits.timeout(hit)


BAD: list[tuple[Callable[[App], object], str]] = [
    (lambda app: declare(app, "a then b"), "make one with cep.on(name, Class, predicate)"),
    (lambda app: declare(app, a.then("b")), "'b' is not a pattern"),
    (lambda app: declare(app, a.then(b), within=0 * S), "within must be a timedelta above zero"),
    (lambda app: declare(app, a.then(b), within=None), "could wait forever for its next event: set within="),
    (
        lambda app: declare(app, a.next(b.at_least(1)), within=None),
        "would be kept forever: set within=, or use times(low",
    ),
    (lambda app: declare(app, a.times(3), within=None), "could wait forever"),
    (lambda app: declare(app, cep.all_of(a, b), within=None), "could wait forever"),
    (lambda app: declare(app, a.not_then(b), within=None), "but has no time limit: set within="),
    (lambda app: declare(app, a.then(on("a"))), "2 steps have the name 'a': give each step a unique name"),
    (
        lambda app: declare(app, a.then(b), skip=skip.to_first("x")),
        "skip=to_first('x') names an unknown step; the steps are 'a', 'b'",
    ),
    (
        lambda app: declare(app, a.not_then(b).then(c), skip=skip.to_last("b")),
        "names an unknown step; the steps are 'a', 'c'",
    ),
    (lambda app: declare(app, a.then(b), skip="past_last"), "use cep.skip.none, to_next, past_last"),
    (
        lambda app: declare(app, step("x", Letter, lambda event: True)),
        "must take two arguments: write lambda event, mat",
    ),
    (
        lambda app: declare(app, a.at_least(1).until(lambda event: True)),
        "the predicate of until must take two arguments",
    ),
    (lambda app: declare(app, step("x", Letter, 3)), "the predicate of 'x' is 3"),
    (lambda app: declare(app, step("x", int)), "which is not a class derived from Event"),
    (lambda app: declare(app, cep.on("", Letter)), "a step has the name ''"),
    (
        lambda app: declare(app, a.then(cep.on("x", Other))),
        "is Other, but only events of Letter are read",
    ),
    (lambda app: declare(app, a.times(0)), "times(0) can never match: use 1 or more, or optional() for zero"),
    (lambda app: declare(app, a.times(3, 2)), "times(3, 2) can never match"),
    (lambda app: declare(app, a.times(3_000)), "it expands to more than 2,000 states"),
    (lambda app: declare(app, a.optional()), "every step is optional, so a match would need no events"),
    (
        lambda app: declare(app, a.optional().then(b.optional()).times(2).then(c)),
        "a group in which all steps are optional cannot be repeated",
    ),
    (lambda app: declare(app, a.then(b.at_least(1).greedy())), "a greedy repetition at the end has no effect"),
    (lambda app: declare(app, a.times(1).greedy().then(b)), "greedy applies to a repetition or an optional step"),
    (
        lambda app: declare(app, a.next(b).at_least(1).greedy().then(c)),
        "greedy applies to a single step, not to a group",
    ),
    (lambda app: declare(app, a.optional().until(lambda event, match: True).then(b)), "until applies to a repetition"),
    (
        lambda app: declare(app, a.not_then(b).then(cep.on("again", Letter, b.predicate))),
        "it can never match: 'again' must occur, but 'b'",
    ),
    (
        lambda app: declare(app, a.not_next(b).next(cep.on("again", Letter, b.predicate))),
        "it can never match: 'again' must occur, but 'b'",
    ),
    (lambda app: declare(app, a.optional().not_then(b).then(c)), "the step before not_then must not be optional"),
    (lambda app: declare(app, a.then(b.at_least(1).greedy()).then(c.optional())), "at the end has no effect"),
    (lambda app: declare(app, a.not_then(b.then(c)).then(a)), "not_then takes a single step, not a group"),
    (
        lambda app: declare(app, a.not_then(b).then(c.optional())),
        "must be the last part: no optional or repeated",
    ),
    (lambda app: declare(app, a.not_next(b).not_then(c)), "it ends with both not_next and not_then"),
    (
        lambda app: declare(app, cep.all_of(cep.absent(a, for_=S), cep.absent(b), c)),
        "if all_of is the first step, either all or none of its absences must have a time",
    ),
    (
        lambda app: declare(app, c.then(cep.all_of(cep.absent(a), cep.absent(b)))),
        "nothing completes it: add a step, or set for_= on an absence",
    ),
    (
        lambda app: declare(app, cep.any_of(cep.all_of(cep.absent(a, for_=S), b), c)),
        "an all_of with a timed absence cannot begin a part of any_of",
    ),
    (lambda app: declare(app, cep.all_of(cep.absent(a, for_=S), b), within=None, gap=2 * S), "could wait forever"),
    (lambda app: declare(app, a.then(cep.absent(b))), "an absence needs a time, for_="),
    (lambda app: declare(app, cep.absent(b)), "an absence needs a time, for_="),
    (lambda app: declare(app, a.next(cep.all_of(cep.absent(b), c))), "an absence must be linked with then, not with"),
    (lambda app: declare(app, cep.every(a.then(b)).times(2)), "every must be a top-level part of the pattern"),
    (lambda app: declare(app, cep.any_of(cep.every(a), b)), "every must be a top-level part of the pattern"),
    (lambda app: declare(app, a.then(cep.every(b).then(c))), "every must be a top-level part of the pattern"),
    (lambda app: declare(app, a.next(cep.every(b))), "every must be a top-level part of the pattern"),
    (lambda app: declare(app, cep.every(cep.every(a))), "every must be a top-level part of the pattern"),
    (lambda app: declare(app, cep.every(a.next(b))), "every takes only steps linked with then"),
    (lambda app: declare(app, cep.every(a.then_any(b))), "every takes only steps linked with then"),
    (lambda app: declare(app, cep.every(a.not_then(b))), "every takes only steps linked with then"),
    (lambda app: declare(app, cep.every(a.at_least(1))), "every takes only steps linked with then"),
    (lambda app: declare(app, cep.every(a.optional())), "every takes only steps linked with then"),
    (lambda app: declare(app, cep.every(cep.all_of(a, b))), "every takes only steps linked with then"),
    (lambda app: declare(app, cep.every(cep.absent(a, for_=S))), "every takes only steps linked with then"),
    (lambda app: declare(app, a.then(cep.every(b)), gap=S), "every after a step needs within= instead of gap="),
    (lambda app: declare(app, cep.every(a.then(b)), skip=skip.past_last), "remove either skip=past_last or every"),
    (lambda app: declare(app, a.optional().then(cep.every(b))), "the step before every must not be optional"),
    (
        lambda app: declare(app, cep.every(a.then(b)), within=None),
        "without within=, a partial match could wait forever",
    ),
    (
        lambda app: declare(app, c.then(cep.any_of(cep.all_of(cep.absent(a, for_=S), b), on("d")))),
        "an all_of with a timed absence cannot begin a part of any_of",
    ),
    (
        lambda app: declare(app, c.next(cep.any_of(cep.absent(a, for_=S), b))),
        "an absence must be linked with then, not with next",
    ),
    (
        lambda app: declare(app, a.then(cep.absent(b, for_=S).at_least(1).consecutive())),
        "a part that begins with an absence can be repeated only with times(n) or at_least(n)",
    ),
    (lambda app: declare(app, a.then(cep.absent(b, for_=S).optional()).then(c)), "an absence cannot be optional"),
    (
        lambda app: declare(app, cep.absent(b, for_=S).at_least(1), within=None, gap=2 * S),
        "absences that repeat without a limit need a time limit: set within=",
    ),
    (
        lambda app: declare(app, cep.absent(a, for_=S).then(b), within=None, gap=2 * S),
        "could wait forever for its next event: set within=",
    ),
    (
        lambda app: declare(app, cep.absent(a, for_=S).not_then(b), within=None, gap=2 * S),
        "but has no time limit: set within=",
    ),
    (lambda app: declare(app, a.then(b), gap=0 * S), "gap must be a timedelta above zero"),
    (lambda app: declare(app, a.then(b), gap=timedelta.max), "is too long"),
    (lambda app: declare(app, a.then(cep.absent(b, for_=3 * S)), gap=2 * S), "is longer than gap=0:00:02"),
    (lambda app: declare(app, a.next(cep.absent(b, for_=S))), "an absence must be linked with then, not with next"),
    (
        lambda app: declare(app, a.then(cep.absent(b, for_=11 * S))),
        "it can never match: an absence of 0:00:11 is longer",
    ),
    (
        lambda app: declare(app, a.then(cep.absent(b, for_=6 * S).times(2))),
        "it can never match: its absences, one after the other, take at least 0:00:12, but within=0:00:10",
    ),
    (
        lambda app: declare(app, a.then(cep.absent(b, for_=6 * S)).then(cep.absent(c, for_=5 * S))),
        "it can never match: its absences, one after the other, take at least 0:00:11, but within=0:00:10",
    ),
    (
        lambda app: declare(app, a.then(cep.absent(b, for_=2 * S).times(2)).then(c), gap=3 * S),
        "it can never match: its absences, one after the other, take longer than gap=0:00:03",
    ),
    (
        lambda app: declare(
            app, a.then(cep.any_of(cep.absent(b, for_=11 * S), cep.absent(c, for_=12 * S).then(on("d"))))
        ),
        "it can never match: an absence of 0:00:12 is longer than within",
    ),
    (lambda app: declare(app, a.then(cep.absent(b, for_=0 * S))), "for_ must be a timedelta above zero"),
    (
        lambda app: declare(app, a.optional().then(cep.absent(b, for_=S)).then(c)),
        "the step before an absence must not be",
    ),
    (lambda app: declare(app, cep.any_of(a)), "any_of needs at least two parts"),
    (lambda app: declare(app, cep.any_of(a, b.optional()).then(c)), "a part of any_of must not be optional"),
    (lambda app: declare(app, cep.all_of(a, b.then(c))), "all_of takes only single steps"),
    (lambda app: declare(app, cep.all_of(*(on(name) for name in "abcdefg"))), "all_of takes up to 6 steps"),
    (lambda app: declare(app, a, reads="nowhere"), "it reads 'nowhere', which is not a stream of this app"),
    (
        lambda app: declare(app, a, reads=["letters", "timeless"]),
        "Timeless has no event time, but the other inputs have one",
    ),
    (lambda app: tell_timeouts(app, 1), "set timeouts=Class"),
    (lambda app: tell_timeouts(app, 0, timeouts=Other), "it declares timeouts, but has 0 timeout functions"),
    (lambda app: tell_timeouts(app, 1, timeouts=Hit), "two of the classes that it emits have the same name"),
    (lambda app: app.match("h", reads="letters", key="key", pattern=a, emits=Hit)(hit_later), "it is async"),
    (
        lambda app: tell_timeouts(app, 1, timeouts=Other, pattern=a.next(b), within=None),
        "it declares timeouts, but has no time limit: set wi",
    ),
    (lambda app: declare(app, a.then(b), key=["key"]), "the key is ['key']; use the name of one field of Letter: at"),
    (
        lambda app: declare(app, a.then(b), within=timedelta.max),
        "is too long; use at most timedelta(days=36525)",
    ),
    (
        lambda app: declare(app, a.then(cep.absent(b, for_=timedelta.max)), within=None),
        "is too long; use at most timedelta(days=36525)",
    ),
    (lambda app: declare(app, a, bounds=bounds(partial=0)), "bounds: partial must be an integer of at least 1"),
    (lambda app: declare(app, a, bounds=bounds(events=-1)), "bounds: events must be an integer of at least 1"),
    (lambda app: declare(app, a, bounds=bounds(waiting="9")), "bounds: waiting must be an integer of at least 1"),
    (lambda app: declare(app, a, bounds=bounds(full="wait")), "bounds: full is 'wait'; use 'drop_oldest' or 'refuse_n"),
    (lambda app: declare(app, a, bounds=bounds(remember=0 * S)), "bounds: remember must be a timedelta above zero"),
    (lambda app: declare(app, a, bounds=bounds(remember=timedelta.max)), "bounds: remember must be a timedelta above"),
    (lambda app: declare(app, a, bounds=5), "bounds is 5; pass cep.Bounds("),
    (lambda app: declare(app, a, bounds=joins.Bounds()), "pass cep.Bounds("),
]


@pytest.mark.parametrize(("bad", "expected"), BAD)
def test_a_bad_pattern_is_refused_with_what_to_write_instead(bad: Callable[[App], object], expected: str) -> None:
    app = App("letters")
    app.stream("letters", Letter, key="key")
    app.stream("timeless", Timeless, key="key")
    bad(app)
    problems = [str(problem) for problem in check(app)]
    assert len([problem for problem in problems if expected in problem]) == 1, problems
    assert all(re.search(r"test_problems\.py:\d+", problem) for problem in problems), problems


GOOD = [
    a,
    a.next(b),
    a.next(b).next(c),
    a.times(3).consecutive(),
    a.then(cep.absent(b, for_=S)),
    cep.any_of(a.next(b), b.next(a)),  # the same steps, in the other order
    cep.absent(a, for_=S),
    cep.absent(a, for_=S).times(3),
    c.then(cep.all_of(cep.absent(a, for_=S), cep.absent(b, for_=2 * S))),
    c.then(cep.any_of(cep.absent(a, for_=S), cep.absent(b, for_=2 * S))),
    cep.all_of(cep.absent(a), b),
    cep.all_of(cep.absent(a, for_=S), cep.absent(b, for_=2 * S)),
    cep.every(a),
]


@pytest.mark.parametrize("pattern", GOOD)
def test_a_pattern_that_never_waits_without_end_needs_no_within(pattern: cep.Pattern) -> None:
    app = App("letters")
    app.stream("letters", Letter, key="key")
    app.match("hits", reads="letters", key="key", pattern=pattern, emits=Hit)(hit)
    assert check(app) == []


def test_a_gap_is_a_time_as_well_for_a_pattern_that_could_wait() -> None:
    app = App("letters")
    app.stream("letters", Letter, key="key")
    declare(app, a.then(b.at_least(1)).then(c), within=None, gap=S)
    assert check(app) == []


def test_find_refuses_the_same() -> None:
    with pytest.raises(DeclarationError, match="but has no time limit"):
        cep.find(a.not_then(b), [])


def test_find_refuses_bounds_that_are_none() -> None:
    with pytest.raises(DeclarationError, match="bounds is 0; pass"):
        cep.find(a, [], bounds=cast(Any, 0))


def test_find_says_so_when_there_are_too_many_partial_matches() -> None:
    many = letters(" ".join(["a"] * 16))
    with pytest.raises(DeclarationError, match="there are too many partial matches"):
        cep.find(a.at_least(1).combinations().then(b), many)
    assert len(cep.find(a.at_least(1).combinations().then(b), many[:2], bounds=cep.Bounds(partial=1))) == 0
