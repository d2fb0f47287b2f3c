from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    product: str
    pieces: int


app = App("shop")
orders = app.stream("orders", Order, key="product", late_after=timedelta(seconds=30))


@app.view("sales", reads=orders, key="product")
def sales(orders: DataFrame) -> DataFrame:
    return orders.groupBy("product").agg(F.count("*").alias("orders"), F.sum("pieces").alias("pieces"))
