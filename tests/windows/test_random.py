"""Windows over events in any order within the allowed lateness give the same as over all of them at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import windows
from penstock.testing import STEP, Result, run, tick
from penstock.windows.shapes import Shape
from tests.windows.meters import (
    AGGREGATES,
    COLLECTED,
    END,
    Reading,
    expected,
    naive,
    place,
    reading,
    seconds,
    seconds_to,
    window,
)

LATE_S = 20
SHAPES: list[Shape] = [
    windows.tumbling(seconds(10)),
    windows.sliding(seconds(60), every=seconds(5)),
    windows.tumbling(3),
    windows.sliding(6, every=2),
    windows.session(seconds(8)),
    windows.hybrid(4, seconds(15)),
]
READINGS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, LATE_S), st.none() | st.integers(-50, 50), st.sampled_from("ab")),
    max_size=60,
)
TRIGGERS = st.sampled_from([windows.on_change, windows.on_close, windows.every(seconds(3))])


def came(given: list[tuple[int, int, int | None, str]]) -> list[Reading]:
    """Return readings in an order in which none is more than `LATE_S` behind an earlier arrival."""
    ordered = sorted(given, key=lambda row: row[0] + row[1])
    return [reading(second, watts, meter, number) for number, (second, _, watts, meter) in enumerate(ordered)]


def closed(result: Result) -> dict[tuple[str, Any], Any]:
    return {(row.meter, place(row)): row for row in result.rows("used") if getattr(row, "closed", True)}


@pytest.mark.parametrize("aggregate", [AGGREGATES, COLLECTED], ids=["packed", "listed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(deadline=None, max_examples=40)
@given(READINGS, TRIGGERS, st.sampled_from([1, 4, 1_000]), st.integers(1, 2))
def test_closed_windows_are_those_of_a_batch(
    shape: Shape, aggregate: dict[str, Any], given: list[Any], trigger: Any, batch: int, shards: int
) -> None:
    """Batches have any size: between two of them all state is encoded and decoded."""
    events = came(given)
    app, view_handler = window(shape, seconds(LATE_S), aggregate=aggregate, trigger=trigger)
    result = run(app, {"readings": [*events, *END]}, shards=shards, batch_events=batch)
    assert result.failed(view_handler) == []
    assert result.emitted("used.late") == []
    wanted = {
        (meter, where): naive(inside)
        for meter in "ab"
        for where, inside in expected(shape, [event for event in events if event.meter == meter]).items()
    }
    rows = closed(result)
    assert rows.keys() == wanted.keys()
    for where, row in rows.items():
        assert {name: getattr(row, name) for name in aggregate} == {
            name: pytest.approx(wanted[where][name]) for name in aggregate
        }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(deadline=None, max_examples=25)
@given(READINGS, TRIGGERS)
def test_a_restart_after_every_event_changes_nothing(shape: Shape, given: list[Any], trigger: Any) -> None:
    """The output is equal, and the state bit for bit, while windows are open."""
    app, view_handler = window(shape, seconds(LATE_S), aggregate=COLLECTED, trigger=trigger)
    once, often = (run(app, {"readings": came(given)}, batch_events=size) for size in (1_000, 1))
    assert once.digest(view_handler) == often.digest(view_handler)
    assert once.emitted(view_handler) == often.emitted(view_handler)


@pytest.mark.parametrize("aggregate", [AGGREGATES, COLLECTED], ids=["packed", "listed"])
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.none() | st.integers(-50, 50)), max_size=40),
    TRIGGERS,
    st.sampled_from([1, 4, 1_000]),
)
def test_in_any_order_an_event_is_in_the_windows_that_are_open_when_it_comes(
    aggregate: dict[str, Any], given: list[tuple[int, int | None]], trigger: Any, batch: int
) -> None:
    """Lateness is not limited: an event that misses a window is reported, and is in all others."""
    shape = windows.sliding(seconds(60), every=seconds(5))
    events = [reading(second, watts, number=number) for number, (second, watts) in enumerate(given)]
    app, view_handler = window(shape, seconds(LATE_S), aggregate=aggregate, trigger=trigger)
    result = run(app, {"readings": [*events, *END]}, batch_events=batch)
    assert result.failed(view_handler) == []
    wanted: dict[Any, list[Reading]] = {}
    missed: list[list[Any]] = []
    time = None
    for event in events:
        places = sorted(expected(shape, [event]))
        ended = [span for span in places if time is not None and span[1] <= time]
        missed += [ended] if ended else []
        for span in places[len(ended) :]:
            wanted.setdefault(("a", span), []).append(event)
        time = max(time or 0, seconds_to(event.at) - LATE_S)
    late_spans = [
        [(seconds_to(missed_window.start), seconds_to(missed_window.end)) for missed_window in late.windows]
        for late in result.emitted("used.late")
    ]
    assert late_spans == missed
    rows = closed(result)
    assert rows.keys() == wanted.keys()
    for where, row in rows.items():
        inside = naive(sorted(wanted[where], key=lambda event: event.at))
        assert {name: getattr(row, name) for name in aggregate} == {
            name: pytest.approx(inside[name]) for name in aggregate
        }


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 120), max_size=40),
    st.sampled_from([0, 5, 10]),
    TRIGGERS,
    st.sampled_from([1, 4, 1_000]),
)
@example([0, 18, 1], 10, windows.on_change, 1)
@example([0, 18, 0], 10, windows.on_change, 1)
def test_in_any_order_an_event_is_late_only_if_every_session_it_could_be_in_is_closed(
    given: list[int], late_s: int, trigger: Any, batch: int
) -> None:
    gap = 8
    events = [reading(second, number=number) for number, second in enumerate(given)]
    app, view_handler = window(windows.session(seconds(gap)), seconds(late_s), trigger=trigger)
    result = run(app, {"readings": [*events, *END]}, batch_events=batch)
    assert result.failed(view_handler) == []
    still, over, late = sessions(given, gap, late_s)
    counts = {
        place: (row.n, row.closed if hasattr(row, "closed") else True) for (_, place), row in closed(result).items()
    }
    assert [seconds_to(event.at) for event in result.emitted("used.late")] == late
    assert counts == {(session[0], session[-1] + gap): (len(session), True) for session in (*over, *still)}


def sessions(given: list[int], gap: int, late_s: int) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Return the sessions that are open after the last event, the closed ones, and the events that are in none.

    Log time advances `STEP` with each event, and event time with it from the newest event on. So a session that ends
    exactly at the event time may still grow with the event that advanced it, but not with the one after.
    """
    still: list[list[int]] = []
    over: list[list[int]] = []
    late: list[int] = []
    time: float = -1_000
    newest, newest_at = -1_000, 0
    for now, at in enumerate(given):
        passed = newest + (now - newest_at) * STEP.total_seconds() - late_s
        if any(session[-1] + gap < passed for session in still):
            time = passed
        if at >= newest:
            newest, newest_at, time = at, now, max(time, at - late_s)
        over += [session for session in still if session[-1] + gap < time]
        still = [session for session in still if session[-1] + gap >= time]
        near = [session for session in still if session[0] - gap <= at <= session[-1] + gap]
        if near or at + gap >= time:
            still = [
                *(session for session in still if session not in near),
                sorted([at, *(one for session in near for one in session)]),
            ]
        else:
            late.append(at)
    return still, over, late


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), max_size=25),
    st.integers(0, 500),
    st.sampled_from([0, 20]),
    TRIGGERS,
)
def test_with_latest_a_row_falls_as_time_passes_and_goes_with_the_last_event_of_its_window(
    given: list[tuple[int, int]], pause_s: int, late_s: int, trigger: Any
) -> None:
    """After a pause, each key has the row of the newest closed window, and none if that has no events."""
    size, slide = 60, 10
    came = sorted(given, key=lambda pair: pair[0] + (pair[1] if late_s else 0))
    events = [reading(second, number=number) for number, (second, _) in enumerate(came)]
    over = windows.sliding(seconds(size), every=seconds(slide))
    app, _ = window(over, seconds(late_s), trigger=trigger, latest=True)
    result = run(app, {"readings": [*events, tick(seconds(pause_s)), tick(timedelta(microseconds=1))]})
    rows = result.rows("used")
    if not events:
        assert rows == []
        return
    newest = max(second for second, _ in came)
    first = next(second for second, _ in came if second // slide == newest // slide)
    passed = max(newest, first + pause_s) - late_s  # time passes from the first event of the newest slide on
    end = passed // slide * slide
    inside = [second for second, _ in came if end - size <= second < end]
    shown = [(place(row), row.n) for row in rows if getattr(row, "closed", True)]
    if newest // slide * slide + slide <= end:  # else the newest window is still open
        assert [(place(row), row.n) for row in rows] == ([((end - size, end), len(inside))] if inside else [])
    elif trigger == windows.on_close:
        assert shown == ([((end - size, end), len(inside))] if inside else [])


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=25),
    st.sampled_from([0, *range(1, 120, 7), 500]),
    st.sampled_from([0, 20]),
    TRIGGERS,
    st.sampled_from([1, 4, 1_000]),
)
@example([0, 85, 90], 0, 20, windows.on_close, 1)
@example([0, 85], 5, 20, windows.on_close, 1)
@example([0, 200, 145], 0, 20, windows.on_change, 1)
@example([0, 200, 145], 500, 20, windows.on_close, 1)
def test_with_latest_in_any_order_the_row_is_that_of_the_newest_window_without_what_missed_it(
    given: list[int], pause_s: int, late_s: int, trigger: Any, batch: int
) -> None:
    """Some events are later than `late_after`: such an event is reported, and is in the windows that are open."""
    size, slide = 60, 10
    events = [reading(second, number=number) for number, second in enumerate(given)]
    over = windows.sliding(seconds(size), every=seconds(slide))
    app, view_handler = window(over, seconds(late_s), trigger=trigger, latest=True)
    ticks = [tick(seconds(pause_s)), tick(timedelta(microseconds=1))]
    result = run(app, {"readings": [*events, *ticks]}, batch_events=batch)
    assert result.failed(view_handler) == []
    passed = [max(given[:number], default=-size - late_s) - late_s for number in range(len(given))]
    ended = [at // slide * slide for at in passed]  # of the newest closed window, when each event came
    late = [second for second, end in zip(given, ended, strict=True) if second // slide * slide < end]
    assert [seconds_to(event.at) for event in result.emitted("used.late")] == late

    def row(end: int) -> list[tuple[tuple[int, int], int]]:
        inside = [at for at, before in zip(given, ended, strict=True) if end - size <= at < end and before < end]
        return [((end - size, end), len(inside))] if inside else []

    newest = max(given)
    first = next(second for second in given if second // slide == newest // slide)
    closed = (max(newest, first + pause_s) - late_s) // slide * slide
    still_open = newest // slide * slide + slide
    shown = [(place(result_row), result_row.n) for result_row in result.rows("used")]
    if still_open <= closed or trigger == windows.on_close:
        assert shown == row(closed)
    elif trigger == windows.on_change or pause_s >= 3:
        assert shown == row(still_open)


@settings(deadline=None, max_examples=50)
@given(READINGS, st.sampled_from([0, 5, 30]))
def test_at_every_change_the_newest_window_is_told_as_it_is(given: list[Any], late_s: int) -> None:
    """Events are in order: the last row is that of all so far, and is emitted with the event that changes it."""
    shape = windows.sliding(seconds(30), every=seconds(10))
    events = [event for event in sorted(came(given), key=lambda event: event.at) if event.meter == "a"]
    app, view_handler = window(shape, seconds(late_s) if late_s else None, aggregate=AGGREGATES, latest=True)
    changes = [
        change for change in run(app, {"readings": events}).emitted(view_handler) if not getattr(change, "closed", True)
    ]
    assert len(changes) == len(events)
    for number, row in enumerate(changes):
        (inside,) = [
            readings for where, readings in expected(shape, events[: number + 1]).items() if where == place(row)
        ]
        assert {name: getattr(row, name) for name in AGGREGATES} == {
            name: pytest.approx(value) for name, value in naive(inside).items() if name in AGGREGATES
        }
        assert row.window.end - timedelta(seconds=10) <= events[number].at < row.window.end
