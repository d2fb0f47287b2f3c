"""Apps and results at a prompt and in a notebook, and unknown names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import App, Context, Event, State, windows
from penstock.core.errors import DeclarationError
from penstock.testing import Result, run


class Order(Event):
    customer: str
    note: str = ""


class Timed(Event, time="at"):
    customer: str
    at: datetime


class Big(Event):
    customer: str
    note: str


class Total(Event):
    customer: str
    orders: int


class Seen(State):
    orders: int = 0


def make_app() -> App:
    app = App("shop")
    orders = app.stream("orders", Order, key="customer")
    app.sql("by-customer", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", key="customer")

    @app.handler("big", reads=orders, key="customer", state=Seen, emits=Big)
    def big(seen: Seen, order: Order, ctx: Context) -> Iterator[Big]:
        yield Big(customer=order.customer, note=order.note)

    @app.handler("totals", reads=orders, key="customer", state=Seen, emits=Total, view=["customer"])
    def totals(seen: Seen, order: Order, ctx: Context) -> Iterator[Total]:
        seen.orders += 1
        yield Total(customer=order.customer, orders=seen.orders)

    return app


@pytest.fixture(scope="module")
def result() -> Result:
    return run(
        make_app(), {"orders": [Order(customer="ann", note="<b>"), Order(customer="ann"), Order(customer="bob")]}
    )


def test_an_app_shows_its_parts() -> None:
    assert repr(make_app()) == "App('shop'; streams orders; views by-customer, totals; handlers big)"
    assert repr(App("empty")) == "App('empty')"


def test_an_app_is_a_table_in_a_notebook() -> None:
    html = make_app()._repr_html_()
    assert "<td>by-customer</td><td>orders</td>" in html
    assert "test_shown.py:" in html


def test_a_result_shows_how_much_there_is(result: Result) -> None:
    assert repr(result) == "Result(big: 3 emitted; totals: 2 rows)"
    assert repr(run(make_app(), {"orders": [Order(customer="ann")]})) == "Result(big: 1 emitted; totals: 1 row)"


def test_a_result_is_tables_in_a_notebook_with_its_text_escaped(result: Result) -> None:
    html = result._repr_html_()
    assert "<td>ann</td><td>2</td>" in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_windows_and_empty_streams_can_be_read_in_a_notebook() -> None:
    app = App("counts")
    orders = app.stream("orders", Timed, key="customer", late_after=timedelta(0))
    options: dict[str, Any] = {"over": windows.tumbling(timedelta(minutes=1)), "aggregate": {"n": windows.count()}}
    app.window("counts", reads=orders, key="customer", keep=timedelta(hours=1), **options)
    html = run(app, {"orders": [Timed(customer="ann", at=datetime(2026, 1, 1, tzinfo=UTC))]})._repr_html_()
    assert "<td>2026-01-01 00:00:00+00:00 to 2026-01-01 00:01:00+00:00</td>" in html
    assert "<caption>counts.late</caption><tr><td>none</td></tr>" in html
    assert "<tr></tr>" not in html


def test_a_long_result_is_cut_in_a_notebook() -> None:
    html = run(make_app(), {"orders": [Order(customer=str(number)) for number in range(100)]})._repr_html_()
    assert "and 80 more" in html


def test_names_do_as_well_as_declarations(result: Result) -> None:
    assert [row.orders for row in result.rows("totals")] == [2, 1]
    assert len(result.emitted("big")) == 3
    assert set(result.states("totals")) == {"ann", "bob"}


def test_a_name_that_is_not_there_is_told_with_those_that_are(result: Result) -> None:
    for ask, message in (
        (lambda: result.rows("total"), "there is no view handler 'total'; did you mean 'totals'?"),
        (lambda: result.rows("by-customer"), "available: totals"),
        (lambda: result.emitted("bgi"), "did you mean 'big'?"),
        (lambda: result.states("x"), "there is no handler 'x'; available: big, totals"),
        (lambda: result.failed("x"), "there is no handler 'x'"),
        (lambda: result.digest("x"), "there is no handler 'x'"),
        (lambda: make_app().preview("totals", []), "belongs to a handler: use penstock.testing.run"),
    ):
        with pytest.raises(DeclarationError) as error:
            ask()
        assert message in error.value.message
