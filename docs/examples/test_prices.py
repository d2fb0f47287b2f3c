from datetime import UTC, datetime, timedelta

from prices import Large, Order, Price, Priced, Spent, app, large_orders, orders, priced, prices, spent

from penstock.testing import CRASH, run, tick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def price(minute: int, amount: float) -> Price:
    return Price(sku="tea", valid_from=NOON + minute * MINUTE, price=amount)


def order(minute: int, pieces: int = 2) -> Order:
    return Order(order_id=f"at {minute}", at=NOON + minute * MINUTE, sku="tea", customer="ada", pieces=pieces)


def total(minute: int, amount: float | None) -> Priced:
    return Priced(order_id=f"at {minute}", at=NOON + minute * MINUTE, customer="ada", total=amount)


def test_an_order_has_the_price_of_its_time_though_that_comes_later() -> None:
    given = {
        prices: [price(0, 4.0), CRASH, tick(MINUTE), price(5, 5.0)],
        orders: [order(4), order(5), order(-1), tick(7 * MINUTE), tick(MINUTE)],
    }
    result = run(app, given)
    assert sorted(result.emitted(priced), key=lambda row: row.at) == [total(-1, None), total(4, 8.0), total(5, 10.0)]
    assert result.emitted("priced.missed") == []


def test_an_order_sees_the_view_as_it_stands() -> None:
    given = {
        spent: [Spent(customer="ada", total=3.0), tick(MINUTE), Spent(customer="ada", total=300.0)],
        orders: [tick(MINUTE / 2), order(1, pieces=100), tick(MINUTE), order(2, pieces=100)],
    }
    assert run(app, given).emitted(large_orders) == [Large(customer="ada", order_id="at 1", spent=3.0)]
