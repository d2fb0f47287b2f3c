"""The rows of a rollup for some events: each case can be read and followed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock import App, Event, windows
from penstock.rollups import UNITS
from penstock.sketches import Hll, Kll
from penstock.testing import CRASH, run
from tests.rollups.shop import Given, Sale, moment, ran, shop, shown, sold

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MINUTES, MINUTES_ONLY = {"minute": HOUR, "day": 30 * DAY}, {"minute": HOUR}


def test_one_event_is_in_a_bucket_of_every_unit() -> None:
    result = ran(sold(("10:20:30.5", 2.0), ("10:20:31", 3.0)), UNITS, {})
    assert shown(result) == {
        "second 10:20:30": (1, 2.0),
        "second 10:20:31": (1, 3.0),
        "minute 10:20:00": (2, 5.0),
        "hour 10:00:00": (2, 5.0),
        "day 00:00:00": (2, 5.0),
        "month 00:00:00": (2, 5.0),
        "year 00:00:00": (2, 5.0),
    }


@pytest.mark.parametrize(
    ("given", "until", "expected"),
    [
        pytest.param(
            [("10:00:05", 1.0), ("10:01:05", 2.0), ("10:00:59", 4.0, "10:30:00")], "10:30:00",
            {"minute 10:00:00": (2, 5.0), "minute 10:01:00": (1, 2.0), "day 00:00:00": (3, 7.0)},
            id="a late event corrects the bucket that it belongs to",
        ),
        pytest.param(
            [("10:00:05", 1.0), ("11:30:00", 2.0)], "11:59:59",
            {"minute 10:00:00": (1, 1.0), "minute 11:30:00": (1, 2.0), "day 00:00:00": (2, 3.0)},
            id="a minute is kept until an hour after the end of its page, which is an hour of minutes",
        ),
        pytest.param(
            [("10:00:05", 1.0), ("10:59:00", 1.5), ("11:30:00", 2.0)], "12:00:00",
            {"minute 11:30:00": (1, 2.0), "day 00:00:00": (3, 4.5)},
            id="and then all minutes of that page go, though nothing comes",
        ),
        pytest.param(
            [("10:00:05", 1.0), ("13:30:00", 2.0), ("10:00:06", 4.0, "13:30:01")], "13:30:01",
            {"minute 13:30:00": (1, 2.0), "day 00:00:00": (3, 7.0)},
            id="an event that is too late for its minute still counts for its day",
        ),
        pytest.param(
            [("10:00:05", 1.0), ("11:30:00", 2.0), ("10:00:06", 4.0, "11:59:59.999")], "11:59:59.999",
            {"minute 10:00:00": (2, 5.0), "minute 11:30:00": (1, 2.0), "day 00:00:00": (3, 7.0)},
            id="a moment before its page is over a minute is corrected",
        ),
        pytest.param(
            [("11:30:00", 2.0), ("10:00:06", 4.0, "12:00:00")], "12:00:00",
            {"minute 11:30:00": (1, 2.0), "day 00:00:00": (2, 6.0)},
            id="and at that moment it is not",
        ),
        pytest.param(
            [("10:00:05", 1.0), ("10:00:05", 2.0, "02 11:00:00"), ("10:00:07", 4.0, "02 12:00:00")], "02 12:00:00",
            {"day 00:00:00": (3, 7.0)},
            id="the time of a key goes on with log time, so a day later its minutes are over",
        ),
        pytest.param(
            [("23:00:00", 1.0, "01:00:00"), ("10:00:00", 2.0)], "10:00:00",
            {"minute 23:00:00": (1, 1.0), "minute 10:00:00": (1, 2.0), "day 00:00:00": (2, 3.0)},
            id="an event that is ahead of the log is counted and ends nothing",
        ),
    ],
)  # fmt: skip
def test_what_is_kept(given: list[Given], until: str, expected: dict[str, tuple[int, float]]) -> None:
    result = ran(sold(*given, until=until), ["minute", "day"], MINUTES)
    assert shown(result) == expected
    assert result.emitted("sales.missed") == []


def test_an_event_that_is_too_late_for_every_unit_is_told() -> None:
    result = ran(
        sold(("10:00:00", 1.0), ("02 10:00:00", 2.0), ("10:00:01", 4.0, "02 10:00:10")), ["minute"], MINUTES_ONLY
    )
    assert shown(result) == {"minute 01-02 10:00:00": (1, 2.0)}
    (miss,) = result.emitted("sales.missed")
    assert (miss.key, miss.reason, miss.at, miss.per) == ("a", "late", moment("10:00:01"), None)
    assert miss.by_s == DAY.total_seconds() + 9
    assert '"amount":4.0' in miss.event


def test_events_of_long_ago_that_come_now_have_the_time_that_they_tell() -> None:
    """A history is imported: minutes are kept by its own time, not by that of the log."""
    history: list[Given] = [
        ("10:00:00", 1.0, "20 00:00:00"),
        ("10:30:00", 2.0, "20 00:00:00"),
        ("12:10:00", 4.0, "20 00:00:01"),
    ]
    result = ran(sold(*history), ["minute", "day"], MINUTES)
    assert shown(result) == {"minute 12:10:00": (1, 4.0), "day 00:00:00": (3, 7.0)}
    result = ran(sold(*history, until="20 02:00:01"), ["minute", "day"], MINUTES)
    assert shown(result) == {"day 00:00:00": (3, 7.0)}


def test_an_event_is_too_late_from_the_moment_on_at_which_its_page_is_over() -> None:
    """The minutes from ten to eleven are over at noon."""
    for came, count in (("11:59:59.999", 0), ("12:00:00", 1)):
        result = ran(sold(("11:30:00", 1.0), ("10:00:01", 4.0, came)), ["minute"], MINUTES_ONLY)
        assert len(result.emitted("sales.missed")) == count


def test_of_a_key_of_which_nothing_is_kept_nothing_is_remembered() -> None:
    app, sales, rollup = shop(["minute"], MINUTES_ONLY)
    result = run(app, {sales: sold(("10:00:00", 1.0), until="12:00:00")})
    assert result.rows(rollup) == []
    assert result.states(rollup) == {}


def test_what_finds_no_room_is_told_with_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are not over, because they are ahead of the log, are bounded in number."""
    monkeypatch.setattr("penstock.rollups.handling.PAGES_MAX", 3)
    ahead: list[Given] = [(f"{hour}:00:00", 1.0, "01:00:00") for hour in (10, 11, 12, 13, 11)]
    result = ran(sold(*ahead), ["minute", "day"], MINUTES)
    assert shown(result) == {
        "minute 10:00:00": (1, 1.0),
        "minute 11:00:00": (2, 2.0),
        "minute 12:00:00": (1, 1.0),
        "day 00:00:00": (5, 5.0),
    }
    (miss,) = result.emitted("sales.missed")
    assert (miss.reason, miss.per, miss.at) == ("full", "minute", moment("13:00:00"))


