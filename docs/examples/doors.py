from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Passage(Event, id="passage_id", time="at"):
    passage_id: str
    at: datetime
    door: str


app = App("doors")
passages = app.stream("passages", Passage, key="door", late_after=timedelta(minutes=2))


@app.view("busy-doors", reads=passages, key=["window", "door"], emit="close", keep=timedelta(days=1))
def busy_doors(passages: DataFrame) -> DataFrame:
    """People through each door in each ten minutes, by event time; emitted once, when the ten minutes are over."""
    return passages.groupBy(F.window("at", "10 minutes"), "door").count()


app.sql(
    "reports",
    "SELECT window(ingest_time, '1 minute') AS window, count(*) AS passages FROM passages GROUP BY 1",
    key="window",
    keep=timedelta(hours=1),
    time="ingest",
)
