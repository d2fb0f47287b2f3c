from datetime import UTC, datetime, timedelta
from typing import Any

from compared import Hour, Sale, app, by_hour, records, sales

from penstock import gone
from penstock.testing import run, tick

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hour(before: int, largest: float, shop: str = "north") -> Hour:
    return Hour(per="hour", start=NOON - before * HOUR, shop=shop, largest=largest)


def sale(amount: float, minutes: int = 30) -> Sale:
    at = NOON + timedelta(minutes=minutes)
    return Sale(sale_id=f"{amount} {minutes}", at=at, shop="north", amount=amount)


def test_a_sale_is_compared_with_the_hours_of_the_last_day() -> None:
    """Earlier hours, other shops, and rows that the rollup has deleted do not count."""
    removed = gone(Hour, per="hour", start=NOON - 2 * HOUR, shop="north")
    given = {
        by_hour: [hour(24, 900.0), hour(23, 10.0), hour(2, 40.0), hour(1, 500.0, "south"), tick(HOUR), removed],
        sales: [tick(HOUR / 2), sale(50.0), sale(90.0), tick(HOUR), sale(70.0)],
    }
    amounts = [(record.amount, record.before) for record in run(app, given).emitted(records)]
    assert amounts == [(90.0, 40.0), (70.0, 10.0)]


def test_of_a_day_without_sales_there_are_no_records() -> None:
    given: dict[Any, list[Any]] = {by_hour: [hour(24, 900.0)], sales: [tick(HOUR), sale(50.0)]}
    assert run(app, given).emitted(records) == []


def test_the_rows_of_the_rollup_itself_come_after_the_sales_that_they_count() -> None:
    """Without a list for the rollup, its rows are computed."""
    given: dict[Any, list[Any]] = {sales: [sale(100.0), sale(150.0), sale(300.0)]}
    amounts = [(record.amount, record.before) for record in run(app, given).emitted(records)]
    assert amounts == [(300.0, 150.0)]
