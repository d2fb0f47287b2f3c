"""Two streams within an interval: the pairs, when an event is emitted without a partner, and missed events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import App, Event, joins
from penstock.app.check import check
from penstock.joins.asof import AsOfJoin
from penstock.joins.interval import IntervalJoin
from penstock.joins.output import MOMENT, Side
from penstock.testing import run, tick
from tests.joins.ads import Both, Left, Right, S, join_app, missed_texts, pair, parsed, result_of, second, texts

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "one after the other": ({}, "L1@0 R1@5", "L1 R1"),
    "in the other order": ({}, "R1@5 L1@0", "L1 R1"),
    "the right one first": ({}, "R1@0 L1@5", "L1 R1"),
    "each with each": ({}, "L1@0 L2@1 R1@2 R2@3", "L1 R1, L2 R1, L1 R2, L2 R2"),
    "the same event twice is two": ({}, "L1@0 R1@1 R1@1", "L1 R1, L1 R1"),
    "by key": ({}, "L1a@0 R1b@1 R2a@2", "L1 R2"),
    "at the very end of the interval": ({}, "L1@0 R1@10", "L1 R1"),
    "past the end": ({}, "L1@0 R1@10.000001", ""),
    "not before": ({"within": (0 * S, 10 * S)}, "R1@4 L1@5 R2@5 R3@15", "L1 R2, L1 R3"),
    "from before to after": ({"within": (2 * S, 5 * S)}, "R1@2 R2@3 L1@5 R3@10 R4@11", "L1 R2, L1 R3"),
    "an interval that begins later": ({"within": (-5 * S, 10 * S)}, "L1@0 R1@4 R2@5 R3@10 R4@11", "L1 R2, L1 R3"),
    "out of order, as far as allowed": ({"late": (5, 5)}, "L1@20 R1@20 L2@15 R2@15", "L1 R1, L2 R1, L2 R2, L1 R2"),
    "the streams' times may differ": ({"late": (1, 1)}, "R1@100 R2@200 L1@95 L2@195", "L1 R1, L2 R2"),
    "inner tells of no others": ({}, "L1@0 R1@50 L2@100 +99", ""),
    "left tells of left ones without a partner": ({"how": "left"}, "L1@0 R1@50 L2@100 +99", "L1 -, L2 -"),
    "right tells of right ones": ({"how": "right"}, "L1@0 R1@50 L2@100 +99", "- R1"),
    "full tells of both": ({"how": "full"}, "L1@0 R1@50 L2@100 +99", "L1 -, - R1, L2 -"),
    "one that had a partner is not told again": ({"how": "full"}, "L1@0 R1@5 R2@50 L2@100 +99", "L1 R1, - R2, L2 -"),
    "a partner in the last moment": ({"how": "left", "late": (1, 5)}, "L1@0 R1@15 R2@10 +99", "L1 R2"),
    "not told while a partner may come": ({"how": "left", "late": (1, 5)}, "L1@0 R1@15", ""),
    "told as soon as none can": ({"how": "left", "late": (1, 5)}, "L1@0 R1@15.000001", "L1 -"),
    "told at once if it comes when none can": ({"how": "left"}, "R1@50 L1@0", "L1 -"),
    "on a quiet stream by log time": ({"how": "left"}, "L1@0 +11 +0", ""),
    "when the interval has passed": ({"how": "left"}, "L1@0 +12", "L1 -"),
    "and what may be late": ({"how": "left", "late": (1, 5)}, "L1@0 +15 +0", ""),
    "when that has passed": ({"how": "left", "late": (1, 5)}, "L1@0 +16", "L1 -"),
    "a right one waits for the left side": ({"how": "right", "late": (5, 1)}, "R1@0 +14", ""),
    "a right one is told": ({"how": "right", "late": (5, 1)}, "R1@0 +16", "- R1"),
    "nothing ahead": ({"how": "left", "within": (9 * S, 0 * S)}, "R1@1 L1@10 L2@11 +2", "L1 R1, L2 -"),
}  # fmt: skip


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("options", "events", "expected"), CASES.values(), ids=CASES)
def test_the_events_give_these_pairs(options: dict[str, Any], events: str, expected: str, crashes: bool) -> None:
    app, both = join_app(**options)
    result = result_of(app, parsed(events), crashes=crashes)
    assert texts(result) == [text for text in expected.split(", ") if text]
    assert (missed_texts(result), result.failed(both)) == ([], [])


MISSED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "behind its own stream": ({}, "L1@20 L2@18 R1@20", "L1 R1", "lefts late 1"),
    "further behind than allowed": ({"late": (5, 1)}, "L1@20 L2@15 L3@14 R1@20", "L2 R1, L1 R1", "lefts late 1"),
    "after its partner's time was over": ({"how": "left"}, "L1@0 +12 R1@7", "L1 -", "rights late 3"),
    "a late one is not told as one without partner": ({"how": "full"}, "L1@20 L2@5 +99", "L1 -", "lefts late 14"),
    "the oldest gives way": ({"bounds": joins.Bounds(events=2)}, "L1@0 L2@1 L3@2 R1@3", "L2 R1, L3 R1", "lefts full 0"),
    "the new one does": (
        {"bounds": joins.Bounds(events=2, full="refuse_new")}, "L1@0 L2@1 L3@2 R1@3", "L1 R1, L2 R1", "lefts full 0",
    ),
    "the oldest is the new one": (
        {"bounds": joins.Bounds(events=2), "late": (9, 9)}, "L1@5 L2@6 L3@4 R1@7", "L1 R1, L2 R1", "lefts full 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("options", "events", "expected", "missed"), MISSED.values(), ids=MISSED)
def test_what_is_not_joined_to_the_end_is_told(
    options: dict[str, Any], events: str, expected: str, missed: str, crashes: bool
) -> None:
    app, _ = join_app(**options)
    result = result_of(app, parsed(events), crashes=crashes)
    assert (texts(result), missed_texts(result)) == (expected.split(", "), [missed])


def test_a_missed_event_is_told_whole() -> None:
    app, _ = join_app()
    [missed] = result_of(app, parsed("L1@20 L2@18")).emitted("both.missed")
    assert (missed.key, missed.at, missed.error) == ("k", second(18), None)
    assert missed.event == '{"at":"2024-01-01T00:00:18Z","number":2,"key":"k"}'


def test_a_key_is_forgotten_when_nothing_came_for_long() -> None:
    app, both = join_app(bounds=joins.Bounds(remember=100 * S))
    assert result_of(app, parsed("L1@0 R1@1 +99 +0")).states(both).keys() == {"k"}
    assert result_of(app, parsed("L1@0 R1@1 +200 +0")).states(both) == {}


def test_what_is_kept_of_a_key_does_not_grow() -> None:
    app, both = join_app(how="full")
    events = " ".join(f"L{number}@{number} R{number}@{number}" for number in range(200))
    state = result_of(app, parsed(events)).states(both)["k"]
    assert len(state.slots_0) == len(state.held_0) == len(state.came_0) == 12


def test_the_function_may_make_several_events_or_none_and_its_failure_is_that_of_the_event() -> None:
    def several(left: Left, right: Right) -> list[Both] | None:
        if right.number == 7:
            raise ValueError("seven")
        return [Both(text=str(number)) for number in range(right.number)] or None

    app = App("ads")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    joiner = app.join("both", left="lefts", right="rights", key=("key", "name"), within=S, emits=Both)(several)
    result = result_of(app, parsed("L1@0 R0@0 R2@0 R7@0 R1@0"))
    assert texts(result) == ["0", "1", "0"]
    assert [failure.error for failure in result.failed(joiner)] == ["ValueError: seven"]


def test_a_failure_on_one_whose_time_is_over_is_not_that_of_the_event_at_hand() -> None:
    def picky(left: Left | None, right: Right | None) -> Both:
        if right is None:
            raise ValueError("alone")
        return pair(left, right)

    app = App("ads")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    joiner = app.join("both", left="lefts", right="rights", key=("key", "name"), within=S, how="left", emits=Both)(
        picky
    )
    result = result_of(app, parsed("L1@0 L2@100 R1@100"))
    assert (texts(result), missed_texts(result), result.failed(joiner)) == (["L2 R1"], ["lefts failed 0"], [])
    assert result.emitted("both.missed")[0].error == "ValueError: alone"


class Clicked(Event):
    number: int
    after_s: float


def after(left: Left, right: Right | None) -> Clicked:
    """Forget that `after_s` cannot be None."""
    after_s: Any = None if right is None else (right.at - left.at).total_seconds()
    return Clicked(number=left.number, after_s=after_s)


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
def test_a_result_of_a_wrong_type_is_missed_alone_when_the_wait_is_over(crashes: bool) -> None:
    app = App("ads")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    declare = app.join("both", left="lefts", right="rights", key=("key", "name"), within=S, how="left", emits=Clicked)
    joiner = declare(after)
    result = result_of(app, parsed("L1@0 +60 L2@60 R2@60.5 R3@90 L4@95 R4@95 +9 R5@130"), crashes=crashes)
    assert [(event.number, event.after_s) for event in result.emitted(joiner)] == [(2, 0.5), (4, 0.0)]
    assert (missed_texts(result), result.failed(joiner)) == (["lefts failed 0"], [])
    (missed,) = result.emitted("both.missed")
    assert '"number":1' in missed.event
    assert "Expected `float`, got `null`" in missed.error


def test_a_result_that_is_no_event_is_missed_alone_when_the_wait_is_over() -> None:
    def strange(left: Left, right: Right | None) -> Any:
        return [left.number] if right is None else pair(left, right)

    app = App("ads")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    declare = app.join("both", left="lefts", right="rights", key=("key", "name"), within=S, how="left", emits=Both)
    joiner = declare(strange)
    result = result_of(app, parsed("L1@0 L2@100 R1@100"))
    assert (texts(result), missed_texts(result), result.failed(joiner)) == (["L2 R1"], ["lefts failed 0"], [])
    assert result.emitted("both.missed")[0].error == "TypeError: returned int, which is not an event"


class Timers:
    """A context that keeps the timers that are set."""

    key, stream = "k", "lefts"

    def __init__(self) -> None:
        self.now, self.timers = second(0), list[tuple[str, Any]]()

    def timer(self, name: str, at: Any) -> None:
        self.timers.append((name, at))


@pytest.mark.parametrize("kind", ["interval", "as of"])
def test_a_timer_that_has_failed_is_set_again_by_the_next_event(kind: str) -> None:
    """After a failure, the state is as before the timer fired, but the timer is gone."""
    sides, bounds = (Side("lefts", Left, S), Side("rights", Right, S)), joins.Bounds()
    joining = (
        IntervalJoin(sides, (S, S), "left", pair, bounds).joining()
        if kind == "interval"
        else AsOfJoin(*sides, inner=False, keep=S, function=pair, bounds=bounds).joining()
    )
    state: Any = joining.state()
    context: Any = Timers()
    list(joining.on_event(state, Left(at=second(0), number=1), context))
    (set_at,) = context.timers
    list(joining.on_event(state, Left(at=second(0), number=2), context))
    assert context.timers == [set_at]  # it has not fired yet
    for now in (set_at[1], second(50)):
        context.now = now
        list(joining.on_event(state, Left(at=second(0), number=3), context))
        assert context.timers[-1] == ("time", now + MOMENT)
        assert state.timer == now + MOMENT
    assert len(context.timers) == 3


class Plain(Event):
    key: str


def test_events_without_a_time_are_joined_by_log_time() -> None:
    app = App("plain")
    app.stream("ones", Plain)
    app.stream("twos", Plain)

    @app.join("both", left="ones", right="twos", key="key", within=(0 * S, 10 * S), how="full", emits=Both)
    def both(one: Plain | None, two: Plain | None) -> Both:
        return Both(text=f"{'-' if one is None else 'one'} {'-' if two is None else 'two'}")

    assert check(app) == []
    event, pause = Plain(key="k"), tick(9 * S)
    assert texts(run(app, {"ones": [event], "twos": [pause, event]})) == ["one two"]
    later = [tick(11 * S), event, tick(timedelta(milliseconds=1))]
    assert texts(run(app, {"ones": [event], "twos": later})) == ["one -", "- two"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no bound": ({"within": None}, "it has no time limit, so it would keep every event forever: set within=timedelta"),
    "no duration": ({"within": 5}, "within must be either a timedelta or a pair of"),
    "empty": ({"within": (-5 * S, 3 * S)}, "its interval is empty"),
    "longer than the calendar": (
        {"within": timedelta.max},
        "within is longer than a join can wait: use at most timedelta(days=36525)",
    ),
    "so on one side": ({"within": (timedelta.min, S)}, "within is longer than a join can wait"),
    "late for ever": (
        {"right": "endless"},
        "late_after of endless is longer than a join can wait: use at most timedelta(days=36525)",
    ),
    "no such way": ({"how": "outer"}, "how is 'outer'; use 'inner', 'left', 'right' or 'full'"),
    "no such key": ({"key": "nothing"}, "the key 'nothing' is not a field of Left; its fields are at, number, key"),
    "keys of different types": ({"key": ("key", "number")}, "'key' and 'number' have different types"),
    "half a key": (
        {"key": ("key",)},
        'key must be the name of a field, or two names if the sides differ, as in key=("ad"',
    ),
    "too many keys": ({"key": ("key", "name", "at")}, "key must be the name of a field, or two names"),
    "no name for a key": ({"key": 5}, "key must be the name of a field, or two names"),
    "itself": ({"right": "lefts", "key": "key"}, "both sides are lefts; a join needs two different streams"),
    "a stream that is not there": ({"right": "nothing"}, "'nothing' must be declared before the join"),
    "no time on one side": ({"right": "plain", "key": "key"}, "Plain has no event time, but the other side has one"),
    "no lateness": (
        {"right": "unordered"},
        "unordered has no late_after, so the join cannot wait for late events",
    ),
    "no room": ({"bounds": joins.Bounds(events=0)}, "bounds: events must be an integer of at least 1"),
    "no bounds": ({"bounds": 5}, "bounds is 5; write bounds=joins.Bounds(events=10_000), or omit it"),
    "remembered for ever": (
        {"bounds": joins.Bounds(remember=timedelta.max)},
        "bounds: remember must be a timedelta above zero and at most 36525 days",
    ),
    "no such policy": ({"bounds": joins.Bounds(full="drop")}, "bounds: full is 'drop'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("options", "expected"), BAD.values(), ids=BAD)
def test_a_bad_join_is_refused_with_what_to_write(options: dict[str, Any], expected: str) -> None:
    app = App("bad")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    app.stream("plain", Plain)
    app.stream("unordered", Right)
    app.stream("endless", Right, late_after=timedelta.max)
    given = {"left": "lefts", "right": "rights", "key": ("key", "name"), "within": S, "emits": Both, **options}
    app.join("both", **given)(pair)
    assert any(expected in str(problem) for problem in check(app)), list(map(str, check(app)))


@pytest.mark.parametrize("key", [("key",), ("key", "name", "at"), None], ids=["one", "three", "none"])
def test_a_key_that_is_no_name_is_all_that_is_told(key: Any) -> None:
    app = App("bad")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    app.join("both", left="lefts", right="rights", key=key, within=S, emits=Both)(pair)
    [problem] = check(app)
    assert "key must be the name of a field, or two names if the sides differ" in str(problem)


def test_two_names_may_come_as_a_list() -> None:
    app = App("listed")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    key: Any = ["key", "name"]
    app.join("both", left="lefts", right="rights", key=key, within=S, emits=Both)(pair)
    assert check(app) == []


def test_a_function_of_one_argument_is_refused() -> None:
    app = App("bad")
    app.stream("lefts", Left, late_after=S)
    app.stream("rights", Right, late_after=S)
    app.join("both", left="lefts", right="rights", key=("key", "name"), within=S, emits=Both)(lambda one: None)  # type: ignore[misc,arg-type]
    [problem] = check(app)
    assert "its function must take two arguments, the two joined events" in str(problem)
