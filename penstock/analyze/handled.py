"""Handlers as a Spark streaming source: Spark plans each batch, and its workers run the handler as they read.

The source of a handler's query is the handler itself. A task reads its shards' rows from the log, runs the handler on
them, makes the state durable and returns the emitted events to Spark. Input events never pass through Java. Spark
decides on a batch's range before the batch runs, distributes the work, and repeats it if a worker dies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from penstock.analyze.source import JOINED_ROWS_MAX
from penstock.core.contracts import BlockingLogReader
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import LedgerMismatch
from penstock.core.wakeups import BlockingWatch
from penstock.handlers.batches import batch_end, own_positions, rows_bound, shard_ranges
from penstock.handlers.contracts import Claims, HandledShard
from penstock.handlers.pace import Pace
from penstock.handlers.shard import HASH_BYTES, NO_VERSION
from penstock.handlers.worker import RESULT, HandlerPlan, HandlerWorker, ShardWork, worker_of

FORMAT = "penstock-handler"
CLAIMED_SHARDS_MAX = 64
"""Above this number of shards, each task is assigned its shards in advance, because a task that can claim any shard
must receive the work descriptions of all shards."""
Offset = dict[str, int]


@dataclass(frozen=True)
class LedgerState:
    """The state of a handler's ledger. `next_id` and `start` are the id and the start of the next batch; `intended` is
    the required end of that batch if it has begun to take effect. `last_end` is the end of the last batch, or None if
    there is no last batch, and `origin` is the start of the first. `generation` is that of the files of `shards`."""

    next_id: int
    start: str
    intended: str | None
    last_end: str | None
    origin: str
    shards: Mapping[int, HandledShard]
    generation: int = 0


@dataclass(frozen=True)
class HandlerSource:
    """The data for planning a handler's batches: the handler's plan, its ledger, and the limits of a batch."""

    plan: HandlerPlan
    ledger_state: Callable[[], LedgerState | None]
    rows_max: int
    wait_s: float


@dataclass
class Task(InputPartition):
    """The shards that one task runs, one after the other. With `claims`, it runs only one of these shards: its worker
    claims a shard for the task with this number."""

    works: list[ShardWork]
    number: int = 0
    claims: Claims | None = None

    def taken(self, worker: HandlerWorker) -> list[ShardWork]:
        if self.claims is None:
            return self.works
        works = {work.shard: work for work in self.works}
        return [works[self.claims.take(self.number, list(works), lambda shard: worker.holds(works[shard]))]]


class HandlerReader(DataSourceStreamReader):
    """The reader for a handler's source. `read` runs in Spark's workers; all other methods run in one Python process of
    the driver."""

    def __init__(self, source: HandlerSource) -> None:
        self.source = source
        self.pace = Pace(rows_bound(source.plan.placed, source.rows_max))
        self._log: BlockingLogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}

    @property
    def log(self) -> BlockingLogReader:
        if self._log is None:
            self._log = self.source.plan.open_log()
        return self._log

    @property
    def streams(self) -> list[str]:
        return list(self.source.plan.placed)

    def initialOffset(self) -> Offset:
        return _handler_offset({stream: dict(self.log.starts(stream)) for stream in self.streams})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.source.rows_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        position = _handler_positions(start)
        ledger_state = self.source.ledger_state()
        if (
            ledger_state is not None
            and ledger_state.intended is not None
            and source_positions(ledger_state.start) == position
        ):
            return _handler_offset(source_positions(ledger_state.intended))
        rows_max = self.pace.begin(position, time.monotonic())
        ends = self._wait(position)
        end = batch_end(self.log, self.source.plan.placed, position, ends, rows_max)
        rows = max(self.log.rows_between(name, position[name], end[name]) for name in end)
        self.pace.planned(end, rows, time.monotonic())
        return _handler_offset(end)

    def reportLatestOffset(self) -> Offset:
        return _handler_offset({stream: dict(self.log.ends(stream)) for stream in self.streams})

    def _wait(self, position: Positions) -> Positions:
        """Wait until a stream that the handler reads has new rows, for at most `wait_s` seconds, and return the ends of
        all streams."""
        deadline = time.monotonic() + self.source.wait_s
        with BlockingWatch(*(partial(self.log.watch, stream) for stream in self.streams)) as watch:
            while True:
                watch.arm()
                ends = {stream: dict(self.log.ends(stream)) for stream in self.streams}
                left = deadline - time.monotonic()
                if ends != position or left <= 0:
                    return ends
                watch.wait(left)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        works = self._works(_handler_positions(start), _handler_positions(end))
        if sum(map(self._row_count, works)) <= JOINED_ROWS_MAX:
            return [Task(works)]
        if len(works) > CLAIMED_SHARDS_MAX:
            return [Task([work]) for work in works]
        claims = self.source.plan.new_claims()
        return [Task(works, number, claims) for number in range(len(works))]

    def _row_count(self, work: ShardWork) -> int:
        ranges = shard_ranges(self.source.plan.placed, work.shard, work.start, work.end)
        return sum(self.log.rows_between(name, {number: first}, {number: stop}) for name, number, first, stop in ranges)

    def _works(self, start: Positions, end: Positions) -> list[ShardWork]:
        """Return the work of a handler's batch for each shard. The result is empty if the batch is already in the
        ledger."""
        ledger = self.source.ledger_state()
        if ledger is None:
            ledger = LedgerState(0, "[]", None, None, json.dumps([_handler_offset(start)]), {})
        elif ledger.last_end is not None and source_positions(ledger.last_end) == end:
            return []
        elif source_positions(ledger.start) != start:
            raise LedgerMismatch(
                f"handler {self.source.plan.name}: its ledger ends at {ledger.start}, but the checkpoint continues "
                f"from {json.dumps(start)}. Restore a checkpoint and a ledger from the same backup"
            )
        origin = source_positions(ledger.origin)
        works, placed = [], self.source.plan.placed
        for shard in range(self.source.plan.shards):
            if shard_ranges(placed, shard, start, end):
                known = ledger.shards.get(shard)
                base, digest = (known.version, known.digest) if known is not None else (NO_VERSION, bytes(HASH_BYTES))
                way = (own_positions(placed, shard, positions) for positions in (origin, start, end))
                works.append(ShardWork(shard, ledger.generation, base, digest, ledger.next_id, *way))
        return works

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        worker = worker_of(self.source.plan)
        for work in partition.taken(worker):
            for output, payload in worker.run(work):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([work.shard], pa.int32()), pa.array([output], pa.int32()), pa.array([payload])],
                    schema=RESULT,
                )

    def commit(self, end: Offset) -> None:
        """Do nothing, because the ledger records which batches are done."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _handler_offset(positions: Mapping[str, Mapping[int, int]]) -> Offset:
    return {
        f"{name}/{partition}": offsets[partition]
        for name, offsets in positions.items()
        for partition in sorted(offsets)
    }


def _handler_positions(offset: Offset) -> Positions:
    return source_positions(json.dumps([offset]))


def register_handlers(spark: SparkSession, sources: Mapping[str, HandlerSource]) -> None:
    """Register handlers as sources with Spark. The class is defined inside this function so that it is pickled by value
    for the workers."""

    class HandlerDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return HandlerReader(sources[self.options["handler"]])

    spark.dataSource.register(HandlerDataSource)


def handler_frame(spark: SparkSession, name: str) -> DataFrame:
    """Return a streaming DataFrame of the output of a handler's shards, with rows (shard, output, payload)."""
    schema = from_arrow_schema(RESULT)
    return spark.readStream.format(FORMAT).schema(schema).option("handler", name).load()


def result_rows(table: pa.Table) -> Iterator[tuple[int, int, bytes]]:
    """Yield the rows that a handler's batch returns to Spark (shard, output, payload)."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
