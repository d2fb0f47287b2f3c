"""Windows of keys with several fields, and of the events for which `where` is true."""

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
from penstock.app.check import check
from penstock.app.fingerprints.declared import handler_print
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind, handler_verdict
from penstock.app.loading import load
from penstock.core.shapes import shape_of
from penstock.handlers.evolution import misfit
from penstock.testing import CRASH, Result, run, tick
from penstock.windows.shapes import Shape
from tests.windows.meters import AGGREGATES, BEGIN, END, Reading, expected, naive, place, reading, seconds, window
from tests.windows.test_random import LATE_S, READINGS, SHAPES, TRIGGERS

KEY, WHERE = ["meter", "zone"], "watts >= 0"
MINUTE = windows.tumbling(seconds(60))


def came(given: list[tuple[int, int, int | None, str]]) -> list[Reading]:
    """Return readings of two numbers of each meter, none more than `LATE_S` behind an earlier arrival."""
    ordered = sorted(given, key=lambda row: row[0] + row[1])
    return [reading(second, watts, meter, number=late % 2) for second, late, watts, meter in ordered]


def closed(result: Result) -> dict[tuple[str, int, Any], Any]:
    shown = [row for row in result.rows("used") if getattr(row, "closed", True)]
    return {(row.meter, row.zone, place(row)): row for row in shown}


class Zoned(Reading, time="at"):
    zone: int = 0


def zoned(event: Reading) -> Zoned:
    return Zoned(at=event.at, meter=event.meter, watts=event.watts, zone=event.number)


def zones(over: Any, **options: Any) -> tuple[App, Any]:
    app = App("zones")
    stream = app.stream("readings", Zoned, key="meter", late_after=seconds(LATE_S))
    chosen: dict[str, Any] = {"key": KEY, "aggregate": {"n": windows.count()}, "keep": seconds(365 * 86_400), **options}
    return app, app.window("used", reads=stream, over=over, **chosen)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(deadline=None, max_examples=40)
@given(READINGS, TRIGGERS, st.sampled_from([1, 4, 1_000]), st.integers(1, 2))
def test_closed_windows_are_those_of_a_batch_over_the_events_taken_of_each_pair(
    shape: Shape, given: list[Any], trigger: Any, batch: int, shards: int
) -> None:
    events = [zoned(event) for event in came(given)]
    app, view_handler = zones(shape, aggregate=AGGREGATES, trigger=trigger, where=WHERE)
    result = run(app, {"readings": [*events, *END]}, shards=shards, batch_events=batch)
    assert result.failed(view_handler) == []
    assert result.emitted("used.late") == []
    taken = [event for event in events if event.watts is not None and event.watts >= 0]
    wanted = {
        (meter, zone, where): naive(inside)
        for meter, zone in {(event.meter, event.zone) for event in taken}
        for where, inside in expected(
            shape, [event for event in taken if (event.meter, event.zone) == (meter, zone)]
        ).items()
    }
    rows = closed(result)
    assert rows.keys() == wanted.keys()
    for where, row in rows.items():
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
    app, view_handler = zones(shape, trigger=trigger, latest=latest, where=WHERE)
    events = [zoned(event) for event in came(given)]
    once, often = (run(app, {"readings": [*events, *END]}, batch_events=size) for size in (1_000, 1))
    assert once.digest(view_handler) == often.digest(view_handler)
    assert once.emitted(view_handler) == often.emitted(view_handler)


def test_a_row_has_a_column_for_each_field_and_is_identified_by_all_of_them() -> None:
    app, view_handler = zones(MINUTE, trigger=windows.on_close)
    assert check(app) == []
    assert view_handler.view.key == ("meter", "zone", "window")
    assert view_handler.row.__struct_fields__ == ("meter", "zone", "window", "n")
    assert zones(windows.tumbling(3), latest=True)[1].view.key == ("meter", "zone")


def test_what_is_late_is_told_with_its_whole_key() -> None:
    app, _ = zones(MINUTE)
    items = [reading(300, number=7), reading(0, number=7), reading(0, number=8)]
    (late,) = run(app, {"readings": [zoned(event) for event in items]}).emitted("used.late")
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
    assert sorted((row.left, row.right, row.n) for row in result.rows("used")) == sorted((*pair, 1) for pair in odd)


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
    assert [failure.error for failure in result.failed("used")] == ["ValueError: the event has no meter"]
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
    app, view_handler = window(MINUTE, seconds(5), where=WHERE)
    result = run(app, {"readings": items})
    assert result.emitted("used.late") == []
    assert [(row.meter, row.n, row.closed) for row in result.rows("used")] == [("a", 2, False)]
    assert set(result.states(view_handler)) == {"a"}
    assert len(run(window(MINUTE, seconds(5))[0], {"readings": items}).emitted("used.late")) == 1


def test_log_time_passes_with_an_event_that_is_not_taken() -> None:
    """A silent key's window closes by log time, whatever event shows that it has passed."""
    app, _ = window(MINUTE, seconds(5), where=WHERE)
    rows = run(app, {"readings": [reading(0), tick(seconds(100)), reading(0, -1)]}).rows("used")
    assert [row.closed for row in rows] == [True]


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
    assert problem.message.startswith("handler other: where='zone = 0' for one: there is no column 'zone'")
    assert problem.where.file.endswith("test_keys.py")
    sound = App("two")
    one, two = sound.stream("one", Reading), sound.stream("two", Zoned)
    sound.window("used", reads=[one, two], key="meter", where=WHERE, **options)
    result = run(sound, {"one": [reading(0), reading(1, -1)], "two": [zoned(reading(2, -1)), zoned(reading(3))]})
    assert [row.n for row in result.rows("used")] == [2]


def judged(old: Any, new: Any) -> Verdict:
    return handler_verdict(handler_print(old), handler_print(new), Verdict(VerdictKind.unchanged, "handler", "used"))


def test_one_field_in_a_list_is_that_field() -> None:
    plain, listed = window(MINUTE)[1], window(MINUTE, key=["meter"])[1]
    assert listed.key == plain.key == "meter"
    assert shape_of(listed.state) == shape_of(plain.state)
    assert handler_print(listed) == handler_print(plain)


def test_windows_of_one_field_keep_the_state_that_they_had_before_there_could_be_several() -> None:
    """The mark is stored with the state: with another mark the state would be refused."""
    app = load(str(Path(__file__).parents[2] / "docs/examples/meters.py")).app
    marks = {handler.name: shape_of(handler.state).fields["declared"] for handler in app.view_handlers}
    assert marks["load"] == "'5f2fe448846a'"
    fingerprint = handler_print(app.view_handlers[0])
    assert (fingerprint.keys, fingerprint.where, fingerprint.view) == (("meter",), {}, ("meter",))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            {"key": "meter"},
            {"key": KEY},
            "its key was meter and is now (meter, zone), but its state is stored by the old key",
        ),
        ({"key": KEY}, {"key": ["zone", "meter"]}, "its key was (meter, zone) and is now (zone, meter)"),
        ({}, {"where": WHERE}, "its where for readings was not given and is now watts >= 0"),
        ({"where": WHERE}, {"where": "watts > 0"}, "its where for readings was watts >= 0 and is now watts > 0"),
        ({"where": WHERE}, {}, "its where for readings was watts >= 0 and is now not given"),
    ],
)
def test_another_key_or_condition_is_refused(old: dict[str, Any], new: dict[str, Any], reason: str) -> None:
    before, after = (zones(MINUTE, **options)[1] for options in (old, new))
    verdict = judged(before, after)
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reasons[0].startswith(reason)
    assert misfit(shape_of(before.state), after.state) is not None
