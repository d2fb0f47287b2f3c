"""When a silent stream gets a tick, and the tick's event time. Times are in seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import App, Event
from penstock.collect.stream_clock import StreamTime
from penstock.control import EngineStatus, NodeState, NodeStatus, ViewStatus, WindowTiming
from penstock.runtime.idling import due
from tests.runtime.statuses import engine_status

S = 1_000_000
QUIET = 10
MINUTE = WindowTiming(60 * S, 60 * S)
SLIDING = WindowTiming(60 * S, 20 * S)
SESSION = WindowTiming(30 * S)
HOUR_JOIN = WindowTiming(3600 * S)


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


def engine(view: str, *timings: WindowTiming, state: NodeState = "running") -> EngineStatus:
    status = ViewStatus(node=NodeStatus(state=state), window_timings=timings)
    return engine_status(views={view: status})


def stream_time(newest: float | None, came: float, tick: float | None = None) -> StreamTime:
    """Return a stream whose newest event of event time `newest` came at `came`; a tick has advanced event time
    since."""
    if newest is None:
        return StreamTime(round(came * S), event_time=None if tick is None else round(tick * S))
    at, when, said = round(newest * S), round(came * S), round((newest if tick is None else tick) * S)
    return StreamTime(when, at, when, when, said, when)


def ticks(status: EngineStatus, now: float, time: str = "event", **stream_times: StreamTime) -> dict[str, float | None]:
    moments = due(app_of(time), status, stream_times, round(now * S), QUIET * S)
    return {name: None if moment is None else moment / S for name, moment in moments.items()}


@pytest.mark.parametrize(
    ("closing", "newest", "tick", "silent", "expected"),
    [
        # the event of 30 is in the window from 0 to 60, which is over at 65: that is 35 after it came
        (MINUTE, 30, None, 9, None),
        (MINUTE, 30, None, 34.9, None),  # a tick would close nothing
        (MINUTE, 30, None, 35, 65),
        (MINUTE, 30, 65, 100, None),  # all is closed: there is nothing more to report
        (MINUTE, 30, None, 3600, 3630),  # found silent for long, as after the engine was down
        (MINUTE, 62, None, 9, None),  # it closes the windows before, but the stream is not silent yet
        (MINUTE, 62, None, 10, 72),
        (MINUTE, 62, 72, 60, None),
        (MINUTE, 62, 72, 63, 125),
        # each end of a sliding window is a time for a tick, up to the last that has the event
        (SLIDING, 30, 45, 34, None),
        (SLIDING, 30, 45, 35, 65),
        (SLIDING, 30, 65, 55, 85),
        (SLIDING, 30, 84, 500, 530),
        (SLIDING, 30, 85, 500, None),  # the last window that contains it ends at 80
        # if windows can end at any time, in steps of the silence, until the last is over
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
    closing: WindowTiming, newest: float, tick: float | None, silent: float, expected: float | None
) -> None:
    came = 1000.0  # event time is far behind ingest time: that is irrelevant
    moments = ticks(engine("single", closing), came + silent, one=stream_time(newest, came, tick))
    assert moments == ({} if expected is None else {"one": expected})


def test_a_stream_that_is_silent_while_another_is_not_is_told_the_time_for_as_long() -> None:
    status = engine("both", MINUTE)
    busy = stream_time(300, 1000)
    assert ticks(status, 1000, one=stream_time(30, 720, 65), two=busy) == {"one": 310.0}
    assert ticks(status, 1000, one=stream_time(30, 720, 310), two=busy) == {}


def test_a_stream_that_never_had_an_event_has_the_time_of_those_it_is_read_with() -> None:
    status = engine("both", MINUTE)
    assert ticks(status, 1000, one=stream_time(300, 1000), two=stream_time(None, 900)) == {"two": 300.0}
    assert ticks(status, 1000, one=stream_time(300, 1000), two=stream_time(None, 900, tick=300)) == {}
    assert ticks(status, 1000, one=stream_time(None, 900), two=stream_time(None, 900)) == {}


@pytest.mark.parametrize(("state", "closings"), [("failed", [MINUTE]), ("starting", [MINUTE]), ("running", [])])
def test_no_time_is_told_for_a_view_that_does_not_run_or_closes_nothing(
    state: NodeState, closings: list[WindowTiming]
) -> None:
    assert ticks(engine("single", *closings, state=state), 2000, one=stream_time(30, 1000)) == {}
    assert ticks(engine_status(), 2000, one=stream_time(30, 1000)) == {}
    assert ticks(engine("untimed", MINUTE), 2000, free=stream_time(30, 1000)) == {}


def test_by_ingest_time_the_log_time_of_a_tick_is_all_that_is_told() -> None:
    status = engine("single", MINUTE)
    assert ticks(status, 1019, "ingest", one=stream_time(30, 1000)) == {}
    assert ticks(status, 1020, "ingest", one=stream_time(30, 1000)) == {"one": None}  # the window from 960 to 1020
    after = StreamTime(1000 * S, 30 * S, 1000 * S, 1000 * S, 30 * S, 1020 * S)
    assert ticks(status, 2000, "ingest", one=after) == {}


def test_event_time_does_not_pass_the_last_year_that_there_is() -> None:
    last = (datetime(9999, 12, 30) - datetime(1970, 1, 1)).total_seconds()
    (moment,) = ticks(engine("single", MINUTE), 10**7, one=stream_time(last, 1000)).values()
    assert moment == last + 86_400
