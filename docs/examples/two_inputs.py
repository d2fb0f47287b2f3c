from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    product: str


class Payment(Event, id="payment_id", time="paid_at"):
    payment_id: str
    paid_at: datetime
    order_id: str


app = App("paid-orders")
orders = app.stream("orders", Order, key="order_id", late_after=timedelta(minutes=1))
payments = app.stream("payments", Payment, key="order_id", late_after=timedelta(minutes=1))


@app.view("paid", reads=[orders, payments], key="order_id", emit="close", keep=timedelta(days=1))
def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders that were paid within ten minutes, and how long that took."""
    payment = payments.withColumnRenamed("order_id", "paid_order")
    soon = F.expr("paid_order = order_id AND paid_at BETWEEN at AND at + INTERVAL 10 MINUTES")
    seconds = F.col("paid_at").cast("double") - F.col("at").cast("double")
    return orders.join(payment, soon).select("order_id", "product", seconds.alias("seconds"))
