"""Windows of keys that have several fields, and of the events for which `where` is true."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, Event, windows
from penstock.evolution import misfit, shape_of
from penstock.fingerprints.declared import handler_print
from penstock.fingerprints.verdicts import Kind, Verdict, handler_verdict
from penstock.graph import check
from penstock.runtime.loading import load
from penstock.testing import CRASH, Result, run, tick
from penstock.windows.shapes import Shape
from tests.windows.meters import AGGREGATES, BEGIN, END, Reading, expected, naive, place, reading, seconds, window
from tests.windows.test_random import LATE_S, READINGS, SHAPES, TRIGGERS

KEY, WHERE = ["meter", "zone"], "watts >= 0"
MINUTE = windows.tumbling(seconds(60))


def came(given: list[tuple[int, int, int | None, str]]) -> list[Reading]:
    """Readings of two numbers of each meter, none more than `LATE_S` behind one that came before."""
    ordered = sorted(given, key=lambda each: each[0] + each[1])
    return [reading(second, watts, meter, number=late % 2) for second, late, watts, meter in ordered]


def closed(result: Result) -> dict[tuple[str, int, Any], Any]:
    shown = [each for each in result.rows("used") if getattr(each, "closed", True)]
    return {(each.meter, each.zone, place(each)): each for each in shown}


class Zoned(Reading, time="at"):
    zone: int = 0


def zoned(each: Reading) -> Zoned:
    return Zoned(at=each.at, meter=each.meter, watts=each.watts, zone=each.number)


def zones(over: Any, **options: Any) -> tuple[App, Any]:
    app = App("zones")
    stream = app.stream("readings", Zoned, key="meter", late_after=seconds(LATE_S))
    chosen: dict[str, Any] = {"key": KEY, "aggregate": {"n": windows.count()}, "keep": seconds(90_000), **options}
    return app, app.window("used", reads=stream, over=over, **chosen)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(deadline=None, max_examples=40)
@given(READINGS, TRIGGERS, st.sampled_from([1, 4, 1_000]), st.integers(1, 2))
def test_closed_windows_are_those_of_a_batch_over_the_events_taken_of_each_pair(
    shape: Shape, given: list[Any], trigger: Any, batch: int, shards: int
) -> None:
    events = [zoned(each) for each in came(given)]
    app, keeper = zones(shape, aggregate=AGGREGATES, trigger=trigger, where=WHERE)
    result = run(app, {"readings": [*events, *END]}, shards=shards, batch_events=batch)
    assert result.failed(keeper) == []
    assert result.emitted("used.late") == []
    taken = [each for each in events if each.watts is not None and each.watts >= 0]
    wanted = {
        (meter, zone, each): naive(inside)
        for meter, zone in {(event.meter, event.zone) for event in taken}
        for each, inside in expected(
            shape, [event for event in taken if (event.meter, event.zone) == (meter, zone)]
        ).items()
    }
    found = closed(result)
    assert found.keys() == wanted.keys()
    for where, row in found.items():
        assert {name: getattr(row, name) for name in AGGREGATES} == {
            name: pytest.approx(wanted[where][name]) for name in AGGREGATES
        }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("latest", [False, True])
@settings(deadline=None, max_examples=15)
@given(READINGS, TRIGGERS)
def test_a_restart_after_every_event_changes_nothing(
    shape: Shape, latest: bool, given: list[Any], trigger: Any
) -> None:
    app, keeper = zones(shape, trigger=trigger, latest=latest, where=WHERE)
    events = [zoned(each) for each in came(given)]
    once, often = (run(app, {"readings": [*events, *END]}, batch_events=size) for size in (1_000, 1))
    assert once.digest(keeper) == often.digest(keeper)
    assert once.emitted(keeper) == often.emitted(keeper)


def test_a_row_has_a_column_for_each_field_and_is_identified_by_all_of_them() -> None:
    app, keeper = zones(MINUTE, trigger=windows.on_close)
    assert check(app) == []
    assert keeper.view.key == ("meter", "zone", "window")
    assert keeper.row.__struct_fields__ == ("meter", "zone", "window", "n")
    assert zones(windows.tumbling(3), latest=True)[1].view.key == ("meter", "zone")


def test_what_is_late_is_told_with_its_whole_key() -> None:
    app, _ = zones(MINUTE)
    items = [reading(300, number=7), reading(0, number=7), reading(0, number=8)]
    (late,) = run(app, {"readings": [zoned(each) for each in items]}).emitted("used.late")
    assert (late.key, late.at) == ('["a","7"]', BEGIN)


def test_values_with_separators_in_them_are_never_the_same_key() -> None:
    class Pair(Event):
        left: str
        right: str

    app = App("pairs")
    stream = app.stream("pairs", Pair)
    app.window(
        "used", reads=stream, key=["left", "right"], over=MINUTE, aggregate={"n": windows.count()}, keep=seconds(60)
    )
    odd = [("a,b", "c"), ("a", "b,c"), ('a","b', "c"), ("a", 'b","c'), ("é", "\n"), ("", ""), ("[", "]")]
    result = run(app, {"pairs": [Pair(left=left, right=right) for left, right in odd]}, shards=3)
    assert sorted((each.left, each.right, each.n) for each in result.rows("used")) == sorted((*each, 1) for each in odd)


def test_an_event_without_one_of_the_fields_fails_and_says_which() -> None:
    class Part(Event):
        site: str
        meter: str | None = None

    app = App("parts")
    stream = app.stream("parts", Part)
    app.window(
        "used", reads=stream, key=["site", "meter"], over=MINUTE, aggregate={"n": windows.count()}, keep=seconds(60)
    )
    result = run(app, {"parts": [Part(site="a"), Part(site="a", meter="m")]})
    assert [each.error for each in result.failed("used")] == ["ValueError: the event has no meter"]
    assert len(result.rows("used")) == 1


class Colour(Enum):
    red = "r"


def test_fields_may_be_of_any_type_that_identifies() -> None:
    class Typed(Event):
        number: int
        flag: bool
        at: datetime
        id: UUID
        colour: Colour
        kind: Literal["x", "y"]

    app = App("typed")
    stream = app.stream("typed", Typed)
    key = ["number", "flag", "at", "id", "colour", "kind"]
    app.window("used", reads=stream, key=key, over=MINUTE, aggregate={"n": windows.count()}, keep=seconds(60))
    event = Typed(number=1, flag=True, at=BEGIN, id=UUID(int=3), colour=Colour.red, kind="x")
    result = run(app, {"typed": [event, CRASH, event, CRASH, tick(seconds(90)), CRASH]}, batch_events=1)
    (row,) = result.rows("used")
    assert [getattr(row, name) for name in key] == [getattr(event, name) for name in key]
    assert (row.n, row.closed) == (2, True)


def test_an_event_that_is_not_taken_moves_no_time_of_its_key_and_leaves_no_state() -> None:
    """Without `where` the reading of second 500 would close the first window, and make the last reading late."""
    items = [reading(0), reading(500, -1), reading(1), reading(0, -1, meter="b"), reading(0, None, meter="c")]
    app, keeper = window(MINUTE, seconds(5), where=WHERE)
    result = run(app, {"readings": items})
    assert result.emitted("used.late") == []
    assert [(each.meter, each.n, each.closed) for each in result.rows("used")] == [("a", 2, False)]
    assert set(result.states(keeper)) == {"a"}
    assert len(run(window(MINUTE, seconds(5))[0], {"readings": items}).emitted("used.late")) == 1


def test_log_time_passes_with_an_event_that_is_not_taken() -> None:
    """A silent key's window closes by log time, whatever says that it has passed."""
    app, _ = window(MINUTE, seconds(5), where=WHERE)
    rows = run(app, {"readings": [reading(0), tick(seconds(100)), reading(0, -1)]}).rows("used")
    assert [each.closed for each in rows] == [True]


