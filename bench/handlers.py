"""Events per second and core through a geofence, from typed events in the log to durable state and output, exactly
once.

There are two baselines in the same run. The first is a plain Python loop that calls the same function on the same
events, already decoded and in memory, with a dict of states; this is the upper limit for Python on one core. The second
is Spark's own `transformWithState`, which stores the same state as a row and discards its output.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from bench.fixes import PARTITIONS, PIECE, piece
from bench.fleet import Fix, Vehicle, app, geofence
from bench.report import Figure
from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.analyze.streaming_query import SparkQuery
from penstock.core.contracts import StreamSpec
from penstock.core.cursor import source_positions
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.handlers.rows import to_events
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.handlers import HandlerSink, open_handler, plan, source

EVENTS = 40_000_000
WARM = 6_000_000
"""Number of events before the clock starts, enough for batches to reach their full size."""
LOOP_EVENTS = 200_000
LOOP_TURNS = 8
STATEFUL_BATCHES = 4
STATEFUL_BATCH = 200_000


def run() -> Iterator[Figure]:
    for vehicles in (10_000, 1_000_000):
        name = f"handlers: {vehicles:,} keys, a core"
        loop = measure_loop(vehicles)
        yield Figure(name, ours(vehicles), "events/s", loop, "bare Python loop, events in memory", "150,000; 35%")
    if find_spec("pandas"):
        with filled(10_000, STATEFUL_BATCH * (STATEFUL_BATCHES + 1)) as directory, session(directory) as spark:
            theirs = measure_stateful(spark, directory) / cores()
        yield Figure(
            "handlers: 10,000 keys, a core", ours(10_000), "events/s", theirs, "transformWithState", "10 times"
        )


@cache
def ours(vehicles: int) -> float:
    """Return events per second and core. This is measured only once per run, and the peers are compared with the same
    figure."""
    with filled(vehicles, EVENTS) as directory, session(directory) as spark:
        return measure_ours(spark, directory) / cores()


def cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def filled(vehicles: int, events: int) -> Iterator[DataDirectory]:
    """Create a data directory with events in its log, which exists for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        directory = DataDirectory(Path(folder))
        directory.make()
        fill(directory, vehicles, events)
        yield directory


@contextmanager
def session(directory: DataDirectory) -> Iterator[SparkSession]:
    spark = start_session("bench", Settings(), logs=directory.logs, warehouse=directory.run / "warehouse")
    try:
        yield spark
    finally:
        spark.stop()


def fill(directory: DataDirectory, vehicles: int, events: int) -> None:
    """Append `events` events to the log, the same number for each partition."""
    log = EmbeddedLog(directory.streams)
    log.declare(StreamSpec("fixes", event_schema(Fix), PARTITIONS))
    for number in range(events // PIECE // PARTITIONS):
        for partition in range(PARTITIONS):
            batch = piece(partition, number, vehicles)
            log.append("fixes", partition, batch, producer="bench", sequence=number)
    log.close()


def measure_loop(vehicles: int) -> float:
    """Run the same function on one partition's events, batch by batch, and use the median batch."""
    states: dict[str, Vehicle] = {}
    steps = []
    gc.disable()
    for turn in range(LOOP_TURNS):
        first = turn * (LOOP_EVENTS // PIECE)
        batches = [piece(0, first + number, vehicles) for number in range(LOOP_EVENTS // PIECE)]
        events = [event for batch in batches for event in to_events(Fix, batch)]
        emitted: list[Any] = []
        began = time.perf_counter()
        for event in events:
            state = states.get(event.vehicle)
            if state is None:
                state = states[event.vehicle] = Vehicle()
            emitted.extend(geofence.function(state, event, None))
        steps.append(time.perf_counter() - began)
    gc.enable()
    return LOOP_EVENTS / median(steps)


def measure_ours(spark: SparkSession, directory: DataDirectory) -> float:
    settings = Settings(partitions=PARTITIONS)
    storage = EmbeddedStorage(directory)
    handler_plan = plan(app, geofence, str(Path(__file__).parent / "fleet.py"), storage, settings)
    register_handlers(spark, {geofence.name: source(handler_plan, storage, settings, 0.01)})
    log = EmbeddedLog(directory.streams)
    for output in geofence.outputs:
        log.declare(StreamSpec(output.name, event_schema(output.event), handler_plan.shards))
    sink = HandlerSink(geofence, handler_plan, storage, open_handler(geofence, handler_plan, storage, log))
    finished: list[tuple[float, int]] = []

    def note(*_: Any) -> None:
        finished.append((time.perf_counter(), _rows(sink.opened.handled.end)))

    query = SparkQuery(geofence, Checkpoint(directory.checkpoint(geofence.name)), sink, 1, note)
    query.start(handler_frame(spark, geofence.name), trigger_ms=0, clean=True)
    assert query.query is not None
    query.query.processAllAvailable()
    query.stop()
    log.close()
    (began, before), (ended, after) = next(sample for sample in finished if sample[1] >= WARM), finished[-1]
    return (after - before) / (ended - began)


def _rows(end: str) -> int:
    return sum(sum(offsets.values()) for offsets in source_positions(end).values())


class Geofence(StatefulProcessor):
    """The same logic, written for `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = "inside boolean, fixes long, fastest double, distance double, lat double, lon double"
        self.state = handle.getValueState("vehicle", schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
        known = self.state.get()
        vehicle = Vehicle(**dict(zip(Vehicle.__struct_fields__, known, strict=True))) if known else Vehicle()
        for row in rows:
            for crossing in geofence.function(vehicle, row, None):
                yield Row(vehicle=crossing.vehicle, entered=crossing.entered, at=crossing.at, speed=crossing.speed)
        self.state.update(tuple(getattr(vehicle, name) for name in Vehicle.__struct_fields__))

    def close(self) -> None:
        pass


def measure_stateful(spark: SparkSession, directory: DataDirectory) -> float:
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    register(spark, EmbeddedLogOpener(directory.streams))
    schema = _schema("vehicle string, at timestamp, lat double, lon double, speed double")
    frame = read_stream(spark, "fixes", schema, rows_max=STATEFUL_BATCH, wait_s=0.01)
    output = _schema("vehicle string, entered boolean, at timestamp, speed double")
    stateful = frame.groupBy("vehicle").transformWithState(Geofence(), output, "Append", "None")
    checkpoint = str(directory.checkpoints / "stateful")
    query = stateful.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    finished: list[float] = []
    while len(finished) < STATEFUL_BATCHES:
        done = query._jsq.lastProgress()
        count = done.batchId() + 1 if done is not None and done.numInputRows() else 0
        finished += [time.perf_counter()] * (count - len(finished))
        assert query.isActive, query.exception()
        time.sleep(0.01)
    query.stop()
    steps = [after - before for before, after in pairwise(finished)]
    return STATEFUL_BATCH / median(steps)


def _schema(text: str) -> StructType:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema
