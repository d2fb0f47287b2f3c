"""Windows that cannot be run are refused by `check`, with a sentence that says what to write instead."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock import App, Event, windows
from penstock.graph import check
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
    """What is wrong with windows that are sound, but for what is given."""
    app = App("bad")
    stream = app.stream("readings", event, key="meter")
    sound = {"over": windows.tumbling(MINUTE), "aggregate": {"n": windows.count()}, "keep": HOUR, "key": "meter"}
    app.window("used", reads=stream, **{**sound, **given})
    return [each.message.removeprefix("handler used: ") for each in check(app)]


def test_a_sound_declaration_has_no_problems() -> None:
    assert problems() == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"over": windows.sliding(seconds(5), every=MINUTE)}, "the window of 0:00:05 is smaller than its slide of 0:01:00"),
    ({"over": windows.sliding(MINUTE, every=seconds(7))}, "take a window of 0:00:56 or 0:01:03"),
    (
        {"over": windows.sliding(HOUR, every=timedelta(milliseconds=100))},
        "36,000 slides, and so many sums for each key",
    ),
    ({"over": windows.tumbling(timedelta(0))}, "must be timedeltas above zero"),
    ({"over": windows.sliding(3, every=5)}, "write windows.sliding(5, every=3), or windows.tumbling(3)"),
    ({"over": windows.sliding(10, every=4)}, "take a window of 8 or 12"),
    ({"over": windows.sliding(10, every=MINUTE)}, "must be both timedeltas, or both whole numbers"),
    ({"over": windows.tumbling(0)}, "whole numbers from 1 to"),
    ({"over": windows.session(timedelta(0))}, "the gap of a session must be a timedelta above zero"),
    ({"over": windows.hybrid(0, MINUTE)}, "takes a number of events and a timedelta, both above zero"),
    ({"over": MINUTE}, "is no window; write over=windows.tumbling"),
    ({"keep": None}, "it needs keep=timedelta(...)"),
    ({"keep": None}, "it needs keep=timedelta(...)"),
    ({"keep": timedelta(0)}, "keep must be a timedelta above zero"),
    ({"trigger": "close"}, "trigger='close' is none; write windows.on_change"),
    ({"trigger": windows.every(timedelta(0))}, "windows.every takes a timedelta above zero"),
    ({"aggregate": {}}, "it has no aggregates"),
    ({"aggregate": None}, "it has no aggregates"),
    ({"aggregate": {"n": "count"}}, "n='count' is no aggregate; write windows.mean(column)"),
    ({"aggregate": {"window": windows.count()}}, "the column 'window' is taken"),
    ({"aggregate": {"meter": windows.count()}}, "the column 'meter' is taken"),
    ({"aggregate": {"a b": windows.count()}}, "the column 'a b' is no name"),
    ({"aggregate": {"x):print(1": windows.count()}}, "the column 'x):print(1' is no name"),
    ({"aggregate": {"class": windows.count()}}, "the column 'class' is no name"),
    ({"aggregate": {"m": windows.mean("volts")}}, "m is of 'volts', which is no field of Reading; it has at, meter"),
    ({"aggregate": {"m": windows.mean("meter")}}, "m needs numbers, and Reading.meter has none"),
    ({"aggregate": {"m": windows.mean("price")}}, "would lose digits of the decimals of Reading.price"),
    ({"aggregate": {"m": windows.max("tags")}}, "m needs values with an order"),
    ({"aggregate": {"m": windows.collect("watts", most=100_000)}}, "m collects 100000 values; from 1 to 10,000"),
    ({"key": "volts"}, "the key 'volts' is no field of Reading"),
    ({"late_after": timedelta(0)}, "late_after must be a timedelta above zero"),
    ({"event": Bare, "late_after": MINUTE}, "Bare has no event time, by which windows go"),
    ({"by": "n"}, "top and by go together"),
    ({"top": 3, "by": "most"}, "by='most' is no field of Row"),
]


@pytest.mark.parametrize(("given", "told"), BAD, ids=[told for _, told in BAD])
def test_what_cannot_be_run_is_refused(given: dict[str, Any], told: str) -> None:
    assert any(told in each for each in problems(**given)), problems(**given)
