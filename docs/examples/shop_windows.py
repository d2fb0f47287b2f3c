from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    product: str
    pieces: int


app = App("shop-windows")
orders = app.stream("orders", Order, key="product", late_after=timedelta(seconds=30), keep=timedelta(days=30))


@app.view("best-sellers", reads=orders, key=["window", "product"], top=3, by="pieces", keep=timedelta(hours=1))
def best_sellers(orders: DataFrame) -> DataFrame:
    """The three best-selling products of each minute; every change is shown at once."""
    return orders.groupBy(F.window("at", "1 minute"), "product").agg(F.sum("pieces").alias("pieces"))


@app.view("minutes", reads=orders, key="window", emit="close", keep=timedelta(days=1))
def minutes(orders: DataFrame) -> DataFrame:
    """The totals of each minute, once, when the minute is complete."""
    return orders.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("orders"), F.sum("pieces").alias("pieces"))


app.sql("busy-minutes", "SELECT window, orders FROM minutes WHERE orders >= 10", key="window")
