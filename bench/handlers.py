"""Events a second, a core, through a geofence: from typed events in the log to durable state and output, exactly once.

Baselines, in the same run: a bare Python loop that calls the same function on the same events, already made and in
memory, with a dict of states: the limit of what Python can do on a core; and Spark's own `transformWithState`, with the
same state as a row and its output dropped.
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
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.query import Query
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.contracts import StreamSpec
from penstock.cursor import source_positions
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.rows import to_events
from penstock.runtime.directory import DataDirectory
from penstock.runtime.handlers import HandlerSink, open_ledger, plan, source
from penstock.schema import event_schema
from penstock.settings import Settings

EVENTS = 40_000_000
WARM = 6_000_000
"""Events before the clock starts: so many that batches have grown to their full size."""
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
    """Events a second, a core. Measured once in a run: the peers are set against the same figure."""
    with filled(vehicles, EVENTS) as directory, session(directory) as spark:
        return measure_ours(spark, directory) / cores()


def cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def filled(vehicles: int, events: int) -> Iterator[DataDirectory]:
    """A data directory with events in its log, for the length of a block."""
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
    """Put so many events into the log, the same number into each partition."""
    log = EmbeddedLog(directory.streams)
    log.declare(StreamSpec("fixes", event_schema(Fix), PARTITIONS))
    for number in range(events // PIECE // PARTITIONS):
        for partition in range(PARTITIONS):
            batch = piece(partition, number, vehicles)
            log.append("fixes", partition, batch, producer="bench", sequence=number)
    log.close()


def measure_loop(vehicles: int) -> float:
    """The same function on one partition's events, a batch at a time; the typical batch counts."""
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
    made = plan(app, geofence, str(Path(__file__).parent / "fleet.py"), directory, settings)
    register_handlers(spark, {geofence.name: source(made, directory, settings, 0.01)})
    log = EmbeddedLog(directory.streams)
    for output in geofence.outputs:
        log.declare(StreamSpec(output.name, event_schema(output.event), made.shards))
    sink = HandlerSink(geofence, made, open_ledger(geofence, made, directory, log), log)
    finished: list[tuple[float, int]] = []

    def note(*_: Any) -> None:
        finished.append((time.perf_counter(), _rows(sink.ledger.state.end)))

    query = Query(geofence, directory.checkpoint(geofence.name), sink, 1, note)
    query.start(handler_frame(spark, geofence.name), trigger_ms=0, clean=True)
    assert query.query is not None
    query.query.processAllAvailable()
    query.stop()
    log.close()
    (began, before), (ended, after) = next(each for each in finished if each[1] >= WARM), finished[-1]
    return (after - before) / (ended - began)


def _rows(end: str) -> int:
    return sum(sum(each.values()) for each in source_positions(end).values())


class Geofence(StatefulProcessor):
    """The same logic for `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = "inside boolean, fixes long, fastest double, distance double, lat double, lon double"
        self.state = handle.getValueState("vehicle", schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
        known = self.state.get()
        vehicle = Vehicle(**dict(zip(Vehicle.__struct_fields__, known, strict=True))) if known else Vehicle()
        for row in rows:
            for each in geofence.function(vehicle, row, None):
                yield Row(vehicle=each.vehicle, entered=each.entered, at=each.at, speed=each.speed)
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
