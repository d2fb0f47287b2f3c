"""Traffic: how fast it goes on each stretch of road, and where it has come to a crawl.

Vehicles report where and how fast they are. A view on Spark has the average speed of each segment in each fifteen
seconds, another one the latest for a map; a handler has the mean of the last reports, and patterns in it tell when a
jam begins and when it is over. Run as a script, it plays invented traffic into itself:

    python examples/traffic.py --rate 40 --seed 1
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, State, cep

MEAN_OF = 10
"""So many reports make a mean: one vehicle that slips through a jam does not end it."""
SLOW, FLOWING = 0.4, 0.6
"""Parts of the limit. In between it is neither, so that a mean on the edge is not told again and again."""
STAYS_SLOW = timedelta(seconds=15)
JAM_MAX = timedelta(hours=2)


class Report(Event, id="report_id", time="at"):
    """On which segment a vehicle is, and how fast, in km/h; with the segment's limit and the place of its middle."""

    report_id: str
    at: datetime
    vehicle: str
    segment: str
    limit: float
    speed: float
    lat: float
    lon: float


class Flow(Event, time="at"):
    """The mean speed of the last vehicles on a segment, and what part of the limit that is."""

    segment: str
    at: datetime
    speed: float
    part: float
    lat: float
    lon: float


class Congestion(Event, time="at"):
    """A segment that has become slow and stayed so."""

    segment: str
    at: datetime
    speed: float
    lat: float
    lon: float


class Jam(Event, time="at"):
    """A jam that is over: when it began, and how long it was."""

    segment: str
    at: datetime
    began: datetime
    seconds: float


class Segment(State):
    """The last speeds on a segment; `stale` counts reports that were older than another one."""

    at: datetime | None = None
    speeds: list[float] = []  # noqa: RUF012  # msgspec gives each instance its own
    stale: int = 0


app = App("traffic")
reports = app.stream("reports", Report, key="segment", late_after=timedelta(seconds=5), keep=timedelta(days=1))


@app.view("speeds", reads=reports, key=["window", "segment"], emit="close", keep=timedelta(minutes=10))
def speeds(reports: DataFrame) -> DataFrame:
    """The average speed of each segment in each fifteen seconds, once it is complete."""
    part = F.avg(F.col("speed") / F.col("limit"))
    return reports.groupBy(F.window("at", "15 seconds"), "segment").agg(
        F.round(F.avg("speed"), 1).alias("speed"),
        F.when(part < SLOW, "slow").when(part < FLOWING, "dense").otherwise("flowing").alias("state"),
        F.count("*").alias("reports"),
        F.max("lat").alias("latitude"),
        F.max("lon").alias("longitude"),
    )


roads = app.sql(
    "roads",
    """
    SELECT segment, last.state AS state, last.speed AS speed, last.latitude AS lat, last.longitude AS lon,
           last.until AS until
    FROM (
        SELECT segment, max(struct(window.end AS until, state, speed, latitude, longitude)) AS last
        FROM speeds GROUP BY segment
    )
    """,
    key="segment",
)


@app.handler("flow", reads=reports, key="segment", state=Segment, emits=Flow)
def flow(segment: Segment, report: Report, ctx: Context) -> Iterator[Flow]:
    """The mean of the last reports, with each of them. One that is older than the last is for the view only."""
    if segment.at is not None and report.at < segment.at:
        segment.stale += 1
        return
    segment.at = report.at
    segment.speeds = [*segment.speeds, report.speed][-MEAN_OF:]
    if len(segment.speeds) == MEAN_OF:
        mean = sum(segment.speeds) / MEAN_OF
        yield Flow(
            segment=report.segment, at=report.at, speed=mean, part=mean / report.limit, lat=report.lat, lon=report.lon
        )


def _flows(flow: Flow, m: cep.Match) -> bool:
    return flow.part >= FLOWING


before, still, again, over = (cep.on(name, Flow, _flows) for name in ("before", "still", "again", "over"))
slow = cep.on("slow", Flow, lambda flow, m: flow.part < SLOW)
jam = before.not_then(still).then(slow).then(cep.absent(again, for_=STAYS_SLOW))
"""It was flowing, for the last time; it became slow; and then it did not flow again for a while."""


@app.match("congestion", reads=flow, key="segment", pattern=jam, within=JAM_MAX, emits=Congestion)
def congestion(m: cep.Match) -> Congestion:
    """Told once for each jam: another one can begin only when it was flowing again."""
    slow = m["slow"]
    return Congestion(segment=m.key, at=slow.at, speed=slow.speed, lat=slow.lat, lon=slow.lon)


@app.match("jams", reads=flow, key="segment", pattern=jam.then(over), within=JAM_MAX, emits=Jam)
def jams(m: cep.Match) -> Jam:
    began, ended = m["slow"].at, m["over"].at
    return Jam(segment=m.key, at=ended, began=began, seconds=(ended - began).total_seconds())


alerts = app.sql(
    "alerts",
    "SELECT at, segment, round(speed, 1) AS speed, lat, lon FROM congestion",
    key=["at", "segment"],
    keep=timedelta(minutes=5),
)

longest = app.sql(
    "longest",
    """
    SELECT segment, count(*) AS jams, round(sum(seconds) / 60, 1) AS minutes, max(at) AS last
    FROM jams GROUP BY segment
    """,
    key="segment",
    top=10,
    by="minutes",
)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.playing.demo import main

    sys.exit(main(__file__))