def test_rows_are_told_once_a_batch_and_not_once_an_event() -> None:
    app, sales, rollup = shop(UNITS, {})
    items = sold(*[("10:00:00", 1.0)] * 100)
    assert len(run(app, {sales: items}).emitted(rollup)) == len(UNITS)
    app, sales, rollup = shop(["second"], {})
    items = [Sale(at=moment(f"10:00:0{number}"), shop="a", amount=1.0) for number in (1, 1, 2)]
    rows = run(app, {sales: items}, batch_events=1).emitted(rollup)
    assert [(row.start, row.orders) for row in rows] == [
        (moment("10:00:01"), 1),
        (moment("10:00:01"), 2),
        (moment("10:00:02"), 1),
    ]


def test_days_of_a_zone() -> None:
    """In Berlin the year 2024 begins at 23:00 of UTC, and the last Sunday of March has 23 hours."""
    app = App("zone")
    sales = app.stream("sold", Sale, key="shop")
    rollup = app.rollup(
        "sales", reads=sales, key="shop", by=["day", "year"], zone="Europe/Berlin", aggregate={"n": windows.count()}
    )
    times = [
        "2023-12-31T22:59:59",
        "2023-12-31T23:00:00",
        "2024-03-30T23:00:00",
        "2024-03-31T21:59:59",
        "2024-03-31T22:00:00",
    ]
    items = [Sale(at=datetime.fromisoformat(time).replace(tzinfo=UTC), shop="a", amount=1.0) for time in times]
    rows = run(app, {sales: items}).rows(rollup)
    assert [(row.per, row.start.isoformat(), (row.end - row.start) / HOUR, row.n) for row in rows] == [
        ("day", "2023-12-30T23:00:00+00:00", 24, 1),
        ("day", "2023-12-31T23:00:00+00:00", 24, 1),
        ("day", "2024-03-30T23:00:00+00:00", 23, 2),
        ("day", "2024-03-31T22:00:00+00:00", 24, 1),
        ("year", "2022-12-31T23:00:00+00:00", 8760, 1),
        ("year", "2023-12-31T23:00:00+00:00", 8784, 4),
    ]


