"""Events a second, a core, through windows by time: the average, the count and the maximum of each key's readings.

Sliding windows of 30 minutes each 5 seconds are 360 that overlap. They stand beside two sorts of tumbling ones, over
the same events, all told when they close: those of 5 seconds, which tell as many rows, and those of 30 minutes, which
tell one row where the others tell 360. It is the machine that is measured, as it runs in a worker: typed events in
memory, their keys' state decoded at the start of a batch and sealed at its end. Time is that of the processor, so that
what runs beside it does not count.

Spark's own sliding windows over such readings stand beside them: a whole query, by the clock, on every core.
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
from penstock.declared import Keeper
from penstock.machine import Machine
from penstock.rows import Inputs, Place, to_micros
from penstock.runtime.directory import DataDirectory
from penstock.shard import Shard

KEYS = 200
EVENTS = 100_000
WARM_SLIDES, TURNS = 400, 9
"""The clock starts when the windows are full: for so many slides there is one reading of each key."""
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


def made(random: Random, first: datetime, count: int, step: timedelta) -> list[Reading]:
    """Readings of one meter after the other, a step apart."""
    return [
        Reading(at=first + number * step, meter=f"m{number % KEYS}", watts=random.uniform(0, 500))
        for number in range(count)
    ]


def measure(keepers: list[Keeper], per_second: int) -> list[tuple[float, int]]:
    """Of each: events a second in the typical batch, and the bytes of state of a key. They take turns, batch by batch,
    so that a machine that is slower for a while is so for all of them."""
    random, at = Random(1), BEGIN
    measured = [_Measured(keeper) for keeper in keepers]
    gc.disable()
    for turn in range(TURNS + 1):
        step = SLIDE / KEYS if turn == 0 else timedelta(seconds=1) / (KEYS * per_second)
        count = WARM_SLIDES * KEYS if turn == 0 else EVENTS
        inputs, at = _rows(made(random, at, count, step)), at + count * step
        for each in measured:
            each.take(inputs)
    gc.enable()
    assert all(each.rows for each in measured)
    return [(EVENTS / median(each.seconds[1:]), each.shard.size // KEYS) for each in measured]


class _Measured:
    """Windows at work, and how long they took for each batch."""

    def __init__(self, keeper: Keeper) -> None:
        self.machine, self.shard = Machine(keeper), Shard()
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
    """Events a second, a core, in the typical batch of Spark's own sliding windows, and the bytes of state of a key."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made_here:
        directory = DataDirectory(Path(made_here))
        directory.make()
        with session(directory) as spark:
            done = _run_spark(spark, directory.root, per_second)
    steps = [each["durationMs"]["triggerExecution"] / 1000 for each in done[1:]]
    state = done[-1]["stateOperators"][0]["memoryUsedBytes"]
    return SPARK_EVENTS / median(steps) / len(os.sched_getaffinity(0)), state // KEYS


def _run_spark(spark: SparkSession, folder: Path, per_second: int) -> list[dict[str, Any]]:
    """A file of readings is a batch: the first fills the windows, the others count. Returns what Spark tells."""
    random, at, files = Random(1), BEGIN, folder / "readings"
    files.mkdir()
    for turn in range(SPARK_TURNS + 1):
        step = SLIDE / KEYS if turn == 0 else timedelta(seconds=1) / (KEYS * per_second)
        count = WARM_SLIDES * KEYS if turn == 0 else SPARK_EVENTS
        file = files / f"{turn}.parquet"
        events, at = made(random, at, count, step), at + count * step
        rows = [to_builtins(each, builtin_types=(datetime,)) for each in events]
        parquet.write_table(pa.Table.from_pylist(rows), file)
        os.utime(file, (turn + 1, turn + 1))  # Spark reads the oldest first
    read = spark.readStream.schema("at timestamp, meter string, watts double").option("maxFilesPerTrigger", 1)
    frame = read.parquet(str(files)).withWatermark("at", "0 seconds")
    window = F.window("at", f"{HALF_HOUR.seconds} seconds", f"{SLIDE.seconds} seconds")
    averages = frame.groupBy(window, "meter").agg(F.count("*"), F.avg("watts"), F.max("watts"))
    writer = averages.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    told = [json.loads(each.json()) for each in query._jsq.recentProgress()]
    done = [each for each in told if each["numInputRows"]]
    assert len(done) == SPARK_TURNS + 1
    return done


def _rows(events: list[Reading]) -> Inputs:
    return Inputs.of(
        [event.meter for event in events],
        events,
        [to_micros(event.at) for event in events],
        lambda row: None,
        lambda row: Place("readings", 0, 0, row),
    )