def test_an_event_without_a_key_that_is_not_taken_does_not_fail() -> None:
    class Part(Event):
        meter: str | None = None
        watts: int = 0

    app = App("parts")
    stream = app.stream("parts", Part)
    app.window(
        "used", reads=stream, key="meter", over=MINUTE, aggregate={"n": windows.count()}, keep=seconds(9), where=WHERE
    )
    result = run(app, {"parts": [Part(watts=-1), Part(watts=1), Part(meter="m", watts=1)]})
    assert len(result.failed("used")) == 1


def test_the_condition_holds_for_every_stream_that_is_read() -> None:
    app = App("two")
    one, two = app.stream("one", Reading), app.stream("two", Zoned)
    options: dict[str, Any] = {"over": MINUTE, "aggregate": {"n": windows.count()}, "keep": seconds(60)}
    app.window("used", reads=[one, two], key="meter", where=WHERE, **options)
    app.window("other", reads=[one, two], key="meter", where="zone = 0", **options)
    (problem,) = check(app)
    assert problem.message.startswith("handler other: where='zone = 0', for one: there is no column 'zone'")
    assert problem.where.file.endswith("test_keys.py")
    sound = App("two")
    one, two = sound.stream("one", Reading), sound.stream("two", Zoned)
    sound.window("used", reads=[one, two], key="meter", where=WHERE, **options)
    result = run(sound, {"one": [reading(0), reading(1, -1)], "two": [zoned(reading(2, -1)), zoned(reading(3))]})
    assert [each.n for each in result.rows("used")] == [2]


def judged(old: Any, new: Any) -> Verdict:
    return handler_verdict(handler_print(old), handler_print(new), Verdict(Kind.unchanged, "handler", "used"))


def test_one_field_in_a_list_is_that_field() -> None:
    plain, listed = window(MINUTE)[1], window(MINUTE, key=["meter"])[1]
    assert listed.key == plain.key == "meter"
    assert shape_of(listed.state) == shape_of(plain.state)
    assert handler_print(listed) == handler_print(plain)


def test_windows_of_one_field_keep_the_state_that_they_had_before_there_could_be_several() -> None:
    """The mark is that of state which is stored: another one would have it refused."""
    app = load(str(Path(__file__).parents[2] / "docs/examples/meters.py")).app
    marks = {each.name: shape_of(each.state).fields["declared"] for each in app.keepers}
    assert marks["load"] == "'5f2fe448846a'"
    made = handler_print(app.keepers[0])
    assert (made.keys, made.where, made.view) == (("meter",), {}, ("meter",))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({"key": "meter"}, {"key": KEY}, "its key was meter and is (meter, zone), and its state is kept by it"),
        ({"key": KEY}, {"key": ["zone", "meter"]}, "its key was (meter, zone) and is (zone, meter)"),
        ({}, {"where": WHERE}, "its where for readings was not given and is watts >= 0"),
        ({"where": WHERE}, {"where": "watts > 0"}, "its where for readings was watts >= 0 and is watts > 0"),
        ({"where": WHERE}, {}, "its where for readings was watts >= 0 and is not given"),
    ],
)
def test_another_key_or_condition_is_refused(old: dict[str, Any], new: dict[str, Any], reason: str) -> None:
    before, after = (zones(MINUTE, **each)[1] for each in (old, new))
    verdict = judged(before, after)
    assert verdict.kind is Kind.incompatible
    assert verdict.reasons[0].startswith(reason)
    assert misfit(shape_of(before.state), after.state) is not None
