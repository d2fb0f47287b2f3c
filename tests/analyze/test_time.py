"""Time on real Spark: ticks close windows, late events are reported exactly when Spark drops them, ingest time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing as closing_at_end
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock import App, Event
from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.frames import Reader, build, inputs
from penstock.analyze.lateness import Closing
from penstock.analyze.pruning import prune
from penstock.analyze.row_lifetimes import Closings, closings
from penstock.analyze.sifting import sifter
from penstock.analyze.source import read_stream, register
from penstock.analyze.streaming_query import SparkQuery
from penstock.app.declared import View
from penstock.core.clock import WallClock
from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import Output, StreamSpec
from penstock.core.schema import event_schema
from penstock.core.times import to_micros
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.late import LateEvents
from penstock.store import ViewSpec, ViewTable
from tests.analyze.pipe import NOON

pytestmark = pytest.mark.spark
S, MINUTE = 1_000_000, 60_000_000


class Fix(Event, id="fix", time="at"):
    fix: str
    at: datetime
    car: str


app = App("fleet")
fixes = app.stream("fixes", Fix, late_after=timedelta(seconds=30))
calls = app.stream("calls", Fix, late_after=timedelta(seconds=30))


@app.view("minutes", reads=fixes, key=["window", "car"], emit="close")
def minutes(fixes: DataFrame) -> DataFrame:
    return fixes.where("car <> 'none'").groupBy(F.window("at", "1 minute"), "car").count()


@app.view("slides", reads=fixes, key=["window", "car"])
def slides(fixes: DataFrame) -> DataFrame:
    return fixes.groupBy(F.window("at", "60 seconds", "20 seconds"), "car").count()


@app.view("sessions", reads=fixes, key=["session_window", "car"], emit="close")
def sessions(fixes: DataFrame) -> DataFrame:
    return fixes.groupBy(F.session_window("at", "20 seconds"), "car").count()


@app.view("both", reads=[fixes, calls], key=["window", "car"], emit="close")
def both(fixes: DataFrame, calls: DataFrame) -> DataFrame:
    return fixes.union(calls).groupBy(F.window("at", "1 minute"), "car").count()


@app.view("joined", reads=[fixes, calls], key=["fix"], emit="close")
def joined(fixes: DataFrame, calls: DataFrame) -> DataFrame:
    other = calls.select(F.col("at").alias("then"), F.col("car").alias("other"))
    return fixes.join(other, F.expr("car = other AND then BETWEEN at AND at + INTERVAL 1 HOUR 10 SECONDS"), "left")


arrivals = app.sql(
    "arrivals",
    "SELECT window(ingest_time, '10 seconds') AS window, count(*) AS n FROM fixes GROUP BY 1",
    key="window",
    emit="close",
    time="ingest",
)
plain = app.sql("plain", "SELECT car, count(*) AS n FROM fixes GROUP BY car", key="car")
shifted = app.sql(
    "shifted",
    "SELECT window(t, '1 day', '1 hour', '5 minutes') AS window, count(*) AS n"
    " FROM (SELECT at AS t FROM fixes) GROUP BY 1",
    key="window",
)


def fix(at: float, car: str = "a") -> Fix:
    return Fix(fix=f"{at}/{car}", at=NOON + timedelta(seconds=at), car=car)


class Road:
    """A view from a real log to a real table and its VIEW.late, run as the engine runs it. Times are in seconds after
    noon."""

    def __init__(self, spark: SparkSession, root: Path, view: View) -> None:
        self.spark, self.root, self.view = spark, root, view
        self.directory = DataDirectory(root)
        self.log = EmbeddedLog(self.directory.streams)
        for name in ("fixes", "calls"):
            self.log.declare(StreamSpec(name, event_schema(Fix), 2))
        register(spark, EmbeddedLogOpener(self.directory.streams))
        self.sequence = 0
        self.open()

    def open(self) -> None:
        spec = ViewSpec(self.view.name, self.view.key, None, None, None, 100, 10**6)
        file = self.directory.view_file(self.view.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.table = ViewTable(file, spec, clock=WallClock())
        self.late = LateEvents(
            app, self.view, Checkpoint(self.directory.checkpoint(self.view.name)), self.log, self.log
        )
        self.query = SparkQuery(
            self.view, Checkpoint(self.directory.checkpoint(self.view.name)), self.table, 1, self.late
        )

    def append(self, *events: Fix, stream: str = "fixes", partition: int = 0, came: float = 0) -> None:
        nothing: list[str | None] = [None] * len(events)
        now = NOON + timedelta(seconds=came)
        self._append(
            stream, partition, to_batch(Fix, events, ids=[event.fix for event in events], keys=nothing, now=now)
        )

    def tick(self, at: float | None, stream: str = "fixes", came: float = 0) -> None:
        event_time = None if at is None else NOON + timedelta(seconds=at)
        for partition in (0, 1):
            now = NOON + timedelta(seconds=came)
            self._append(stream, partition, tick_batch(event_schema(Fix), now, "at", event_time))

    def _append(self, stream: str, partition: int, batch: Any) -> None:
        self.sequence += 1
        self.log.append(stream, partition, batch, producer="test", sequence=self.sequence)

    def make(self, reader: Reader) -> DataFrame:
        return build(self.spark, self.view, inputs(app, self.view, reader, {}))

    def frame(self, rows_max: int = 1000) -> DataFrame:
        def read(stream: str, schema: StructType) -> DataFrame:
            return read_stream(self.spark, stream, schema, rows_max=rows_max, wait_s=0.01, ordered=True)

        return prune(self.spark, self.make, read, frozenset({"at", "_ingest_time"}))

    def run(self, *, rows_max: int = 1000, clean: bool = True) -> None:
        """Read everything available; the first time, start the query as the engine does."""
        if self.query.query is None:
            frame = self.frame(rows_max)
            self.late.closings, self.late.sift = closings(frame), sifter(self.spark, self.make)
            self.query.start(frame, trigger_ms=0, clean=clean)
        assert self.query.query is not None
        self.query.query.processAllAvailable()

    def dropped(self) -> int:
        """Return the number of rows that Spark reports as dropped."""
        assert self.query.query is not None
        progress = self.query.query.recentProgress
        return sum(operator.numRowsDroppedByWatermark for report in progress for operator in report.stateOperators)

    def rows(self) -> list[Any]:
        with closing_at_end(sqlite3.connect(self.directory.view_file(self.view.name))) as file:
            return [msgspec.json.decode(data) for (data,) in file.execute("SELECT data FROM rows")]

    def late_events(self) -> list[dict[str, Any]]:
        """The events of VIEW.late."""
        name = f"{self.view.name}.late"
        end = self.log.ends(name)[0]
        return [row for batch in self.log.read(name, 0, 0, end) for row in batch.to_pylist()]

    def stop(self) -> None:
        self.query.stop()
        self.table.close()

    def close(self) -> None:
        self.stop()
        self.log.close()


def _die(output: Output) -> None:
    raise RuntimeError("a crash")


@pytest.fixture
def road(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    roads: list[Road] = []

    def make(view: View) -> Road:
        roads.append(Road(spark, tmp_path / view.name, view))
        return roads[-1]

    yield make
    for road in roads:
        road.close()


def counts(road: Road) -> dict[str, int]:
    """Return the rows of a view by the start of their window, as minutes and seconds."""
    return {row["window"]["start"][14:19]: row.get("count", row.get("n")) for row in road.rows()}


@pytest.mark.parametrize(
    ("view", "late", "kept"),
    [
        (minutes, Closing(MINUTE, MINUTE), Closing(MINUTE, MINUTE)),
        (slides, Closing(MINUTE, 20 * S), Closing(MINUTE, 20 * S)),
        (shifted, Closing(1440 * MINUTE, 60 * MINUTE, 5 * MINUTE), Closing(1440 * MINUTE, 60 * MINUTE, 5 * MINUTE)),
        (sessions, Closing(20 * S), Closing(20 * S)),
        (both, Closing(MINUTE, MINUTE), Closing(MINUTE, MINUTE)),
        (joined, Closing(0), Closing(3610 * S)),
        (arrivals, Closing(10 * S, 10 * S), Closing(10 * S, 10 * S)),
        (plain, None, None),
    ],
)
def test_what_a_view_keeps_for_the_watermark_is_found_in_its_plan(
    road: Any, view: View, late: Closing | None, kept: Closing | None
) -> None:
    assert closings(road(view).frame()) == Closings((late,) if late else (), (kept,) if kept else ())


def test_a_tick_closes_the_last_window_though_the_view_filters(road: Any) -> None:
    minutes_road = road(minutes)
    minutes_road.append(fix(10), fix(70), fix(80, "none"))
    minutes_road.tick(None)  # a tick without an event time moves nothing
    minutes_road.run()
    assert counts(minutes_road) == {}
    minutes_road.tick(90)
    minutes_road.run()
    assert counts(minutes_road) == {"00:00": 1}
    minutes_road.tick(150)
    minutes_road.run()
    assert counts(minutes_road) == {"00:00": 1, "01:00": 1}


def test_a_view_of_two_streams_moves_on_when_one_is_silent(road: Any) -> None:
    both_road = road(both)
    both_road.append(fix(10), fix(200))
    both_road.run()
    assert counts(both_road) == {}  # the other stream has not begun
    both_road.tick(150, stream="calls")
    both_road.run()
    assert counts(both_road) == {"00:00": 1}


BATCHES: list[list[float]] = [
    [100, 5, 62],
    [170, 66, 101],
    [139.999999, 145, 40],
    [260, 175, 205],
    [80, 250],
    [199, 21, 231],
]
SHAPES = {
    "minutes": lambda fixes: fixes.groupBy(F.window("at", "1 minute"), "car").count(),
    "slides": lambda fixes: fixes.groupBy(F.window("at", "60 seconds", "20 seconds"), "car").count(),
    "sessions": lambda fixes: fixes.groupBy(F.session_window("at", "20 seconds"), "car").count(),
    "distinct": lambda fixes: fixes.dropDuplicates(["at", "car"]),
}


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file for each batch. Each event has its own car, so that the rows that Spark drops, one for each window
    and group, are events too."""
    folder = tmp_path_factory.mktemp("batches")
    for number, times in enumerate(BATCHES):
        rows = [{"at": NOON + timedelta(seconds=at), "car": f"{number}/{at}"} for at in times]
        file = folder / f"{number}.parquet"
        kinds = pa.schema([("at", pa.timestamp("us", "UTC")), ("car", pa.string())])
        pq.write_table(pa.Table.from_pylist(rows, kinds), file)
        os.utime(file, (1_700_000_000 + number,) * 2)  # files are read in this order
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_as_many_are_late_as_spark_drops(spark: SparkSession, batches: Path, tmp_path: Path, shape: str) -> None:
    """This holds in each batch: Spark compares with the watermark of the batch before, which differs while time
    advances."""
    fixes = spark.readStream.schema("at timestamp, car string").option("maxFilesPerTrigger", 1).parquet(str(batches))
    frame = SHAPES[shape](fixes.withWatermark("at", "30 seconds"))
    (closing,) = closings(frame).late
    writer = frame.writeStream.outputMode("append").format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    query.processAllAvailable()
    reports = [report for report in query.recentProgress if report.numInputRows]
    query.stop()
    dropped = [sum(operator.numRowsDroppedByWatermark for operator in one.stateOperators) for one in reports]
    marks = [Checkpoint(tmp_path).late_watermark(report.batchId) for report in reports]
    missed = [
        sum(len(closing.missed(to_micros(NOON) + round(at * S), mark)) for at in times) if mark is not None else 0
        for times, mark in zip(BATCHES, marks, strict=True)
    ]
    assert dropped == missed
    assert sum(missed) > 2


