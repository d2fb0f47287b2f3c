"""The app of the end-to-end tests: each event is counted by key, so that a lost or doubled one shows."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Hit(Event, id="hit"):
    hit: str
    page: str
    number: int


app = App("counting")
hits = app.stream("hits", Hit, key="page")


@app.view("pages", reads=hits, key="page")
def pages(hits: DataFrame) -> DataFrame:
    return hits.groupBy("page").agg(F.count("*").alias("hits"), F.sum("number").alias("total"))
