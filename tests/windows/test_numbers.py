"""Numbers that do not fit, and NaN: the rows of such windows, and that no key stops because of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from itertools import permutations
from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, Event, windows
from penstock.sketches import Hll, Kll
from penstock.testing import Result, run, tick
from penstock.windows.aggregates import time_order
from penstock.windows.clock import EPOCH
from penstock.windows.shapes import Counted, Shape
from tests.windows.meters import BEGIN, END, Reading, expected, place, reading, seconds, window

LARGE, EXACT = 2**62, Context(prec=80)
SHAPES: list[Shape] = [
    windows.tumbling(seconds(10)),
    windows.sliding(seconds(20), every=seconds(5)),
    windows.tumbling(3),
    windows.sliding(6, every=2),
    windows.session(seconds(8)),
    windows.hybrid(4, seconds(15)),
]
SUM = {"total": windows.sum("watts")}
LISTED = SUM | {"all": windows.collect("watts")}
"""With a list, the accumulator has no fixed size, and is not packed."""
TRIGGERS = [windows.on_change, windows.on_close, windows.every(seconds(3))]


def totals_of(over: Shape, events: list[Reading]) -> dict[Any, int | None]:
    """Return the sums of the closed windows, null where they do not fit a column."""
    sums = {where: sum(event.watts or 0 for event in inside) for where, inside in expected(over, events).items()}
    return {where: total if -(2**63) <= total < 2**63 else None for where, total in sums.items()}


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("over", SHAPES, ids=str)
def test_a_sum_that_is_too_large_is_null_and_later_windows_are_right_again(over: Any, trigger: Any) -> None:
    """Each event is a separate batch, so that the whole state is written and read."""
    app, view_handler = window(over, seconds(5), aggregate=SUM, trigger=trigger)
    events = [reading(second, LARGE if second < 4 else 1) for second in (*range(20), *range(60, 80))]
    result = run(app, {"readings": [*events, *END]}, batch_events=1)
    assert (result.failed(view_handler), result.emitted("used.late")) == ([], [])
    totals = totals_of(over, events)
    assert None in totals.values()
    assert list(totals.values())[-1] is not None
    assert {place(row): row.total for row in result.rows(view_handler) if getattr(row, "closed", True)} == totals


NEAR = timedelta(seconds=2**33)
TIMES = st.datetimes(timezones=st.just(UTC)) | st.builds(
    lambda edge, off: edge + timedelta(microseconds=off),
    st.sampled_from([EPOCH - NEAR, EPOCH, EPOCH + NEAR, BEGIN]),
    st.integers(-3, 3),
)


@settings(max_examples=500)
@given(TIMES, TIMES | st.integers(-2, 2))
def test_the_stored_order_of_two_times_is_that_of_the_times(one: datetime, given: datetime | int) -> None:
    try:
        other = one + timedelta(microseconds=given) if isinstance(given, int) else given
    except OverflowError:
        return
    orders = time_order(one), time_order(other)
    assert (orders[0] < orders[1], orders[0] == orders[1]) == (one < other, one == other)
    if abs(one - EPOCH) < NEAR:
        assert orders[0] == one.timestamp(), "stored state has this"


@pytest.mark.parametrize("batch_events", [1, 1_000])
@pytest.mark.parametrize("over", [shape for shape in SHAPES if not isinstance(shape, Counted)], ids=str)
@pytest.mark.parametrize("year", [2, 1600, 2026, 2300, 9000])
def test_events_a_microsecond_apart_are_in_order_in_every_year(year: int, over: Any, batch_events: int) -> None:
    begin = datetime(year, 1, 1, 12, tzinfo=UTC)
    events = [Reading(at=begin + timedelta(microseconds=number), meter="a", watts=number) for number in (3, 1, 2, 0)]
    edges: dict[str, Any] = {"first": windows.first("watts"), "last": windows.last("watts")}
    for aggregate in (edges, edges | {"all": windows.collect("watts")}):
        app, view_handler = window(over, seconds(100), aggregate=aggregate)
        rollup = app.rollup("rolled", reads=app.streams[0], key="meter", by=["day"], aggregate=aggregate)
        result = run(app, {"readings": [*events, tick(seconds(200))]}, batch_events=batch_events)
        for rows in (result.rows(view_handler), result.rows(rollup)):
            whole = [row for row in rows if row.last == 3]
            assert whole
            assert all((row.first, getattr(row, "all", [0, 1, 2, 3])) == (0, [0, 1, 2, 3]) for row in whole)


@pytest.mark.parametrize("aggregate", [SUM, LISTED], ids=["packed", "listed"])
@pytest.mark.parametrize("over", SHAPES, ids=str)
@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.sampled_from([2**63 - 1, LARGE, 7, -LARGE, -(2**63)])), max_size=40),
    st.sampled_from(TRIGGERS),
    st.sampled_from([1, 1_000]),
)
def test_a_sum_depends_on_what_is_in_a_window_and_not_on_what_it_came_to_on_the_way(
    over: Any, aggregate: dict[str, Any], given: list[tuple[int, int]], trigger: Any, batch: int
) -> None:
    events = [reading(second, watts) for second, watts in given]
    app, view_handler = window(over, seconds(100), aggregate=aggregate, trigger=trigger)
    result = run(app, {"readings": [*events, *END]}, batch_events=batch)
    assert result.failed(view_handler) == []
    totals = totals_of(over, events)
    assert {place(row): row.total for row in result.rows(view_handler) if getattr(row, "closed", True)} == totals


class Payment(Event, time="at"):
    at: datetime
    account: str
    amount: Decimal = Decimal(0)
    share: float = 0.0


def paid(over: Any, aggregate: dict[str, Any], field: str, values: list[Any]) -> Result:
    """Run windows over payments that are a second apart; each event is a batch."""
    app = App("bank")
    stream = app.stream("payments", Payment, key="account")
    app.window("paid", reads=stream, key="account", over=over, aggregate=aggregate, keep=timedelta(days=365))
    payments = [{"at": BEGIN + seconds(number), field: value} for number, value in enumerate(values)]
    result = run(app, {stream: [*(Payment(account="a", **payment) for payment in payments), *END]}, batch_events=1)
    assert result.failed("paid") == []
    return result


@pytest.mark.parametrize(
    ("over", "totals"),
    [
        (windows.tumbling(2), [None, -2]),
        (windows.tumbling(seconds(2)), [None, -2]),
        (windows.sliding(4, every=2), [10**38 - 2]),
        (windows.hybrid(3, seconds(9)), [10**38 - 1, -1]),
        (windows.session(seconds(1)), [10**38 - 2]),
    ],
    ids=str,
)
def test_a_sum_of_decimals_is_exact_and_null_while_it_does_not_fit(over: Any, totals: list[int | None]) -> None:
    """The values use the last digits of a column. The largest number plus one has no sum."""
    one = Decimal("0.000000000000000001")
    most = Decimal("99999999999999999999.999999999999999999")
    rows = paid(over, {"total": windows.sum("amount")}, "amount", [most, one, -one, -one]).rows("paid")
    assert [row.total if row.total is None else int(row.total.scaleb(18, EXACT)) for row in rows] == totals


@pytest.mark.parametrize("values", list(permutations([1.0, nan, 2.0])), ids=str)
def test_not_a_number_is_larger_than_any_whatever_the_order(values: tuple[float, ...]) -> None:
    aggregate = {"least": windows.min("share"), "most": windows.max("share")}
    for over in (windows.tumbling(seconds(60)), windows.sliding(3, every=1)):
        row = paid(over, aggregate, "share", list(values)).rows("paid")[-1]
        assert row.least == 1.0
        assert isnan(row.most)


def test_the_smallest_of_nothing_but_no_numbers_is_none() -> None:
    (row,) = paid(windows.tumbling(2), {"least": windows.min("share")}, "share", [nan, nan]).rows("paid")
    assert isnan(row.least)


def test_values_too_far_apart_for_a_deviation_fail_nothing() -> None:
    aggregate = {"spread": windows.stddev("share"), "squared": windows.variance("share"), "mean": windows.mean("share")}
    rows = paid(windows.tumbling(2), aggregate, "share", [-1e308, 1e308, inf, 1.0, 1.0, 3.0]).rows("paid")
    assert [isnan(row.spread) and isnan(row.squared) for row in rows] == [True, True, False]
    assert (rows[2].squared, rows[2].mean) == (2.0, 2.0)


@pytest.mark.parametrize("batch_events", [1, 1_000])
@pytest.mark.parametrize("over", [windows.tumbling(seconds(10)), windows.sliding(seconds(20), every=seconds(10))])
def test_a_summary_of_nothing_but_nulls_is_null_and_later_windows_are_told(over: Any, batch_events: int) -> None:
    aggregate = {
        "median": windows.summary("watts", Kll, lambda sketch: sketch.quantile(0.5).value, float),
        "different": windows.summary("watts", Hll, lambda sketch: round(sketch.count().value), int),
    }
    app, view_handler = window(over, aggregate=aggregate, trigger=windows.on_close)
    items = [reading(0, None), reading(60, 5), reading(61, None), reading(120, None), reading(181, 7), *END]
    result = run(app, {"readings": items}, batch_events=batch_events)
    assert (result.failed(view_handler), result.emitted("used.late")) == ([], [])
    rows = {row.window.end - timedelta(seconds=10): (row.median, row.different) for row in result.rows(view_handler)}
    expected = [(0, (None, None)), (60, (5.0, 1)), (120, (None, None)), (180, (7.0, 1))]
    assert [(at, rows[BEGIN + seconds(at)]) for at, _ in expected] == expected
