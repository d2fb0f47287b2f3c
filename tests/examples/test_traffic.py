"""Traffic: the mean of the last reports, and jams, reported once when they begin and once when they are over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.traffic import JAM_MAX, MEAN_OF, Flow, Report, app, congestion, flow, jam, jams
from penstock import cep
from penstock.app.check import check
from penstock.testing import CRASH, Result, run, tick
from tests.examples.played import events

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LONG = tick(timedelta(hours=3))
PARTS = {"f": 0.9, "m": 0.5, "s": 0.1}
"""Flowing, something in between, slow."""


def report(second: float, speed: float, segment: str = "ring-1", number: int = 0) -> Report:
    return Report(
        report_id=f"{second}/{segment}/{number}",
        at=NOON + timedelta(seconds=second),
        vehicle="v",
        segment=segment,
        limit=100.0,
        speed=speed,
        lat=50.0,
        lon=8.0,
    )


def reported(*items: Any) -> Result:
    return run(app, {"reports": items})


def test_the_app_is_sound() -> None:
    assert check(app) == []


def test_the_flow_is_the_mean_of_the_last_ten_reports_once_there_are_ten() -> None:
    result = reported(*(report(second, 10.0 * second) for second in range(12)))
    assert [(event.speed, event.part) for event in result.emitted(flow)] == [(45, 0.45), (55, 0.55), (65, 0.65)]
    assert len(result.states(flow)["ring-1"].speeds) == MEAN_OF


def test_a_report_that_is_older_than_the_last_one_is_left_out_of_the_mean_and_counted() -> None:
    result = reported(*(report(second, 50.0) for second in range(10)), report(3, 100.0, number=1), report(10, 50.0))
    assert [event.speed for event in result.emitted(flow)] == [50, 50]
    assert result.states(flow)["ring-1"].stale == 1


def flows(text: str) -> list[Flow]:
    """Return a flow each second, given as letters; a dash is a second without."""
    return [
        Flow(
            segment="ring-1", at=NOON + timedelta(seconds=second), speed=PARTS[letter], part=PARTS[letter], lat=0, lon=0
        )
        for second, letter in enumerate(text)
        if letter != "-"
    ]


JAMS = {
    "slow for fifteen seconds": ("fffs" + "s" * 20, [3]),
    "slow at first, then nobody comes by": ("fs", [1]),
    "slow, though not always": ("fsmsmsmsmsmsmsmsmsm", [1]),
    "by way of something in between": ("fmms" + "s" * 20, [3]),
    "not if it flows again soon": ("fsssssssssf", []),
    "not if it never was flowing": ("mss" + "s" * 20, []),
    "not if it is only in between": ("fmmmmmmmmmmmmmmmmmmmmmm", []),
    "once, however long": ("fs" + "s" * 60, [1]),
    "again after it has flowed again": ("fs" + "s" * 16 + "fs" + "s" * 16, [1, 19]),
    "from the last time that it slowed down": ("fsssfs" + "s" * 16, [5]),
}


@pytest.mark.parametrize(("text", "expected"), JAMS.values(), ids=JAMS.keys())
def test_a_jam_is(text: str, expected: list[int]) -> None:
    matches = cep.find(jam, flows(text), within=JAM_MAX)
    assert [(match["slow"].at - NOON).total_seconds() for match in matches] == expected


def naive(given: list[Flow]) -> list[datetime]:
    """Return when it slowed down: each slow one that is the first since it flowed, if none flows for the next 15 s."""
    times = []
    armed = False
    for place, event in enumerate(given):
        if event.part >= 0.6:
            armed = True
        elif event.part < 0.4 and armed:
            armed = False
            until = event.at + timedelta(seconds=15)
            if not any(later.part >= 0.6 and later.at < until for later in given[place + 1 :]):
                times.append(event.at)
    return times


letters = st.lists(st.sampled_from("fms-"), max_size=80).map("".join)
stretches = st.lists(st.tuples(st.sampled_from("fms-"), st.integers(1, 20)), max_size=12)


@settings(max_examples=50)
@given(st.one_of(letters, stretches.map(lambda given: "".join(letter * count for letter, count in given))))
def test_jams_are_those_that_looking_ahead_finds(text: str) -> None:
    matches = cep.find(jam, flows(text), within=JAM_MAX)
    assert [match["slow"].at for match in matches] == naive(flows(text))


def day(*stretches: tuple[float, int]) -> list[Report]:
    """Return a report each second, with `count` reports of each speed."""
    speeds = [speed for speed, count in stretches for _ in range(count)]
    return [report(second, speed) for second, speed in enumerate(speeds)]


def test_one_jam_is_told_once_when_it_stays_and_once_when_it_is_over_whatever_crashes() -> None:
    """The mean of ten is below 40 from the seventh slow report on, and at 60 again with the sixth of those after it."""
    given = day((90.0, 20), (10.0, 60), (90.0, 20))
    calm = reported(*given, LONG)
    [begun], [over] = calm.emitted(congestion), calm.emitted(jams)
    assert begun.at == NOON + timedelta(seconds=26)
    assert (over.began, over.at) == (begun.at, NOON + timedelta(seconds=86))
    assert over.seconds == 60
    rough = reported(*given[:30], CRASH, *given[30:50], CRASH, *given[50:], LONG, CRASH)
    for handler in (flow, congestion, jams):
        assert rough.emitted(handler) == calm.emitted(handler)
        assert rough.digest(handler) == calm.digest(handler)


def test_one_vehicle_that_slips_through_neither_ends_a_jam_nor_begins_another() -> None:
    given = day((90.0, 20), (10.0, 30), (90.0, 1), (10.0, 30), (90.0, 1), (10.0, 30), (90.0, 20))
    result = reported(*given, LONG)
    assert (len(result.emitted(congestion)), len(result.emitted(jams))) == (1, 1)


def test_segments_do_not_touch_each_other() -> None:
    jammed = day((90.0, 20), (10.0, 40))
    free = [report(second, 90.0, "ring-2") for second in range(60)]
    both = [event for pair in zip(jammed, free, strict=True) for event in pair]
    assert [event.segment for event in reported(*both, LONG).emitted(congestion)] == ["ring-1"]


def test_the_play_has_jams_and_nothing_is_missed() -> None:
    result = reported(*events("traffic", 6_000))
    assert len(result.emitted(congestion)) >= 3
    assert result.emitted(jams)
    assert result.emitted("congestion.missed") == result.emitted("jams.missed") == []
    assert result.failed(flow) == []
