"""Traffic: the speed on each road segment, and traffic jams.

Vehicles report their position and speed. One Spark view has the average speed on each segment for every fifteen
seconds, and another has the latest averages for a map. A handler emits the mean of the last few reports, and patterns
that read its output report when a jam begins and ends. When run as a script, this file generates its own traffic:

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
"""The number of reports in a mean. Because there are several, a single fast vehicle does not end a jam."""
SLOW, FLOWING = 0.4, 0.6
"""Traffic is slow below the first fraction of the speed limit, and flows from the second one on. Speeds in between
count as neither slow nor flowing, so that a mean near a threshold does not cause repeated alerts."""
STAYS_SLOW = timedelta(seconds=15)
JAM_MAX = timedelta(hours=2)


class Report(Event, id="report_id", time="at"):
    """A vehicle's segment and its speed in km/h, with the segment's speed limit and the position of its midpoint."""

    report_id: str
    at: datetime
    vehicle: str
    segment: str
    limit: float
    speed: float
    lat: float
    lon: float


class Flow(Event, time="at"):
    """The mean speed of the last few vehicles on a segment, also as a share of the speed limit."""

    segment: str
    at: datetime
    speed: float
    part: float
    lat: float
    lon: float


class Congestion(Event, time="at"):
    """A segment that became slow and stayed slow."""

    segment: str
    at: datetime
    speed: float
    lat: float
    lon: float


class Jam(Event, time="at"):
    """A jam that is over, with its start and duration."""

    segment: str
    at: datetime
    began: datetime
    seconds: float


class Segment(State):
    """The last few speeds on a segment. `stale` is the number of reports that were older than an earlier report."""

    at: datetime | None = None
    speeds: list[float] = []  # noqa: RUF012  # msgspec gives each instance its own
    stale: int = 0


app = App("traffic")
reports = app.stream("reports", Report, key="segment", late_after=timedelta(seconds=5), keep=timedelta(days=1))


@app.view("speeds", reads=reports, key=["window", "segment"], emit="close", keep=timedelta(minutes=10))
def speeds(reports: DataFrame) -> DataFrame:
    """The average speed on each segment in each fifteen-second period, emitted when the period is complete."""
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
    """With each report, emit the mean of the last few reports. A report that is older than the previous one is used
    only by the view."""
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
"""Traffic flows for the last time, becomes slow, and then does not flow again for a while."""


@app.match("congestion", reads=flow, key="segment", pattern=jam, within=JAM_MAX, emits=Congestion)
def congestion(m: cep.Match) -> Congestion:
    """Emit one event per jam. The next jam can begin only after traffic has flowed again."""
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
