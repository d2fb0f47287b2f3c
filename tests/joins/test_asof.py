"""A stream with a table as of event time: the row that an event gets, the waiting time, stored and missed events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import App, Event, joins
from penstock.app.check import check
from tests.joins.ads import Both, Left, Right, S, lookup_app, missed_texts, pair, parsed, result_of, texts

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "the row that is there": ({}, "R1@0 L1@5", "L1 R1"),
    "from its very time on": ({}, "R1@5 L1@5", "L1 R1"),
    "none before": ({}, "R1@5 L1@4", "L1 -"),
    "none at all": ({}, "L1@4", "L1 -"),
    "nothing is told of those, if inner": ({"how": "inner"}, "L1@4 R1@5 L2@6", "L2 R1"),
    "by key": ({}, "R1a@0 R2b@0 L1a@5 L2b@5", "L1 R1, L2 R2"),
    "the newest": ({}, "R1@0 R2@3 L1@5", "L1 R2"),
    "the one of the event's time": ({}, "R1@0 R2@3 L1@2", "L1 R1"),
    "rows out of order": ({}, "R2@3 R1@0 L1@2 L2@5", "L1 R1, L2 R2"),
    "of the same time, the last that came": ({}, "R1@3 R2@3 L1@5", "L1 R2"),
    "a row that is valid later": ({}, "R1@0 R2@100 L1@50 L2@100", "L1 R1, L2 R2"),
    "waits for rows that may come late": ({"late": (0, 5)}, "R1@0 L1@5 R2@4 +6", "L1 R2"),
    "as long as they may": ({"late": (0, 5)}, "R1@0 L1@5 +4 +0", ""),
    "until a row is newer by that": ({"late": (0, 5)}, "R1@0 L1@5 R2@10", ""),
    "and not longer": ({"late": (0, 5)}, "R1@0 L1@5 R2@10.000001", "L1 R1"),
    "at once, if none can come": ({"late": (0, 5)}, "R1@0 R2@20 L1@5", "L1 R1"),
    "each in its own time": ({"late": (0, 5)}, "L2@7 +3 L1@6 +3", "L2 -"),
    "as they came": ({"late": (0, 5)}, "L2@7 L1@6 +6", "L2 -, L1 -"),
    "in order of event time": ({"late": (0, 5)}, "L2@7 L1@6 R1@20", "L1 -, L2 -"),
    "the oldest is answered early if too many wait": (
        {"late": (0, 5), "bounds": joins.Bounds(waiting=2)}, "L3@3 L1@1 L2@2", "L1 -",
    ),
    "old versions stay for an hour": ({}, "R1@0 R2@10 R3@20 +3500 R4@30 L1@5 L2@15", "L1 R1, L2 R2"),
    "the one that is valid stays": ({"keep": 5 * S}, "R1@0 R2@10 +99 L1@9999", "L1 R2"),
    "also before one that is not yet": ({"keep": 5 * S}, "R1@0 R2@9999 +99 R3@9998 L1@9000", "L1 R1"),
}  # fmt: skip


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("options", "events", "expected"), CASES.values(), ids=CASES)
def test_each_event_has_the_row_of_its_time(options: dict[str, Any], events: str, expected: str, crashes: bool) -> None:
    app, looked = lookup_app(**options)
    result = result_of(app, parsed(events), crashes=crashes)
    assert texts(result) == [text for text in expected.split(", ") if text]
    assert (missed_texts(result), result.failed(looked)) == ([], [])


MISSED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a row that comes after its event": ({}, "R1@0 L1@5 R2@4 L2@5", "L1 R1, L2 R2", "rights late 1"),
    "later than it may": ({"late": (0, 5)}, "R1@0 L1@5 +6 R2@5 L2@6 +6", "L1 R1, L2 R2", "rights late 0"),
    "its version is gone": ({"keep": 5 * S}, "R1@0 R2@10 +16 R3@11 L1@9 L2@10", "L2 R2", "lefts forgotten 1"),
    "for room": ({"bounds": joins.Bounds(versions=2)}, "R1@0 R2@1 R3@2 L1@0.5 L2@1.5", "L2 R2", "lefts forgotten 0.5"),
}  # fmt: skip


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
@pytest.mark.parametrize(("options", "events", "expected", "missed"), MISSED.values(), ids=MISSED)
def test_what_came_too_late_is_told(
    options: dict[str, Any], events: str, expected: str, missed: str, crashes: bool
) -> None:
    app, _ = lookup_app(**options)
    result = result_of(app, parsed(events), crashes=crashes)
    assert (texts(result), missed_texts(result)) == (expected.split(", "), [missed])


def test_what_is_kept_of_a_key_is_bounded_by_time_and_by_number() -> None:
    events = " ".join(f"R{number}@{number} +1" for number in range(50))
    app, looked = lookup_app(keep=5 * S)
    state = result_of(app, parsed(events)).states(looked)["k"]
    assert [version.number for version in state.versions] == sorted(state.rows) == [44, 45, 46, 47, 48, 49]
    app, looked = lookup_app(bounds=joins.Bounds(versions=3))
    state = result_of(app, parsed(events)).states(looked)["k"]
    assert [version.number for version in state.versions] == sorted(state.rows) == [47, 48, 49]


def test_a_key_that_has_no_row_is_forgotten_and_one_that_has_is_not() -> None:
    app, looked = lookup_app(bounds=joins.Bounds(remember=100 * S))
    assert result_of(app, parsed("L1a@0 R1b@0 L2b@1 +99 +0")).states(looked).keys() == {"a", "b"}
    assert result_of(app, parsed("L1a@0 R1b@0 L2b@1 +200 +0")).states(looked).keys() == {"b"}


def test_a_failure_on_an_event_is_its_own_also_if_it_has_waited() -> None:
    def picky(event: Left, row: Right | None) -> Both:
        if row is None:
            raise ValueError("no row")
        return pair(event, row)

    for late, reason in ((None, []), (timedelta(seconds=5), ["lefts failed 0"])):
        app = App("ads")
        app.stream("lefts", Left)
        app.stream("rights", Right, late_after=late)
        lookup = app.enrich("both", reads="lefts", table="rights", key=("key", "name"), emits=Both)(picky)
        result = result_of(app, parsed("L1@0 +6 R1@1 L2@2 +6"))
        assert (texts(result), missed_texts(result)) == (["L2 R1"], reason)
        assert len(result.failed(lookup)) == 1 - len(reason)


class Priced(Event):
    number: int
    row: int


@pytest.mark.parametrize("crashes", [False, True], ids=["whole", "restarted"])
def test_a_result_of_a_wrong_type_is_missed_alone_and_rows_are_still_stored(crashes: bool) -> None:
    def priced(event: Left, row: Right | None) -> Priced:
        number: Any = None if row is None else row.number
        return Priced(number=event.number, row=number)

    app = App("ads")
    app.stream("lefts", Left)
    app.stream("rights", Right, late_after=S)
    lookup = app.enrich("both", reads="lefts", table="rights", key=("key", "name"), emits=Priced)(priced)
    result = result_of(app, parsed("L1@0 +6 R1@1 R2@9 L2@10 R3@20 L3@21 +6 +0"), crashes=crashes)
    assert [(event.number, event.row) for event in result.emitted(lookup)] == [(2, 2), (3, 3)]
    assert (missed_texts(result), result.failed(lookup)) == (["lefts failed 0"], [])


class Plain(Event):
    key: str


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such way": ({"how": "full"}, "how is 'full'; use 'left' or 'inner'"),
    "nothing kept": ({"keep": 0 * S}, "keep must be a timedelta above zero"),
    "kept for ever": ({"keep": timedelta.max}, "keep must be a timedelta above zero and at most 36525 days"),
    "half a key": ({"key": ("key",)}, "key must be the name of a field, or two names if the sides differ"),
    "no bounds": ({"bounds": None}, "bounds is None; write bounds=joins.Bounds(events=10_000), or omit it"),
    "a row class for a stream": ({"row": Right}, "row applies only if the table is a view"),
    "no time": ({"table": "plain", "key": "key"}, "Plain has no event time, which the join needs"),
    "no such key": ({"key": ("key", "nothing")}, "the key 'nothing' is not a field of Right"),
    "no room": ({"bounds": joins.Bounds(versions=0)}, "bounds: versions must be an integer of at least 1"),
    "no memory": ({"bounds": joins.Bounds(remember=0 * S)}, "bounds: remember must be a timedelta above zero"),
    "no table": ({"table": "nothing"}, "it reads 'nothing', which is not a stream of this app"),
}


@pytest.mark.parametrize(("options", "expected"), BAD.values(), ids=BAD)
def test_a_bad_lookup_is_refused_with_what_to_write(options: dict[str, Any], expected: str) -> None:
    app = App("bad")
    app.stream("lefts", Left)
    app.stream("rights", Right)
    app.stream("plain", Plain)
    app.enrich("both", **{"reads": "lefts", "table": "rights", "key": ("key", "name"), "emits": Both, **options})(pair)
    assert any(expected in str(problem) for problem in check(app)), list(map(str, check(app)))
