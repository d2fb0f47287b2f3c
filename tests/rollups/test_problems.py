"""Invalid declarations are refused, with a sentence that says what to write."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from penstock import App, Event, State, windows
from penstock.app.check import check
from penstock.core.shapes import shape_of
from penstock.handlers.evolution import misfit
from penstock.handlers.samples import BEGIN
from penstock.rollups.problems import KEEP, keep_max
from penstock.testing import run

COUNT = {"orders": windows.count()}


class Sale(Event, time="at"):
    at: datetime
    shop: str
    product: str
    amount: float


class Refund(Event):
    shop: str
    amount: int


class Tops(State):
    """A user's own object that values are added to."""

    most: float = 0.0

    def add(self, value: float) -> None:
        self.most = max(self.most, value)

    def merge(self, other: Tops) -> None:
        self.add(other.most)

    def copy(self) -> Tops:
        return Tops(most=self.most)


def declared(**options: Any) -> App:
    app = App("shop")
    sold = app.stream("sold", Sale)
    app.stream("refunds", Refund)
    usual: dict[str, Any] = {"reads": sold, "key": "shop", "by": ["day"], "aggregate": COUNT}
    app.rollup("sales", **(usual | options))
    return app


def test_a_sound_one_has_no_problems() -> None:
    keep = {unit: keep_max(unit) for unit in KEEP}
    assert check(declared(by=list(KEEP), keep=keep, zone="Asia/Kolkata")) == []
    assert check(declared(by=list(KEEP))) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": []}, "by is empty: use one or more of second, minute, hour, day, month, year"),
        ({"by": ["week"]}, "by contains 'week'; use one or more of second, minute, hour, day, month, year"),
        ({"by": [["day"]]}, "by contains ['day']; use one or more of second, minute, hour, day, month, year"),
        ({"by": None}, "by contains None; use one or more of second, minute, hour, day, month, year"),
        ({"by": ["day", "day"]}, "by contains a unit twice"),
        ({"keep": {"hour": timedelta(1)}}, "keep contains 'hour', which is not in by"),
        ({"keep": {"day": timedelta(0)}}, "keep['day'] must be a timedelta above zero"),
        ({"keep": {"day": 30}}, "keep['day'] must be a timedelta above zero"),
        (
            {"keep": timedelta(days=30)},
            "keep is datetime.timedelta(days=30); use a timedelta for each unit, "
            'as in keep={"minute": timedelta(days=1)}',
        ),
        (
            {"by": ["second"], "keep": {"second": timedelta(days=7)}},
            "keep['second'] is 7 days, 0:00:00, but the limit is 1 day, 1:00:00; to keep more, use a coarser unit",
        ),
        (
            {"zone": "Mars/North"},
            "unknown time zone 'Mars/North'; use a name such as 'Europe/Berlin' or 'UTC'",
        ),
        (
            {"aggregate": {}},
            'aggregate is empty: add a column name and its aggregate, as in aggregate={"orders": windows.count()}',
        ),
        (
            {"aggregate": "orders"},
            "aggregate is 'orders'; give each aggregate a column name, as in aggregate={\"orders\": windows.count()}",
        ),
        (
            {"aggregate": {"start": windows.count()}},
            "an aggregate has the name 'start', which is already used by another column; rename it",
        ),
        (
            {"aggregate": {"shop": windows.count()}},
            "an aggregate has the name 'shop', which is already used by another column; rename it",
        ),
        (
            {"aggregate": {"no name": windows.count()}},
            "an aggregate has the name 'no name'; use a valid name for an event field",
        ),
        (
            {"aggregate": {"n": "count"}},
            "n is 'count', which is not an aggregate; write windows.sum('amount'), for example",
        ),
        (
            {"aggregate": {"n": windows.sum("price")}},
            "n reads 'price', which is not a field of Sale; its fields are at, shop, product, amount",
        ),
        (
            {"aggregate": {"n": windows.sum("product")}},
            "n needs numbers, but Sale.product is not a number; count('product') takes any type",
        ),
        ({"key": "till"}, "the key 'till' is not a field of Sale; its fields are at, shop, product, amount"),
        (
            {"reads": ["sold", "refunds"]},
            "Refund has no event time, but the other inputs have one: write class Refund(Event, time=...)",
        ),
        (
            {"reads": "nothing"},
            "it reads 'nothing', which is not a stream of this app; available: "
            "refunds, sales.failed, sales.missed, sold",
        ),
    ],
)
def test_what_is_wrong_is_told(options: dict[str, Any], message: str) -> None:
    messages = [problem.message for problem in check(declared(**options))]
    assert f"handler sales: {message}" in messages


