from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Price(Event, time="valid_from"):
    sku: str
    valid_from: datetime
    price: float


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    sku: str
    customer: str
    pieces: int


class Priced(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    customer: str
    total: float | None


app = App("prices")
prices = app.stream("prices", Price, key="sku", late_after=timedelta(minutes=5))
orders = app.stream("orders", Order, key="sku", late_after=timedelta(minutes=1))


@app.enrich("priced", reads=orders, table=prices, key="sku", keep=timedelta(days=7), emits=Priced)
def priced(order: Order, price: Price | None) -> Priced:
    """Emit the order with the price at the time of the order, even if the order or the price comes late."""
    total = price.price * order.pieces if price is not None else None
    return Priced(order_id=order.order_id, at=order.at, customer=order.customer, total=total)


@app.view("spent", reads=priced, key="customer")
def spent(priced: DataFrame) -> DataFrame:
    return priced.groupBy("customer").agg(F.sum("total").alias("total"), F.count("*").alias("orders"))


class Spent(Event):
    customer: str
    total: float | None


class Large(Event):
    customer: str
    order_id: str
    spent: float


@app.enrich("large-orders", reads=orders, table=spent, row=Spent, key="customer", how="inner", emits=Large)
def large_orders(order: Order, before: Spent) -> Large | None:
    """Emit a large order from a customer who has bought little so far."""
    total = before.total or 0.0
    return Large(customer=order.customer, order_id=order.order_id, spent=total) if order.pieces > 10 * total else None
