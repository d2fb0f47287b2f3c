"""Invalid windows are refused by `check`, with a sentence that says what to write instead."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock import App, Event, windows
from penstock.app.check import check
from penstock.testing import run, tick
from tests.windows.meters import seconds

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Reading(Event, time="at"):
    at: datetime
    meter: str
    watts: int
    price: Decimal
    tags: list[str]


class Bare(Event):
    meter: str
    watts: int


def problems(event: type[Event] = Reading, **given: Any) -> list[str]:
    """Return the errors of windows that are valid except for the given options."""
    app = App("bad")
    stream = app.stream("readings", event, key="meter")
    sound = {"over": windows.tumbling(MINUTE), "aggregate": {"n": windows.count()}, "keep": HOUR, "key": "meter"}
    app.window("used", reads=stream, **{**sound, **given})
    return [problem.message.removeprefix("handler used: ") for problem in check(app)]


def test_a_sound_declaration_has_no_problems() -> None:
    assert problems() == []


class Plain:
    """It has all that a summary needs, but cannot be serialised."""

    def add(self, value: int) -> None: ...

    def merge(self, other: Plain) -> None: ...

    def copy(self) -> Plain:
        return Plain()


def _none() -> Plain:
    raise LookupError("none")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"over": windows.sliding(seconds(5), every=MINUTE)}, "the window of 0:00:05 is smaller than its slide of 0:01:00"),
    ({"over": windows.sliding(MINUTE, every=seconds(7))}, "use a window of 0:00:56 or 0:01:03"),
    (
        {"over": windows.sliding(HOUR, every=timedelta(milliseconds=100))},
        "36,000 slides, so each key would need that many sums",
    ),
    ({"over": windows.tumbling(timedelta(0))}, "must be timedeltas above zero"),
    ({"over": windows.sliding(3, every=6)}, "lost; write windows.sliding(6, every=3), or windows.tumbling(3)"),
    ({"over": windows.sliding(3, every=5)}, "lost; write windows.tumbling(3)"),
    ({"over": windows.sliding(1, every=10_001)}, "lost; write windows.tumbling(1)"),
    ({"over": windows.sliding(seconds(3), every=seconds(10))}, f"lost; write windows.tumbling({seconds(3)!r})"),
    ({"over": windows.sliding(10, every=4)}, "use a window of 8 or 12"),
    ({"over": windows.sliding(10, every=MINUTE)}, "must both be timedeltas, or both integers"),
    ({"over": windows.tumbling(0)}, "integers from 1 to"),
    ({"over": windows.session(timedelta(0))}, "the gap of a session must be a timedelta above zero"),
    ({"over": windows.hybrid(0, MINUTE)}, "takes a number of events and a timedelta, both above zero"),
    ({"over": MINUTE}, "is not a window; write over=windows.tumbling"),
    ({"keep": None}, "it needs keep=timedelta(...)"),
    ({"keep": timedelta(0)}, "keep must be a timedelta above zero"),
    ({"keep": 5}, "keep must be a timedelta above zero"),
    ({"trigger": "close"}, "trigger='close' is not a trigger; write windows.on_change"),
    ({"trigger": windows.every(timedelta(0))}, "windows.every takes a timedelta above zero"),
    ({"aggregate": {}}, "it has no aggregates"),
    ({"aggregate": None}, "it has no aggregates"),
    ({"aggregate": [windows.count()]}, "has no column names: write aggregate={"),
    ({"aggregate": {"n": "count"}}, "n='count' is not an aggregate; write windows.mean(column)"),
    ({"aggregate": {"window": windows.count()}}, "the name 'window' is taken"),
    ({"aggregate": {"meter": windows.count()}}, "the name 'meter' is taken"),
    ({"aggregate": {"a b": windows.count()}}, "the column name 'a b' is invalid"),
    ({"aggregate": {"x):print(1": windows.count()}}, "the column name 'x):print(1' is invalid"),
    ({"aggregate": {"class": windows.count()}}, "the column name 'class' is invalid"),
    ({"aggregate": {"m": windows.mean("volts")}}, "which is not a field of Reading; its fields are at, meter"),
    ({"aggregate": {"m": windows.mean("meter")}}, "m needs numbers, but Reading.meter is not a number"),
    ({"aggregate": {"m": windows.mean("price")}}, "would lose digits of the decimals in Reading.price"),
    ({"aggregate": {"m": windows.max("tags")}}, "m needs values that can be ordered"),
    (
        {"aggregate": {"m": windows.collect("watts", most=100_000)}},
        "m collects 100000 values; use a number from 1 to 10,000",
    ),
    ({"aggregate": {"m": windows.collect("watts", most="5")}}, "m collects '5' values; use a number from 1 to 10,000"),  # type: ignore[arg-type]
    ({"aggregate": {"m": windows.sum(None)}}, "m reads None, which is not a field of Reading"),  # type: ignore[arg-type]
    ({"aggregate": {"m": windows.sum(["watts"])}}, "m reads ['watts'], which is not a field of Reading"),  # type: ignore[arg-type]
    ({"aggregate": {"m": windows.summary("watts", _none, id, int)}}, "the function raises LookupError: none"),
    ({"aggregate": {"m": windows.summary("watts", list, len, int)}}, "m keeps a list, which has no method add"),  # type: ignore[type-var]
    (
        {"aggregate": {"m": windows.summary("watts", Plain, id, int)}},
        "m keeps a Plain, which cannot be stored",
    ),
    ({"key": "volts"}, "the key 'volts' is not a field of Reading"),
    ({"key": []}, "the key is []; use the name of one or more fields of Reading"),
    ({"key": ["meter", 5]}, "the key is ('meter', 5); use the name of one or more fields of Reading"),
    ({"key": [["meter"], "kind"]}, "the key is (['meter'], 'kind'); use the name of one or more fields"),
    ({"key": ["meter", "meter"]}, "the key is meter, meter, which contains a field twice"),
    ({"key": ["meter", "volts"]}, "the key 'volts' is not a field of Reading"),
    ({"key": ["meter", "tags"]}, "the key 'tags' has a type that cannot be used as a key"),
    ({"where": "volts > 5"}, "where='volts > 5' for readings: there is no column 'volts'"),
    ({"where": "watts"}, "where='watts' for readings: "),
    ({"where": "watts >"}, "where='watts >' for readings: "),
    ({"where": 5}, "where='5' for readings: where is not a string"),
    ({"where": "_kind = 0"}, "where='_kind = 0' for readings: there is no column '_kind'"),
    ({"late_after": timedelta(-1)}, "late_after must be a timedelta of zero or more"),
    ({"event": Bare, "late_after": MINUTE}, "Bare has no event time, which windows need"),
    ({"by": "n"}, "top and by must be set together"),
    ({"top": 3, "by": "most"}, "by='most' is not a field of Row"),
    ({"top": 3, "by": ["n"]}, "by=['n'] is not a field of Row"),
    ({"top": "3", "by": "n"}, "top must be an integer of at least 1"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_run_is_refused(given: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(**given)), problems(**given)


@pytest.mark.parametrize("slide", [*range(2, 40), 20_000])
def test_what_is_advised_where_a_window_is_smaller_than_its_slide_is_sound(slide: int) -> None:
    for over in (windows.sliding(6, every=slide), windows.sliding(seconds(6), every=seconds(slide))):
        for problem in problems(over=over):
            if "is smaller than its slide" in problem:
                for advice in problem.partition("write ")[2].split(", or "):
                    assert problems(over=eval(advice, {"windows": windows, "datetime": dt})) == []


class Numbered(Event, time="at"):
    at: datetime
    meter: int
    number: str
    window: str
    start: str
    end: str
    closed: bool


TIMED, HYBRID = windows.tumbling(MINUTE), windows.hybrid(9, MINUTE)


@pytest.mark.parametrize("trigger", [windows.on_change, windows.on_close])
@pytest.mark.parametrize("over", [TIMED, HYBRID, windows.session(MINUTE), windows.tumbling(9)], ids=str)
@pytest.mark.parametrize("key", ["window", "number", "start", "end", "closed"])
def test_a_key_that_is_called_as_another_column_of_a_row_is_refused(key: str, over: Any, trigger: Any) -> None:
    numbered = over in (HYBRID, windows.tumbling(9))
    own = {"number", "start", "end"} if numbered else {"window"}
    own |= {"closed"} if trigger == windows.on_change else set()
    message = f"the key has the name {key!r}, but these rows already have a column with that name; rename the field"
    assert problems(Numbered, key=key, over=over, trigger=trigger) == ([message] if key in own else [])


class Other(Event, time="at"):
    at: datetime
    meter: str
    watts: float


class Elsewhere(Event, time="at"):
    at: datetime
    meter: int
    watts: int


@pytest.mark.parametrize(
    ("other", "over", "aggregate", "messages"),
    [
        (Other, TIMED, windows.sum("watts"), ["m reads 'watts', which is int in Reading and float in Other"]),
        (Other, HYBRID, windows.count("watts"), ["m reads 'watts', which is int in Reading and float in Other"]),
        (Other, TIMED, windows.count("watts"), []),
        (Elsewhere, TIMED, windows.sum("watts"), ["the key 'meter' is str in Reading and int in Elsewhere"]),
        (Reading, HYBRID, windows.sum("watts"), []),
    ],
)
def test_what_is_read_of_several_streams_has_one_type(
    other: Any, over: Any, aggregate: Any, messages: list[str]
) -> None:
    app = App("two")
    streams = [app.stream("these", Reading, key="meter"), app.stream("those", other, key="meter")]
    app.window("used", reads=streams, key="meter", over=over, aggregate={"m": aggregate}, keep=HOUR)
    assert [str(problem).partition("handler used: ")[2] for problem in check(app)] == [
        f"{message}; give it one type" for message in messages
    ]


def test_of_a_stream_that_is_not_sound_there_is_no_window() -> None:
    app = App("bad")
    stream = app.stream("readings", Reading, key="meter", late_after=30)  # type: ignore[arg-type]
    app.window("used", reads=stream, key="meter", over=TIMED, aggregate={"n": windows.count()}, keep=HOUR)
    problem, _ = check(app)
    assert problem.message == "stream readings: late_after must be a timedelta of zero or more"


@dataclass
class Widest:
    """The longest text so far."""

    text: str = ""

    def add(self, value: str) -> None:
        self.text = max(self.text, value, key=len)

    def merge(self, other: Widest) -> None:
        self.add(other.text)

    def copy(self) -> Widest:
        return Widest(self.text)


def test_a_summary_may_keep_a_dataclass_and_a_key_may_be_remembered_for_ever() -> None:
    app = App("good")
    stream = app.stream("others", Other, key="meter")
    widest = windows.summary("meter", Widest, lambda event: event.text, str)
    over = windows.sliding(2 * MINUTE, every=MINUTE)
    app.window("w", reads=stream, key="meter", over=over, aggregate={"m": widest}, keep=timedelta.max)
    items = [Other(at=datetime(2026, 1, 1, 0, minute, tzinfo=UTC), meter="abc", watts=1.0) for minute in range(5)]
    result = run(app, {stream: [*items, tick(HOUR)]}, batch_events=1)
    assert result.failed("w") == []
    assert [row.m for row in result.rows("w")] == ["abc"] * 6
