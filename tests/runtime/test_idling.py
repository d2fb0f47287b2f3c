"""When a silent stream gets a tick, and what event time it carries. Times are in seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import App, Event
from penstock.collect.reached import Stand
from penstock.runtime.idling import due

S = 1_000_000
QUIET = 10
MINUTE = {"span": 60 * S, "step": 60 * S, "origin": 0}
SLIDING = {"span": 60 * S, "step": 20 * S, "origin": 0}
SESSION = {"span": 30 * S, "step": 0, "origin": 0}
HOUR_JOIN = {"span": 3600 * S, "step": 0, "origin": 0}


class Fix(Event, time="at"):
    at: datetime


def app_of(time: Any = "event") -> App:
    app = App("fleet")
    app.stream("one", Fix, late_after=timedelta(seconds=5))
    app.stream("two", Fix, late_after=timedelta(seconds=5))
    app.stream("free", Fix)
    app.view("single", reads="one", key="at", time=time)(lambda one: one)
    app.view("both", reads=["one", "two"], key="at", time=time)(lambda one, two: one)
    app.view("untimed", reads="free", key="at")(lambda free: free)
    return app


def engine(view: str, *closings: dict[str, int], state: str = "running") -> dict[str, Any]:
    return {"views": {view: {"state": state, "closings": list(closings)}}}


def stand(newest: float | None, came: float, told: float | None = None) -> Stand:
    """A stream whose newest event of event time `newest` came at `came`; a tick has told an event time since."""
    if newest is None:
        return Stand(round(came * S), told=None if told is None else round(told * S))
    at, when, said = round(newest * S), round(came * S), round((newest if told is None else told) * S)
    return Stand(when, at, when, when, said, when)


def ticks(told: dict[str, Any], now: float, time: str = "event", **stands: Stand) -> dict[str, float | None]:
    found = due(app_of(time), told, stands, round(now * S), QUIET * S)
    return {name: None if each is None else each / S for name, each in found.items()}


@pytest.mark.parametrize(
    ("closing", "newest", "told", "silent", "expected"),
    [
        # the event of 30 is in the window from 0 to 60, which is over at 65: that is 35 after it came
        (MINUTE, 30, None, 9, None),
        (MINUTE, 30, None, 34.9, None),  # a tick would close nothing
        (MINUTE, 30, None, 35, 65),
        (MINUTE, 30, 65, 100, None),  # all is closed: there is nothing more to say
        (MINUTE, 30, None, 3600, 3630),  # found silent for long, as after the engine was down
        (MINUTE, 62, None, 9, None),  # it closes what was before, but the stream is not silent yet
        (MINUTE, 62, None, 10, 72),
        (MINUTE, 62, 72, 60, None),
        (MINUTE, 62, 72, 63, 125),
        # each end of a sliding window is a time to tell of, up to the last that has the event
        (SLIDING, 30, 45, 34, None),
        (SLIDING, 30, 45, 35, 65),
        (SLIDING, 30, 65, 55, 85),
        (SLIDING, 30, 84, 500, 530),
        (SLIDING, 30, 85, 500, None),  # the last window that it is in ends at 80
        # where something can end at any time, in steps of the silence, until the last is over
        (SESSION, 30, None, 10, 40),
        (SESSION, 30, 40, 19, None),
        (SESSION, 30, 40, 20, 50),
        (SESSION, 30, 60, 35, 65),
        (SESSION, 30, 65, 1000, None),
        (HOUR_JOIN, 30, 3600, 3599, 3629),
        (HOUR_JOIN, 30, 3635, 9999, None),
    ],
)
def test_a_silent_stream_is_told_the_time_when_a_window_is_over_and_not_after_the_last(
    closing: dict[str, int], newest: float, told: float | None, silent: float, expected: float | None
) -> None:
    came = 1000.0  # event time is far behind ingest time: that is of no account
    found = ticks(engine("single", closing), came + silent, one=stand(newest, came, told))
    assert found == ({} if expected is None else {"one": expected})


def test_a_stream_that_is_silent_while_another_is_not_is_told_the_time_for_as_long() -> None:
    told = engine("both", MINUTE)
    busy = stand(300, 1000)
    assert ticks(told, 1000, one=stand(30, 720, 65), two=busy) == {"one": 310.0}
    assert ticks(told, 1000, one=stand(30, 720, 310), two=busy) == {}


def test_a_stream_that_never_had_an_event_has_the_time_of_those_it_is_read_with() -> None:
    told = engine("both", MINUTE)
    assert ticks(told, 1000, one=stand(300, 1000), two=stand(None, 900)) == {"two": 300.0}
    assert ticks(told, 1000, one=stand(300, 1000), two=stand(None, 900, told=300)) == {}
    assert ticks(told, 1000, one=stand(None, 900), two=stand(None, 900)) == {}


@pytest.mark.parametrize(("state", "closings"), [("failed", [MINUTE]), ("starting", [MINUTE]), ("running", [])])
def test_no_time_is_told_for_a_view_that_does_not_run_or_closes_nothing(
    state: str, closings: list[dict[str, int]]
) -> None:
    assert ticks(engine("single", *closings, state=state), 2000, one=stand(30, 1000)) == {}
    assert ticks({}, 2000, one=stand(30, 1000)) == {}
    assert ticks(engine("untimed", MINUTE), 2000, free=stand(30, 1000)) == {}


def test_by_ingest_time_the_log_time_of_a_tick_is_all_that_is_told() -> None:
    told = engine("single", MINUTE)
    assert ticks(told, 1019, "ingest", one=stand(30, 1000)) == {}
    assert ticks(told, 1020, "ingest", one=stand(30, 1000)) == {"one": None}  # the window from 960 to 1020
    after = Stand(1000 * S, 30 * S, 1000 * S, 1000 * S, 30 * S, 1020 * S)
    assert ticks(told, 2000, "ingest", one=after) == {}


def test_event_time_does_not_pass_the_last_year_that_there_is() -> None:
    last = (datetime(9999, 12, 30) - datetime(1970, 1, 1)).total_seconds()
    (told,) = ticks(engine("single", MINUTE), 10**7, one=stand(last, 1000)).values()
    assert told == last + 86_400
