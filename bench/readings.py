"""The app that is measured: sensor readings, averaged by sensor."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Reading(Event, id="reading", time="at"):
    reading: str
    sensor: str
    at: datetime
    value: float
    number: int


app = App("readings")
readings = app.stream("readings", Reading, key="sensor")


@app.view("sensors", reads=readings, key="sensor")
def sensors(readings: DataFrame) -> DataFrame:
    return aggregate(readings)


def aggregate(readings: DataFrame) -> DataFrame:
    """The aggregation, shared with the baseline."""
    return readings.groupBy("sensor").agg(
        F.count("*").alias("n"), F.avg("value").alias("mean"), F.max("number").alias("last")
    )
