"""Joins by keys with several fields, and of the events for which `where` is true."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import App, Event, gone, windows
from penstock.app.check import check
from penstock.app.declared import Joiner
from penstock.app.fingerprints.declared import handler_print
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind, handler_verdict
from penstock.testing import CRASH, Result, run, tick
from tests.joins.ads import Both, S, second
from tests.joins.naive import nested_loop
from tests.joins.test_random import HOW, LATE, SETTINGS, WITHIN

END = [tick(timedelta(days=2)), tick(timedelta(0))]
WHERE = ("number % 3 <> 0", "number % 4 <> 0")


class Reading(Event, time="at"):
    at: datetime
    number: int
    site: str = "s"
    meter: int = 0


class Alarm(Event, time="at"):
    at: datetime
    number: int
    site: str = "s"
    device: int = 0


def shown(event: Any) -> str:
    return "-" if event is None else f"{type(event).__name__[0]}{event.number}"


def pair(left: Any, right: Any) -> Both:
    return Both(text=f"{shown(left)} {shown(right)}")


PAIR: Any = (["site", "device"], ["site", "meter"])


def sites(late: tuple[int, int] = (1, 1), **options: Any) -> tuple[App, Joiner]:
    app = App("sites")
    app.stream("alarms", Alarm, key="site", late_after=late[0] * S)
    app.stream("readings", Reading, key="site", late_after=late[1] * S)
    given: dict[str, Any] = {"key": PAIR, "within": 10 * S, **options}
    return app, app.join("both", left="alarms", right="readings", emits=Both, **given)(pair)


def key_of(event: Any) -> tuple[str, int]:
    return event.site, event.device if isinstance(event, Alarm) else event.meter


def in_time(events: list[Any], late_after: timedelta) -> list[Any]:
    """Return the events without those further behind the newest accepted one of their key than allowed."""
    kept = []
    for number, event in enumerate(events):
        before = [earlier.at for earlier in events[:number] if key_of(earlier) == key_of(event)]
        if not before or event.at >= max(before) - late_after:
            kept.append(event)
    return kept


def apart(items: list[Any]) -> dict[str, list[Any]]:
    """Return a list for each stream, in which the other's items become time."""
    step = tick(timedelta(milliseconds=1))
    sides: dict[str, Any] = {"alarms": Alarm, "readings": Reading}
    return {
        name: [item if not isinstance(item, Event) or isinstance(item, cls) else step for item in items]
        for name, cls in sides.items()
    }


@st.composite
def event_lists(draw: st.DrawFn) -> list[Any]:
    drawn = draw(
        st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.sampled_from("ab"), st.integers(0, 1)), max_size=30)
    )
    return [
        Alarm(at=second(at), number=number, site=site, device=meter)
        if left
        else Reading(at=second(at), number=number, site=site, meter=meter)
        for number, (left, at, site, meter) in enumerate(drawn)
    ]


@SETTINGS
@given(event_lists(), WITHIN, HOW, LATE, st.integers(1, 2), st.booleans())
def test_a_join_finds_what_two_loops_find_among_the_events_that_are_taken(
    events: list[Any], within: tuple[timedelta, timedelta], how: str, late: tuple[int, int], shards: int, cut: bool
) -> None:
    app, both = sites(late, within=within, how=how, where=WHERE)
    assert check(app) == []
    items = [step for item in [*events, *END] for step in ((item, CRASH) if cut else (item,))]
    result = run(app, apart(items), shards=shards, batch_events=1 if cut else 1_000)
    taken: list[list[Any]] = [
        [event for event in events if isinstance(event, Alarm) and event.number % 3],
        [event for event in events if isinstance(event, Reading) and event.number % 4],
    ]
    lefts, rights = (in_time(side, delay * S) for side, delay in zip(taken, late, strict=True))
    assert sorted(event.text for event in result.emitted(both)) == nested_loop(
        lefts, rights, within, how, key_of, shown
    )
    assert len(result.emitted("both.missed")) == sum(map(len, taken)) - len(lefts) - len(rights)
    assert result.failed(both) == []
    assert result.states(both) == {}


def texts(result: Result) -> list[str]:
    return [event.text for event in result.emitted("both")]


def test_a_list_is_the_key_of_both_sides() -> None:
    app = App("pairs")
    app.stream("lefts", Reading, late_after=S)
    app.stream("rights", Reading, late_after=S)
    app.join("both", left="lefts", right="rights", key=["site", "meter"], within=S, emits=Both)(pair)
    assert check(app) == []
    given = {
        "lefts": [Reading(at=second(0), number=1, meter=1), Reading(at=second(0), number=2, meter=2)],
        "rights": [Reading(at=second(0), number=3, meter=2), Reading(at=second(0), number=4, site="t", meter=1)],
    }
    assert texts(run(app, given)) == ["R2 R3"]


