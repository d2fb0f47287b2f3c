"""Events per second and core through time windows with the average, the count and the maximum of each key's readings.

With sliding windows of 30 minutes every 5 seconds, 360 windows overlap. They are compared with two kinds of tumbling
windows over the same events, all emitted when they close: windows of 5 seconds, which emit as many rows, and windows of
30 minutes, which emit one row where the others emit 360. The benchmark measures the window handler as it runs in a
worker: typed events are in memory, and the state of their keys is decoded at the start of each batch and encoded at its
end. The time is processor time, so other load does not matter.

Spark's own sliding windows over the same kind of readings are measured too, as a whole query, by wall-clock time on all
cores.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pyarrow as pa
from msgspec import to_builtins
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.handlers import session
from bench.report import Figure
from penstock import App, Event, windows
from penstock.app.declared import ViewHandler
from penstock.core.times import to_micros
from penstock.handlers.machine import Machine
from penstock.handlers.rows import Inputs, LogPosition
from penstock.handlers.shard import Shard
from penstock.runtime.embedded.directory import DataDirectory

KEYS = 200
EVENTS = 100_000
WARM_SLIDES, TURNS = 400, 9
"""The number of slides, with one reading per key in each, until the windows are full and the clock starts."""
SPARK_EVENTS, SPARK_TURNS = 20_000, 3
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HALF_HOUR, SLIDE = timedelta(minutes=30), timedelta(seconds=5)


class Reading(Event, time="at"):
    at: datetime
    meter: str
    watts: float


app = App("meters")
readings = app.stream("readings", Reading, key="meter")
KEPT: dict[str, Any] = {
    "reads": readings,
    "key": "meter",
    "aggregate": {"readings": windows.count(), "watts": windows.mean("watts"), "most": windows.max("watts")},
    "trigger": windows.on_close,
    "keep": timedelta(hours=1),
}
short = app.window("short", over=windows.tumbling(SLIDE), **KEPT)
long = app.window("long", over=windows.tumbling(HALF_HOUR), **KEPT)
sliding = app.window("sliding", over=windows.sliding(HALF_HOUR, every=SLIDE), **KEPT)


def run() -> Iterator[Figure]:
    for per_second in (10, 1):
        (overlapping, large), (often, _), (seldom, small) = measure([sliding, short, long], per_second)
        name = f"windows: sliding, 30 min each 5 s, {per_second} a second of each of {KEYS} keys, a core"
        yield Figure(name, overlapping, "events/s", often, "tumbling, 5 s", "half of it")
        yield Figure("windows: the same", overlapping, "events/s", seldom, "tumbling, 30 min", "half of it")
        spark, theirs = measure_spark(per_second)
        yield Figure("windows: the same", overlapping, "events/s", spark, "Spark's own sliding window")
    yield Figure("windows: state of a key, sliding", large, "bytes", small, "tumbling, 30 min")
    yield Figure("windows: the same", large, "bytes", theirs, "Spark's own sliding window")


def random_events(random: Random, first: datetime, count: int, step: timedelta) -> list[Reading]:
    """Generate readings, one step apart, from one meter after another."""
    return [
        Reading(at=first + number * step, meter=f"m{number % KEYS}", watts=random.uniform(0, 500))
        for number in range(count)
    ]


def measure(view_handlers: list[ViewHandler], per_second: int) -> list[tuple[float, int]]:
    """Return, for each window, the events per second in the median batch and the size of a key's state in bytes. The
    windows take turns batch by batch, so that a temporary slowdown of the machine affects all of them."""
    random, at = Random(1), BEGIN
    measured = [_Measured(view_handler) for view_handler in view_handlers]
    gc.disable()
    for turn in range(TURNS + 1):
        step = SLIDE / KEYS if turn == 0 else timedelta(seconds=1) / (KEYS * per_second)
        count = WARM_SLIDES * KEYS if turn == 0 else EVENTS
        inputs, at = _rows(random_events(random, at, count, step)), at + count * step
        for runner in measured:
            runner.take(inputs)
    gc.enable()
    assert all(runner.rows for runner in measured)
    return [(EVENTS / median(runner.seconds[1:]), runner.shard.size // KEYS) for runner in measured]


class _Measured:
    """A window handler, and the time that it took for each batch."""

    def __init__(self, view_handler: ViewHandler) -> None:
        self.machine, self.shard = Machine(view_handler), Shard()
        self.seconds: list[float] = []
        self.rows = 0

    def take(self, inputs: Inputs) -> None:
        began = time.process_time()
        effects = self.machine.run(self.shard, inputs)
        self.shard.apply(effects.changes)
        self.seconds.append(time.process_time() - began)
        self.rows += len(effects.emitted)
        assert not effects.failures


def measure_spark(per_second: int) -> tuple[float, int]:
    """Return the events per second and core in the median batch for Spark's own sliding windows, and the size of a
    key's state in bytes."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made_here:
        directory = DataDirectory(Path(made_here))
        directory.make()
        with session(directory) as spark:
            done = _run_spark(spark, directory.root, per_second)
    steps = [report["durationMs"]["triggerExecution"] / 1000 for report in done[1:]]
    state = done[-1]["stateOperators"][0]["memoryUsedBytes"]
    return SPARK_EVENTS / median(steps) / len(os.sched_getaffinity(0)), state // KEYS


def _run_spark(spark: SparkSession, folder: Path, per_second: int) -> list[dict[str, Any]]:
    """Run a query with one file of readings per batch. The first batch fills the windows, and the others are measured.
    Return Spark's progress reports."""
    random, at, files = Random(1), BEGIN, folder / "readings"
    files.mkdir()
    for turn in range(SPARK_TURNS + 1):
        step = SLIDE / KEYS if turn == 0 else timedelta(seconds=1) / (KEYS * per_second)
        count = WARM_SLIDES * KEYS if turn == 0 else SPARK_EVENTS
        file = files / f"{turn}.parquet"
        events, at = random_events(random, at, count, step), at + count * step
        rows = [to_builtins(event, builtin_types=(datetime,)) for event in events]
        parquet.write_table(pa.Table.from_pylist(rows), file)
        os.utime(file, (turn + 1, turn + 1))  # Spark reads the oldest first
    read = spark.readStream.schema("at timestamp, meter string, watts double").option("maxFilesPerTrigger", 1)
    frame = read.parquet(str(files)).withWatermark("at", "0 seconds")
    window = F.window("at", f"{HALF_HOUR.seconds} seconds", f"{SLIDE.seconds} seconds")
    averages = frame.groupBy(window, "meter").agg(F.count("*"), F.avg("watts"), F.max("watts"))
    writer = averages.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    reports = [json.loads(progress.json()) for progress in query._jsq.recentProgress()]
    done = [report for report in reports if report["numInputRows"]]
    assert len(done) == SPARK_TURNS + 1
    return done


def _rows(events: list[Reading]) -> Inputs:
    return Inputs.of(
        [event.meter for event in events],
        events,
        [to_micros(event.at) for event in events],
        lambda row: None,
        lambda row: LogPosition("readings", 0, 0, row),
    )