def test_null_counts_as_an_event_and_adds_nothing() -> None:
    app, sales, rollup = shop(
        ["day"],
        {},
        aggregate={
            "n": windows.count(),
            "paid": windows.count("amount"),
            "mean": windows.mean("amount"),
            "most": windows.max("amount"),
        },
    )
    items = [Sale(at=moment("10:00:00"), shop="a", amount=amount) for amount in (None, 2.0, 4.0)]
    (row,) = run(app, {sales: items}).rows(rollup)
    assert (row.n, row.paid, row.mean, row.most) == (3, 2, 3.0, 4.0)


@pytest.mark.parametrize("batch_events", [1, 1_000])
def test_a_sketch_is_kept_on_pages_that_are_packed_and_opened_again(batch_events: int) -> None:
    """Each hour has its minutes on a separate page. Late events open the first ones again, also after a crash."""
    shops = windows.summary("shop", Hll, lambda seen: seen.count().value, float)
    amounts = windows.summary("amount", Kll, lambda seen: seen.n, int)
    app, sales, rollup = shop(["minute", "day"], {}, aggregate={"shops": shops, "amounts": amounts})
    hours = [10, 11, 12, 13, 10, 10, 11]
    sold = [Sale(at=moment(f"{hour}:00:00"), shop="a", amount=float(number)) for number, hour in enumerate(hours)]
    result = run(app, {sales: [*sold[:4], CRASH, *sold[4:6], CRASH, *sold[6:]]}, batch_events=batch_events)
    assert result.failed(rollup) == []
    rows = [(row.per, row.start.hour, row.shops, row.amounts) for row in result.rows(rollup)]
    minutes = [("minute", 10, 1, 3), ("minute", 11, 1, 2), ("minute", 12, 1, 1), ("minute", 13, 1, 1)]
    assert rows == [("day", 0, 1, 7), *minutes]


class Move(Event):
    account: int
    cents: int


@pytest.mark.parametrize("batch_events", [1, 2, 1_000])
def test_without_event_time_log_time_counts_and_a_sum_is_null_while_it_is_too_large(batch_events: int) -> None:
    app = App("bank")
    moves = app.stream("moves", Move)
    rollup = app.rollup("sums", reads=moves, key="account", by=["year"], aggregate={"cents": windows.sum("cents")})
    large = 2**62
    first, second, third, fourth = (Move(account=1, cents=cents) for cents in (large, large, 7, -large))
    for items, cents in (([first, second, CRASH, third], None), ([first, second, CRASH, third, fourth], large + 7)):
        result = run(app, {moves: items}, batch_events=batch_events)
        (row,) = result.rows(rollup)
        assert (row.per, row.start, row.account, row.cents) == ("year", datetime(2024, 1, 1, tzinfo=UTC), 1, cents)
        assert result.failed(rollup) == []