def test_columns_of_several_streams_must_be_alike() -> None:
    app = declared(reads=["sold", "refunds"], aggregate={"n": windows.sum("amount")})
    messages = [problem.message for problem in check(app)]
    assert "handler sales: n reads 'amount', which is float in Sale and int in Refund; give it one type" in messages


class Return(Event, time="at"):
    at: datetime
    shop: int
    amount: int | None


def test_the_key_of_several_streams_must_be_of_one_type() -> None:
    app = App("shop")
    streams = [app.stream("sold", Sale), app.stream("returned", Return)]
    app.rollup("sales", reads=streams, key="shop", by="day", aggregate=COUNT)
    [problem] = check(app)
    kinds = "the key 'shop' is str in Sale and int in Return"
    message = f"{kinds}; give it one type, or declare a separate rollup for each class"
    assert problem.message == f"handler sales: {message}"


def test_a_column_that_may_be_null_in_one_stream_only_is_of_one_type() -> None:
    class Paid(Event, time="at"):
        at: datetime
        shop: int
        amount: int

    app = App("shop")
    streams = [app.stream("paid", Paid), app.stream("returned", Return)]
    rollup = app.rollup("sums", reads=streams, key="shop", by="day", aggregate={"sum": windows.sum("amount")})
    assert check(app) == []
    returned = [Return(at=BEGIN, shop=1, amount=amount) for amount in (2, None)]
    [row] = run(app, {"paid": [Paid(at=BEGIN, shop=1, amount=3)], "returned": returned}).rows(rollup)
    assert (row.shop, row.sum) == (1, 5)


def test_the_key_must_not_be_called_as_a_column_of_every_rollup() -> None:
    class Ride(Event):
        start: str

    app = App("rides")
    app.rollup("rides", reads=app.stream("ridden", Ride), key="start", by=["day"], aggregate=COUNT)
    (problem,) = [problem.message for problem in check(app) if "the key has the name" in problem.message]
    assert problem.startswith("handler rides: the key has the name 'start', but every rollup already has a column with")


def state_of(**options: Any) -> Any:
    (rollup,) = declared(**options).view_handlers
    return rollup.state


def test_what_a_changed_rollup_has_is_not_taken_for_something_else() -> None:
    """The retention may change, and aggregates with functions are the same at every start."""
    first = shape_of(state_of())
    for changed in (
        {"by": ["day", "hour"]},
        {"zone": "Europe/Berlin"},
        {"aggregate": {"orders": windows.sum("amount")}},
    ):
        reason = misfit(first, state_of(**changed))
        assert reason is not None
        assert reason.startswith("its state belongs to a different declaration")
    assert misfit(first, state_of(keep={"day": timedelta(3)})) is None

    def summing() -> Any:
        return {"tops": windows.summary("amount", Tops, lambda tops: tops.most, float)}

    assert shape_of(state_of(aggregate=summing())) == shape_of(state_of(aggregate=summing()))


class Move(Event):
    account: int
    cents: int
    exact: Decimal
    amount: float


@pytest.mark.parametrize(("column", "mark"), [("cents", "c3f049bb"), ("exact", "c99ef06c"), ("amount", "5934a1bb")])
def test_state_with_sums_that_were_not_exact_is_refused(column: str, mark: str) -> None:
    """Such sums have another type, or may be rounded. Sums of floats continue."""
    app = App("bank")
    aggregate = {"total": windows.sum(column)}
    rollup = app.rollup("sums", reads=app.stream("moves", Move), key="account", by=["year"], aggregate=aggregate)
    shape = shape_of(rollup.state)
    stored = msgspec.structs.replace(shape, fields=shape.fields | {"declared": f"'{mark}'"})
    reason = misfit(stored, rollup.state)
    assert (reason is None) == (column == "amount")
    assert reason is None or reason.startswith("its state belongs to a different declaration")


@pytest.mark.parametrize("key", [[], None, 5])
def test_a_key_that_is_no_name_is_told_once(key: Any) -> None:
    app = App("shop")
    app.rollup("sales", reads=app.stream("sold", Sale), key=key, by="day", aggregate=COUNT)
    fields = "at, shop, product, amount"
    message = f"handler sales: the key is {key!r}; use the name of one or more fields of Sale: {fields}"
    assert [problem.message for problem in check(app)] == [message]


def _unwilling() -> Tops:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (_unwilling, "n cannot create its object: the function raises ValueError: no"),
        (list, "n keeps a list, which has no method add; it must have add, merge and copy, like a sketch"),
    ],
)
def test_an_object_that_cannot_be_kept_is_told(factory: Any, message: str) -> None:
    app = declared(aggregate={"n": windows.summary("amount", factory, len, int)})
    assert f"handler sales: {message}" in [problem.message for problem in check(app)]
