"""Events per second through a grouped view, from the log to the store.

The baseline is the same aggregation in bare Spark, with the same state store and batch size, a Python source that
yields Arrow batches from memory with only the columns needed, and a sink that does nothing. The two are measured
alternately, twice each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.readings import Reading, aggregate, app, sensors
from bench.report import Figure
from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.frames import build, inputs
from penstock.analyze.pruning import prune
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.analyze.streaming_query import SparkQuery
from penstock.core.clock import WallClock
from penstock.core.columns import partition_of
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.store import ViewSpec, ViewTable

SENSORS = 10_000
PARTITIONS = 2
BATCH = 200_000
BATCHES = 12
WARM = 3
PIECE = 10_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TURNS = 2


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        root = Path(folder)
        spark = start_session("bench", Settings(), logs=root / "log", warehouse=root / "warehouse")
        try:
            fill(root / "streams")
            ours, bare = [], []
            for turn in range(TURNS):
                bare.append(measure_bare(spark, root / f"bare-{turn}"))
                ours.append(measure_ours(spark, root, root / f"ours-{turn}"))
            yield Figure(
                "view: log to store", max(ours), "events/s", max(bare), "bare Spark, Arrow in memory, no sink", "70%"
            )
        finally:
            spark.stop()


def piece(partition: int, number: int) -> pa.RecordBatch:
    """Readings from the sensors that belong to a partition, as the gateway would have written them."""
    names = [name for name in map(str, range(SENSORS)) if partition_of(name, PARTITIONS) == partition]
    first = number * PIECE
    sensors_ = [names[(first + index) % len(names)] for index in range(PIECE)]
    columns = {
        "reading": [f"{partition}-{first + index}" for index in range(PIECE)],
        "sensor": sensors_,
        "at": [NOW] * PIECE,
        "value": [float(index % 100) for index in range(PIECE)],
        "number": list(range(first, first + PIECE)),
        "_id": [f"{partition}-{first + index}" for index in range(PIECE)],
        "_key": sensors_,
        "_ingest_time": [NOW] * PIECE,
        "_kind": [0] * PIECE,
    }
    return pa.RecordBatch.from_pydict(columns, schema=event_schema(Reading))


def fill(streams: Path) -> None:
    streams.mkdir(parents=True)
    log = EmbeddedLog(streams)
    log.declare(StreamSpec("readings", event_schema(Reading), PARTITIONS))
    for number in range(BATCH * BATCHES // PIECE // PARTITIONS):
        for partition in range(PARTITIONS):
            log.append("readings", partition, piece(partition, number), producer="bench", sequence=number)
    log.close()


def rate(finished: list[float]) -> float:
    """Return the events per second in the median batch, after the warm-up."""
    steps = [after - before for before, after in zip(finished[WARM:], finished[WARM + 1 :], strict=False)]
    return BATCH / median(steps)


def measure_ours(spark: SparkSession, root: Path, folder: Path) -> float:
    register(spark, EmbeddedLogOpener(root / "streams"))
    folder.mkdir()
    table = ViewTable(
        folder / "view.db", ViewSpec("sensors", ("sensor",), None, None, None, 100, 2**28), clock=WallClock()
    )
    query = SparkQuery(sensors, Checkpoint(folder / "checkpoint"), table, 1)
    finished: list[float] = []
    query.after_commit = lambda output: finished.append(time.perf_counter())

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=BATCH, wait_s=0.01)

    frame = prune(spark, lambda reader: build(spark, sensors, inputs(app, sensors, reader, {})), read)
    query.start(frame, trigger_ms=0, clean=True)
    assert query.query is not None
    query.query.processAllAvailable()
    query.stop()
    table.close()
    return rate(finished)


class MemoryReader(DataSourceStreamReader):
    """The same readings, created once in each worker and kept there."""

    def __init__(self, columns: list[str], make: Callable[[int, int], pa.RecordBatch]) -> None:
        self.columns, self.make = columns, make

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, BATCHES)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((partition, start["batch"])) for partition in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyspark.sql.datasource as kept  # a module that lives as long as the worker

        number, _ = partition.value
        held: dict[int, list[pa.RecordBatch]] = kept.__dict__.setdefault("_bench", {})
        if number not in held:
            held[number] = [
                self.make(number, index).select(self.columns) for index in range(BATCH // PIECE // PARTITIONS)
            ]
        yield from held[number]

    def commit(self, end: dict[str, int]) -> None:
        pass


def measure_bare(spark: SparkSession, folder: Path) -> float:
    class Memory(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bench-memory"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return MemoryReader(schema.names, piece)

    spark.dataSource.register(Memory)
    finished: list[float] = []
    frame = aggregate(spark.readStream.format("bench-memory").schema("sensor string, value double, number long").load())
    query = (
        frame.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    ).start()
    while len(finished) < BATCHES:
        done = query._jsq.lastProgress()
        count = done.batchId() + 1 if done is not None and done.numInputRows() else 0
        finished += [time.perf_counter()] * (count - len(finished))
        time.sleep(0.005)
    query.stop()
    return rate(finished)
