from datetime import UTC, datetime, timedelta

from sales import Sale, app, by_time, sales

from penstock.testing import run, tick

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)


def sale(number: int, minute: int, amount: float) -> Sale:
    return Sale(sale_id=f"{number}", at=NEW_YEAR + timedelta(minutes=minute), shop="north", amount=amount)


def test_an_hour_has_what_came_in_time_and_what_came_late() -> None:
    given = [sale(1, 5, 2.0), sale(2, 70, 3.0), sale(3, 50, 4.0), tick(timedelta(hours=3))]
    rows = run(app, {sales: given}).rows(by_time)
    hours = [(row.start.hour, row.orders, row.total) for row in rows if row.per == "hour"]
    assert hours == [(0, 2, 6.0), (1, 1, 3.0)]
    assert [row.orders for row in rows if row.per == "year"] == [3]
    assert not [row for row in rows if row.per == "second"]
