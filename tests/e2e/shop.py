"""An app with a bit of everything, for the end-to-end tests of the API."""

from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event, Record


class Address(Record):
    city: str
    zip: str | None = None


class Order(Event, id="order", time="at"):
    order: str
    at: datetime
    product: str
    price: float
    address: Address


app = App("shop")
orders = app.stream("orders", Order, key="product", late_after=timedelta(seconds=10))
notes = app.stream("notes")


@app.view("sales", reads=orders, key="product", top=3, by="total")
def sales(orders: DataFrame) -> DataFrame:
    return orders.groupBy("product").agg(F.count("*").alias("orders"), F.sum("price").alias("total"))


@app.view("minutes", reads=orders, key="window", emit="close")
def minutes(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("orders"))


app.sql("cities", "SELECT address.city AS city, count(*) AS n FROM orders GROUP BY address.city", key="city")
app.sql("large", "SELECT city, n FROM cities WHERE n >= 3", key="city")


@app.view("fragile", reads=notes, key="text")
def fragile(notes: DataFrame) -> DataFrame:
    """Fail on a note that is not a number: one view's error must not affect others."""
    return notes.select(notes["data"].cast("string").alias("text"), notes["data"].cast("string").cast("int").alias("n"))