def test_a_late_event_is_told_once_whenever_the_engine_dies(road: Any) -> None:
    minutes_road = road(minutes)
    minutes_road.append(fix(200))
    minutes_road.run()
    minutes_road.append(fix(5), fix(190), fix(7, "none"), fix(6))  # the view does not take the third, late or not
    minutes_road.query.after_commit = _die  # after the view has the batch, and before its late events are stored
    with pytest.raises(StreamingQueryException):
        minutes_road.run()
    assert minutes_road.late_events() == []
    minutes_road.stop()
    minutes_road.open()
    minutes_road.run(clean=False)
    late_events = minutes_road.late_events()
    assert [event["id"] for event in late_events] == ["5/a", "6/a"]
    last = minutes_road.table.last()
    # as if the batch were run again
    minutes_road.late(Output(last.batch_id, last.start, last.end, 1, pa.table({})))
    assert minutes_road.late_events() == late_events


def test_by_ingest_time_windows_close_by_when_events_came_and_nothing_is_late(road: Any) -> None:
    arrivals_road = road(arrivals)
    for number in range(20):  # one partition has ten times the events of the other, which are much older
        arrivals_road.append(fix(-1000 * number), partition=int(number % 10 == 0), came=number)
    arrivals_road.tick(None, came=19)
    arrivals_road.run(rows_max=4)
    assert counts(arrivals_road) == {"00:00": 10}
    arrivals_road.tick(None, came=30)
    arrivals_road.run()
    assert counts(arrivals_road) == {"00:00": 10, "00:10": 10}
    assert arrivals_road.dropped() == 0