def test_one_condition_is_for_both_sides_and_none_is_for_all_events() -> None:
    given: dict[str, list[Any]] = {
        "alarms": [Alarm(at=second(0), number=n) for n in (1, 2)],
        "readings": [Reading(at=second(0), number=n) for n in (1, 2)],
    }
    assert texts(run(sites(where="number = 1")[0], given)) == ["A1 R1"]
    assert sorted(texts(run(sites(where=("number = 1", None))[0], given))) == ["A1 R1", "A1 R2"]
    assert sorted(texts(run(sites(where=(None, "number = 1"))[0], given))) == ["A1 R1", "A2 R1"]


def test_an_event_that_is_not_taken_makes_no_other_late_and_leaves_no_state() -> None:
    given: dict[str, list[Any]] = {
        "alarms": [Alarm(at=second(90), number=3), Alarm(at=second(0), number=1)],
        "readings": [Reading(at=second(0), number=1)],
    }
    app, both = sites(where=WHERE)
    result = run(app, given)
    assert texts(result) == ["A1 R1"]
    assert result.emitted("both.missed") == []
    assert run(app, {"alarms": [Alarm(at=second(0), number=3)]}).states(both) == {}


def test_what_is_missed_is_told_with_its_whole_key() -> None:
    given = {"alarms": [Alarm(at=second(90), number=1, device=4), Alarm(at=second(0), number=2, device=4)]}
    (missed,) = run(sites()[0], given).emitted("both.missed")
    assert (missed.key, missed.reason, missed.stream) == ('["s","4"]', "late", "alarms")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "keys of other lengths": ({"key": (["site", "device"], "site")}, "its keys have 2 and 1 fields"),
    "fields of other types": ({"key": (["site", "device"], ["meter", "site"])}, "'site' and 'meter' have different"),
    "no such field": ({"key": (["site", "device"], ["site", "device"])}, "the key 'device' is not a field of Reading"),
    "a field twice": ({"key": (["site", "site"], ["site", "site"])}, "key is site, site, which contains a field twice"),
    "no names": ({"key": []}, "key must be the name of a field"),
    "numbers": ({"key": ["site", 5]}, "key must be the name of a field"),
    "a condition on the other side": ({"where": "meter = 1"}, "where='meter = 1' for alarms: there is no column"),
    "a condition that is none": ({"where": (None, 5)}, "where='5' for readings: where is not a string"),
    "three conditions": ({"where": ("a", "b", "c")}, "for alarms: where is not a string"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_a_bad_key_or_condition_is_refused(options: dict[str, Any], message: str) -> None:
    problems = check(sites(**options)[0])
    assert any(message in problem.message for problem in problems), problems
    assert {Path(problem.where.file).name for problem in problems} == {"test_keys.py"}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({"key": "site"}, {}, "its key was site, site and is now (site, device), (site, meter)"),
        ({}, {"where": WHERE}, "its where for alarms was not given and is now number % 3 <> 0"),
        (
            {"where": WHERE},
            {"where": (WHERE[0], None)},
            "its where for readings was number % 4 <> 0 and is now not given",
        ),
    ],
)
def test_another_key_or_condition_is_refused_by_what_is_stored(
    old: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    before, after = (handler_print(sites(**options)[1]) for options in (old, new))
    verdict = handler_verdict(before, after, Verdict(VerdictKind.unchanged, "handler", "both"))
    assert verdict.kind is VerdictKind.incompatible
    assert verdict.reasons[0].startswith(reason)
    same = handler_verdict(after, handler_print(sites(**new)[1]), Verdict(VerdictKind.unchanged, "handler", "both"))
    assert same.kind is VerdictKind.unchanged


class Priced(Event):
    text: str


class Row(Event):
    meter: int
    site: str
    n: int


def test_a_view_of_several_key_columns_is_looked_up_by_all_of_them_in_any_order() -> None:
    app = App("rows")
    readings = app.stream("readings", Reading, key="site")
    alarms = app.stream("alarms", Alarm, key="site")
    last = app.window(
        "last", reads=readings, key=["site", "meter"], over=windows.tumbling(3), aggregate={"n": windows.count()},
        latest=True, keep=S,
    )  # fmt: skip
    key: Any = (["device", "site"], ["meter", "site"])

    @app.enrich("known", reads=alarms, table=last, row=Row, key=key, emits=Priced)
    def known(alarm: Alarm, row: Row | None) -> Priced:
        return Priced(text=f"{alarm.number} {None if row is None else row.n}")

    assert check(app) == []
    step = tick(timedelta(milliseconds=1))
    given: dict[Any, list[Any]] = {
        last: [
            Row(site="s", meter=1, n=5), step, Row(site="s", meter=2, n=6), step, gone(Row, site="s", meter=1), step,
        ],
        "alarms": [step, Alarm(at=second(0), number=1, device=1), step, Alarm(at=second(0), number=2, device=2), step,
                   Alarm(at=second(0), number=3, device=1)],
    }  # fmt: skip
    assert [event.text for event in run(app, given).emitted("known")] == ["1 5", "2 6", "3 None"]