class Payment(Event, time="at"):
    at: datetime
    account: str
    amount: Decimal


MOST, LEAST = Decimal("99999999999999999999"), Decimal("0.000000000000000001")


@pytest.mark.parametrize("batch_events", [1, 1_000])
@pytest.mark.parametrize(
    ("amounts", "total"),
    [
        ([Decimal(10) ** 11, LEAST], Decimal("100000000000.000000000000000001")),
        ([Decimal("12345678901.5"), Decimal("0.123456789012345678")], Decimal("12345678901.623456789012345678")),
        ([MOST, Decimal(1)], None),
        ([MOST, Decimal(1), Decimal(-1)], MOST),
    ],
    ids=["last digit", "all digits", "too large", "too large for a while"],
)
def test_a_sum_of_decimals_is_exact_and_null_while_it_does_not_fit(
    amounts: list[Decimal], total: Decimal | None, batch_events: int
) -> None:
    """Whatever its sum, a bucket does not affect the rows of other buckets."""
    app = App("bank")
    payments = app.stream("payments", Payment)
    aggregate: dict[str, Any] = {"total": windows.sum("amount"), "n": windows.count()}
    rollup = app.rollup("sums", reads=payments, key="account", by=["hour"], aggregate=aggregate)
    items = [Payment(at=moment("10:00:00"), account="a", amount=amount) for amount in amounts]
    items.append(Payment(at=moment("11:00:00"), account="a", amount=Decimal(7)))
    result = run(app, {payments: items}, batch_events=batch_events)
    rows = [(row.start.hour, row.total, row.n) for row in result.rows(rollup)]
    assert rows == [(10, total, len(amounts)), (11, 7, 1)]
    assert (result.failed(rollup), result.emitted("sums.missed")) == ([], [])


def test_a_summary_of_nothing_but_nulls_is_null() -> None:
    median = windows.summary("amount", Kll, lambda seen: seen.quantile(0.5).value, float)
    app, sales, rollup = shop(["minute"], {}, aggregate={"median": median})
    given = [("10:00:00", None), ("10:01:00", 3.0), ("10:01:30", None)]
    items = [Sale(at=moment(at), shop="a", amount=amount) for at, amount in given]
    result = run(app, {sales: items})
    assert [row.median for row in result.rows(rollup)] == [None, 3.0]
    assert result.failed(rollup) == []


@pytest.mark.parametrize("batch_events", [1, 1_000])
def test_a_row_that_cannot_be_computed_is_missed_and_the_other_rows_are_told(batch_events: int) -> None:
    def answer(seen: Kll) -> Any:
        if seen.n == 2:
            raise ValueError("two")
        return "three" if seen.n == 3 else seen.n

    aggregate = {"n": windows.summary("amount", Kll, answer, int)}
    app, sales, rollup = shop(["minute", "hour"], {}, aggregate=aggregate)
    given = [("10:00:00", 1.0), ("10:00:01", 1.0), ("11:00:00", 1.0), ("10:01:00", 1.0)]
    items = [Sale(at=moment(at), shop="a", amount=amount) for at, amount in given]
    result = run(app, {sales: items}, batch_events=batch_events)
    assert result.failed(rollup) == []
    rows = [(row.per, row.start, row.n) for row in result.rows(rollup)]
    assert [row for row in rows if row[1] != moment("10:00:00")] == [
        ("hour", moment("11:00:00"), 1),
        ("minute", moment("10:01:00"), 1),
        ("minute", moment("11:00:00"), 1),
    ]
    missed = {(miss.per, miss.error.split(":")[0]) for miss in result.emitted("sales.missed")}
    assert missed >= {("minute", "ValueError"), ("hour", "ValidationError")}
    assert {(miss.key, miss.reason, miss.at, miss.event) for miss in result.emitted("sales.missed")} == {
        ("a", "failed", moment("10:00:00"), "")
    }
