"""The meaning of windows: readings with their seconds, then the expected rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import App, Event, windows
from penstock.handlers import machine
from penstock.sketches import Hll
from penstock.testing import STEP, run, tick
from tests.windows.meters import END, Reading, place, reading, rows_of, seconds, seconds_to, window, window_rows

CLOSED: list[tuple[str, Any, list[int], list[tuple[Any, int, int]]]] = [
    (
        "tumbling by time",
        windows.tumbling(seconds(10)),
        [0, 4, 9, 10, 35],
        [((0, 10), 3, 13), ((10, 20), 1, 10), ((30, 40), 1, 35)],
    ),
    (
        "sliding by time",
        windows.sliding(seconds(20), every=seconds(10)),
        [3, 15, 31],
        [((-10, 10), 1, 3), ((0, 20), 2, 18), ((10, 30), 1, 15), ((20, 40), 1, 31), ((30, 50), 1, 31)],
    ),
    (
        "session",
        windows.session(seconds(5)),
        [0, 4, 9, 15, 30],
        [((0, 14), 3, 13), ((15, 20), 1, 15), ((30, 35), 1, 30)],
    ),
    ("tumbling by count", windows.tumbling(2), [1, 2, 3, 4, 5], [(1, 2, 3), (2, 2, 7)]),
    ("sliding by count", windows.sliding(3, every=1), [1, 2, 3, 4, 5], [(1, 3, 6), (2, 3, 9), (3, 3, 12)]),
    ("sliding by count, two at a time", windows.sliding(4, every=2), [1, 2, 3, 4, 5, 6, 7], [(1, 4, 10), (2, 4, 18)]),
    ("hybrid, by count", windows.hybrid(2, seconds(10)), [0, 1, 2, 3], [(1, 2, 1), (2, 2, 5)]),
    ("hybrid, by time", windows.hybrid(9, seconds(10)), [0, 1, 10, 25], [(1, 2, 1), (2, 1, 10), (3, 1, 25)]),
]


@pytest.mark.parametrize(("over", "times", "rows"), [case[1:] for case in CLOSED], ids=[case[0] for case in CLOSED])
def test_windows_on_close(over: Any, times: list[int], rows: list[Any]) -> None:
    """A reading of each second has as many watts. A row is (window, readings, watts)."""
    items = [*(reading(second, second) for second in times), *END]
    assert rows_of(over, items, trigger=windows.on_close) == [("a", where, True, n, total) for where, n, total in rows]


def test_at_every_change_there_is_a_row_at_once_and_it_says_whether_it_is_closed() -> None:
    over = windows.tumbling(seconds(10))
    assert rows_of(over, [reading(1, 5)]) == [("a", (0, 10), False, 1, 5)]
    assert rows_of(over, [reading(1, 5), reading(2, 6)]) == [("a", (0, 10), False, 2, 11)]
    assert rows_of(over, [reading(1, 5), reading(12, 6)]) == [("a", (0, 10), True, 1, 5), ("a", (10, 20), False, 1, 6)]


def test_a_sliding_window_is_shown_from_when_its_last_slide_begins() -> None:
    over = windows.sliding(seconds(30), every=seconds(10))
    assert rows_of(over, [reading(1, 5)]) == [("a", (-20, 10), False, 1, 5)]
    assert rows_of(over, [reading(1, 5), reading(12, 6)])[-1] == ("a", (-10, 20), False, 2, 11)


def test_at_intervals_only_what_has_changed_is_told_and_not_before() -> None:
    over, trigger = windows.tumbling(timedelta(hours=1)), windows.every(seconds(10))
    app, view_handler = window(over, trigger=trigger)
    items = [
        reading(1, 5),
        reading(2, 6),
        tick(seconds(9)),
        reading(3, 1),
        tick(seconds(2)),
        tick(seconds(60)),
        reading(4, 2),
    ]
    result = run(app, {"readings": items})
    assert [row.total for row in result.emitted(view_handler)] == [12]
    result = run(app, {"readings": [*items, tick(seconds(11))]})
    assert [row.total for row in result.emitted(view_handler)] == [12, 14]


@pytest.mark.parametrize(
    "over",
    [windows.tumbling(seconds(10)), windows.sliding(seconds(20), every=seconds(10)), windows.session(seconds(9))],
    ids=str,
)
def test_the_last_window_of_a_quiet_key_closes_as_log_time_passes(over: Any) -> None:
    """A second of log time is a second of event time, from the last event on; `late_after` is added to that."""
    app, _ = window(over, seconds(5), trigger=windows.on_close)
    first = [reading(1, 5)]
    assert window_rows(run(app, {"readings": [*first, tick(seconds(13.9))]})) == []
    assert [row[3:] for row in window_rows(run(app, {"readings": [*first, tick(seconds(14.1))]}))] == [(1, 5)]


def test_a_key_that_is_quiet_for_long_is_forgotten() -> None:
    app, view_handler = window(windows.sliding(seconds(60), every=seconds(5)), keep=timedelta(hours=1))
    result = run(app, {"readings": [reading(1), tick(timedelta(minutes=30))]})
    assert list(result.states(view_handler)) == ["a"]
    result = run(app, {"readings": [reading(1), tick(timedelta(hours=2)), tick(seconds(1))]})
    assert result.states(view_handler) == {}


TRIGGERS = [windows.on_change, windows.on_close, windows.every(seconds(3))]


@pytest.mark.parametrize("late", [None, seconds(5)], ids=str)
@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize(
    "over", [windows.tumbling(2), windows.hybrid(2, seconds(60)), windows.hybrid(9, seconds(60))], ids=str
)
def test_a_quiet_key_that_has_no_window_to_fill_is_forgotten(over: Any, trigger: Any, late: timedelta | None) -> None:
    app, view_handler = window(over, late, trigger=trigger, keep=timedelta(hours=1))
    items = [reading(1), reading(2), tick(timedelta(minutes=59))]
    assert list(run(app, {"readings": items}).states(view_handler)) == ["a"]
    result = run(app, {"readings": [*items, tick(timedelta(minutes=5)), tick(STEP)]})
    assert result.states(view_handler) == {}
    assert [row[3:] for row in window_rows(result)] == [(2, 2)]


@pytest.mark.parametrize("over", [windows.tumbling(3), windows.sliding(2, every=1)], ids=str)
def test_a_key_that_has_a_window_to_fill_is_not_forgotten(over: Any) -> None:
    app, view_handler = window(over, seconds(5), keep=timedelta(hours=1))
    result = run(app, {"readings": [reading(1), reading(2), *END, *END]})
    assert list(result.states(view_handler)) == ["a"]


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("over", [windows.tumbling(1), windows.tumbling(2), windows.hybrid(1, seconds(9))], ids=str)
def test_windows_are_counted_on_until_their_key_is_forgotten_and_then_from_one_again(over: Any, latest: bool) -> None:
    """The pauses are of 50 minutes, and then of two hours. There is one row for each number, and with `latest` for each
    key."""
    app, view_handler = window(over, keep=timedelta(hours=1), latest=latest)
    size, pause = 2 if over == windows.tumbling(2) else 1, [tick(timedelta(minutes=50))]
    items: list[Any] = []
    for minute in (0, 51, 102):
        items += [*(reading(minute * 60 + second, minute) for second in range(size)), *pause]
    before = [row.number for row in run(app, {"readings": items}).rows(view_handler)]
    assert before == ([3] if latest else [1, 2, 3])
    items += [tick(timedelta(hours=2)), *(reading(90_000 + second, 7) for second in range(size))]
    result = run(app, {"readings": items})
    assert [row.number for row in result.emitted(view_handler) if getattr(row, "closed", False)] == [1, 2, 3, 1]
    assert [(row.number, row.total) for row in result.rows(view_handler)][:1] == [(1, 7 * size)]
    assert len(result.rows(view_handler)) == len(before)


@pytest.mark.parametrize("over", [windows.tumbling(1), windows.tumbling(5)], ids=str)
def test_to_be_forgotten_one_day_costs_no_timer_for_each_window(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[datetime | None] = []
    set_timer = machine._Context.timer

    def counted(ctx: machine._Context, name: str, at: datetime | None) -> None:
        timers.append(at)
        set_timer(ctx, name, at)

    monkeypatch.setattr(machine._Context, "timer", counted)
    app, view_handler = window(over)
    items = [item for second in range(1_000) for item in (reading(second), tick(seconds(1)))]
    result = run(app, {"readings": items})
    assert len(result.rows(view_handler)) == 1_000 // over.size
    assert len(timers) == 1


@pytest.mark.parametrize("over", [case[1] for case in CLOSED], ids=[case[0] for case in CLOSED])
def test_what_is_too_late_is_told_and_changes_no_row(over: Any) -> None:
    """The reading at 110 has advanced time to 100; one at 50 is counted by no window."""
    early = [reading(1, 1), reading(2, 2), reading(110, 3)]
    app, _ = window(over, seconds(10))
    without = run(app, {"readings": [*early, *END]})
    result = run(app, {"readings": [*early, reading(50, 100), *END]})
    assert window_rows(result) == window_rows(without)
    (late,) = result.emitted("used.late")
    assert (late.key, late.at) == ("a", reading(50).at)
    assert 0 < late.late_s <= 50
    assert '"watts":100' in late.event


PARTLY = [
    ("in time for all", 61, [], [70, 80, 90, 100, 110, 120]),
    ("in time for most", 45, [50, 60], [70, 80, 90, 100]),
    ("in time for the last", 15, [20, 30, 40, 50, 60], [70]),
    ("too late for all", 9, [10, 20, 30, 40, 50, 60], []),
]
"""The second of an event; the ends of the windows that it missed, and of those that contain it."""


@pytest.mark.parametrize("before", [[], [1], [1, 2, 12, 14, 33, 34]], ids=["none", "one", "some"])
@pytest.mark.parametrize("trigger", [windows.on_change, windows.on_close, windows.every(seconds(1))])
@pytest.mark.parametrize(
    ("second", "missed", "joined"), [case[1:] for case in PARTLY], ids=[case[0] for case in PARTLY]
)
def test_a_late_event_misses_windows_that_are_closed_and_counts_in_the_others(
    second: int, missed: list[int], joined: list[int], trigger: Any, before: list[int]
) -> None:
    """Windows of a minute, each ten seconds. The reading at 70 has advanced time to 60."""
    app, view_handler = window(windows.sliding(seconds(60), every=seconds(10)), seconds(10), trigger=trigger)
    early = [reading(at) for at in (*before, 70)]
    result = run(app, {"readings": [*early, reading(second, 100), *END]})
    assert result.failed(view_handler) == []
    assert [
        [seconds_to(missed_window.end) for missed_window in late.windows] for late in result.emitted("used.late")
    ] == ([missed] if missed else [])
    wanted = {place[1]: (n, total) for _, place, _, n, total in window_rows(run(app, {"readings": [*early, *END]}))}
    for end in joined:
        n, total = wanted.get(end, (0, 0))
        wanted[end] = (n + 1, total + 100)
    assert {place[1]: (n, total) for _, place, _, n, total in window_rows(result)} == wanted


def test_a_change_by_a_late_event_is_told_of_the_windows_that_are_shown() -> None:
    """The reading at 50 has advanced time to 40: of the windows with the one at 25, that which ends at 60 is shown."""
    app, view_handler = window(windows.sliding(seconds(40), every=seconds(10)), seconds(10))
    result = run(app, {"readings": [reading(1), reading(50), reading(25, 100)]})
    assert [(place(row), row.closed, row.n, row.total) for row in result.emitted(view_handler)][-2:] == [
        ((10, 50), False, 1, 100),
        ((20, 60), False, 2, 101),
    ]


def test_a_late_after_of_its_own_comes_before_that_of_the_stream() -> None:
    items = [reading(1), reading(30), reading(12)]
    over = windows.tumbling(seconds(10))
    assert rows_of(over, items, seconds(10))[-1] == ("a", (30, 40), False, 1, 1)
    assert ("a", (10, 20), False, 1, 1) in rows_of(over, items, seconds(10), late_after=seconds(60))


def test_with_latest_there_is_one_row_for_each_key_that_of_its_newest_window() -> None:
    items = [reading(1, 5), reading(12, 6), reading(3, 1), reading(2, 9, "b")]
    rows = rows_of(windows.tumbling(seconds(10)), items, seconds(60), latest=True)
    assert rows == [("a", (10, 20), False, 1, 6), ("b", (0, 10), False, 1, 9)]
    closed = rows_of(windows.tumbling(seconds(10)), [*items, *END], seconds(60), latest=True, trigger=windows.on_close)
    assert closed == [("a", (10, 20), True, 1, 6), ("b", (0, 10), True, 1, 9)]


def test_the_last_five_minutes_fall_as_time_passes_and_are_gone_when_they_are_empty() -> None:
    items = [reading(0), reading(10), reading(70), reading(80), reading(90)]
    over = windows.sliding(timedelta(minutes=5), every=timedelta(minutes=1))

    def after(minutes: float) -> list[tuple[Any, ...]]:
        return rows_of(over, [*items, tick(timedelta(minutes=minutes))], latest=True)

    assert [row[3] for row in after(0.1)] == [5]
    assert after(4) == [("a", (0, 300), True, 5, 5)]
    assert after(5) == [("a", (60, 360), True, 3, 3)]
    assert after(6) == []
    assert after(75) == []


def test_without_lateness_an_event_that_is_behind_another_may_miss_its_window() -> None:
    over = windows.tumbling(seconds(10))
    items = [reading(9), reading(10), reading(8)]
    app, _ = window(over, seconds(60), late_after=timedelta(0))
    assert [late.late_s for late in run(app, {"readings": items}).emitted("used.late")] == [2.0]
    app, _ = window(over, timedelta(0))
    assert [late.late_s for late in run(app, {"readings": items}).emitted("used.late")] == [2.0]


def test_an_event_in_an_open_session_is_not_late_however_far_time_has_come() -> None:
    app, _ = window(windows.session(seconds(30)), seconds(10))
    result = run(app, {"readings": [reading(0), reading(20), reading(45), reading(34)]})
    assert result.emitted("used.late") == []
    assert window_rows(result) == [("a", (0, 75), False, 4, 4)]


def test_a_session_that_grows_takes_the_place_of_what_it_was() -> None:
    app, view_handler = window(windows.session(seconds(5)), seconds(60))
    result = run(app, {"readings": [reading(0, 1), reading(8, 2), reading(4, 4)]})
    assert window_rows(result) == [("a", (0, 13), False, 3, 7)]
    assert [place(row) for row in result.emitted(view_handler)] == [(0, 5), (8, 13), (0, 5), (8, 13), (0, 13)]


def test_a_session_is_closed_when_no_event_can_join_it_any_more() -> None:
    """An event exactly the gap after the last one still joins."""
    over, items = windows.session(seconds(5)), [reading(0, 1), reading(3, 2)]
    assert rows_of(over, [*items, reading(8, 4)]) == [("a", (0, 13), False, 3, 7)]
    assert rows_of(over, [*items, tick(seconds(5) - STEP)]) == [("a", (0, 8), False, 2, 3)]
    assert rows_of(over, [*items, tick(seconds(5) + STEP), tick(STEP)]) == [("a", (0, 8), True, 2, 3)]


def test_events_wait_for_their_turn_where_order_matters() -> None:
    over = windows.tumbling(2)
    items = [reading(5, 5), reading(3, 3), reading(4, 4)]
    assert rows_of(over, items, seconds(10)) == []
    assert rows_of(over, [*items, reading(14, 14)], seconds(10)) == [("a", 1, True, 2, 7)]
    waited = [*items, tick(seconds(10)), tick(STEP)]
    assert rows_of(over, waited, seconds(10)) == [("a", 1, True, 2, 7), ("a", 2, False, 1, 5)]


def test_a_window_of_a_number_tells_when_it_began_and_ended() -> None:
    app, view_handler = window(windows.tumbling(2), trigger=windows.on_close)
    (row,) = run(app, {"readings": [reading(3), reading(8)]}).rows(view_handler)
    assert (row.number, row.start, row.end) == (1, reading(3).at, reading(8).at)


def test_an_hour_of_huge_values_leaves_nothing_behind_in_a_sum() -> None:
    """Nothing is ever subtracted, so values that have left the window leave no trace."""
    aggregate = {"n": windows.count(), "total": windows.mean("watts")}
    app, _ = window(windows.sliding(seconds(30), every=seconds(10)), aggregate=aggregate)
    result = run(app, {"readings": [reading(0, 2**53), reading(1, 1), reading(40, 1), reading(60, 3), *END]})
    assert window_rows(result)[-1][-1] == 3.0
    assert [row[-1] for row in window_rows(result) if row[1] == (40, 70)] == [2.0]


@pytest.mark.parametrize("batch", [1, 1_000])
def test_a_sketch_is_an_aggregate(batch: int) -> None:
    """It is merged from slide to slide, and is the same whether it was serialised in between or not."""
    different = windows.summary("number", Hll, lambda numbers: round(numbers.count().value), int)
    app, view_handler = window(windows.sliding(seconds(20), every=seconds(10)), aggregate={"different": different})
    items = [reading(second, number=second % 7) for second in range(0, 30, 2)]
    result = run(app, {"readings": [*items, *END]}, batch_events=batch)
    assert result.failed(view_handler) == []
    assert [(place(row), row.different) for row in result.rows(view_handler)] == [
        ((-10, 10), 5), ((0, 20), 7), ((10, 30), 7), ((20, 40), 5),
    ]  # fmt: skip


@pytest.mark.parametrize("late", [None, seconds(15)])
@pytest.mark.parametrize("trigger", [windows.on_change, windows.on_close, windows.every(seconds(3))])
@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("year", [1, 9999])
def test_an_event_whose_windows_cannot_all_be_represented_fails_alone(
    year: int, latest: bool, trigger: Any, late: Any
) -> None:
    over = windows.sliding(seconds(30), every=seconds(10))
    app, view_handler = window(over, late, latest=latest, trigger=trigger)
    time = (datetime.min if year == 1 else datetime.max).replace(tzinfo=UTC)
    usual, bad, end = [reading(second) for second in range(0, 100, 7)], Reading(at=time, meter="a"), tick(seconds(600))
    expected = run(app, {"readings": [*usual, end]})
    assert expected.rows(view_handler) or latest
    for given in ([bad, *usual], [usual[0], bad, *usual[1:]], [*usual, bad]):
        result = run(app, {"readings": [*given, end]}, batch_events=1)
        assert [failure.error for failure in result.failed(view_handler)] == [
            f"ValueError: {time.isoformat()} is too close to the year 1 or the year 10000 for windows of this size"
        ]
        assert (window_rows(result), result.emitted("used.late")) == (window_rows(expected), [])


@pytest.mark.parametrize("year", [1, 9999])
def test_an_event_whose_windows_can_just_be_represented_is_counted(year: int) -> None:
    over = windows.sliding(seconds(30), every=seconds(10))
    app, view_handler = window(over, trigger=windows.on_close)
    time = datetime(1, 1, 1, 0, 0, 20, tzinfo=UTC) if year == 1 else datetime(9999, 12, 31, 23, 59, 19, tzinfo=UTC)
    result = run(app, {"readings": [Reading(at=time, meter="a"), tick(seconds(600))]})
    assert result.failed(view_handler) == []
    assert [row.n for row in result.rows(view_handler)] == [1, 1, 1]


def test_a_session_in_the_year_1_continues() -> None:
    app, view_handler = window(windows.session(seconds(5)))
    times = [datetime.min.replace(tzinfo=UTC) + seconds(number) for number in (0, 1, 6)]
    result = run(app, {"readings": [*(Reading(at=time, meter="a") for time in times), tick(seconds(600))]})
    assert result.failed(view_handler) == []
    assert [row.n for row in result.rows(view_handler)] == [3]


class Shifted(Hll):
    """A sketch of numbers that are multiplied by 2^62 first, so it refuses 2 and more."""

    def add(self, item: Any) -> None:
        super().add(item << 62)


@pytest.mark.parametrize("over", [windows.tumbling(seconds(10)), windows.tumbling(2), windows.session(seconds(9))])
def test_an_event_that_a_sketch_refuses_is_reported_and_in_no_window(over: Any) -> None:
    aggregate = {
        "n": windows.count(),
        "different": windows.summary("number", Shifted, lambda kept: kept.count().value, float),
    }
    app, view_handler = window(over, aggregate=aggregate)
    result = run(app, {"readings": [reading(second, number=second) for second in range(4)]})
    assert [failure.error for failure in result.failed(view_handler)] == [
        f"ValueError: {number << 62} does not fit in 64 bits: convert it to a string" for number in (2, 3)
    ]
    assert [(row.n, round(row.different)) for row in result.rows(view_handler)] == [(2, 2)]


def test_what_is_kept_of_a_sliding_window_is_one_sum_a_slide() -> None:
    """360 overlaps: the state of a key that reports each second is 360 packed sums, and not 360 times as much."""
    app, _ = window(windows.sliding(timedelta(minutes=30), every=seconds(5)), trigger=windows.on_close)
    result = run(app, {"readings": [reading(second) for second in range(4_000)]}, batch_events=100)
    (shard,) = result._shards["used"]
    assert shard.size < 360 * 40


class Bare(Event):
    meter: str


def test_times_that_the_log_gives_are_taken_for_events_without() -> None:
    from penstock import Event

    class Bare(Event):
        meter: str

    app = App("bare")
    stream = app.stream("bare", Bare, key="meter")
    keep = timedelta(hours=1)
    app.window(
        "w", reads=stream, key="meter", over=windows.tumbling(seconds(1)), aggregate={"n": windows.count()}, keep=keep
    )
    result = run(app, {"bare": [Bare(meter="a"), Bare(meter="a"), tick(seconds(1)), Bare(meter="a")]})
    assert [(row.closed, row.n) for row in result.rows("w")] == [(True, 2), (False, 1)]
