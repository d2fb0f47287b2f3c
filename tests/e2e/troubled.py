"""An app with every kind of error: a handler that fails on some events, a view that fails on some, and a source that is
not there."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, State, collect


class Order(Event):
    order: str
    customer: str
    amount: int


class Count(State):
    orders: int = 0


class Milestone(Event):
    customer: str
    orders: int


app = App("troubled")
orders = app.stream("orders", Order, key="customer")
shipped = app.stream("shipped", Order)
app.source("warehouse", collect.websocket(os.environ.get("TROUBLED_URL", "ws://127.0.0.1:9/")), into=shipped)


@app.handler("milestones", reads=orders, key="customer", state=Count, emits=Milestone)
def milestones(state: Count, order: Order, ctx: Context) -> Iterator[Milestone]:
    if order.amount < 0:
        raise ValueError(f"order {order.order} is below zero")
    state.orders += 1
    yield Milestone(customer=order.customer, orders=state.orders)


@app.view("shares", reads=orders, key="order")
def shares(rows: DataFrame) -> DataFrame:
    share = F.udf(lambda amount: 1000 // amount, "bigint", useArrow=False)
    return rows.select("order", share("amount").alias("share"))
