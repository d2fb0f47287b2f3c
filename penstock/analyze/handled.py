"""Handlers as a Spark streaming source: Spark plans each batch, and its workers run the handler as they read.

The source of a handler's query is the handler itself: a task reads its shards' rows from the log, runs the handler on
them, makes the state durable and gives Spark what was emitted. Events never cross into Java and back. Spark does what
it is good at: it fixes the range of a batch before it runs, spreads the work, and runs it again when a worker dies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from penstock.analyze.batches import batch_end, own_positions, rows_bound, shard_ranges
from penstock.analyze.claims import Claims, new_claims
from penstock.analyze.outbox import Inbox
from penstock.analyze.pace import Pace
from penstock.analyze.source import JOINED_ROWS_MAX
from penstock.analyze.worker import RESULT, Plan, ShardWork, Worker, worker_of
from penstock.contracts import HandledShard, LogReader
from penstock.cursor import Positions, source_positions
from penstock.errors import LedgerMismatch
from penstock.shard import HASH_BYTES, NOTHING

FORMAT = "penstock-handler"
POLL_S = 0.02
"""How long to wait for one stream before a look at the next, if a handler reads several."""
CLAIMED_SHARDS_MAX = 64
"""Past this many, each task has its own: a task that may run any of them is told of all."""
Offset = dict[str, int]


@dataclass(frozen=True)
class Standing:
    """Where a handler's ledger stands: the number of its next batch and where that begins; where it must end, if it has
    begun to have an effect; where the last one ended, None if there is none; where the first began; and its shards,
    with the generation of their files."""

    next_id: int
    start: str
    intended: str | None
    last_end: str | None
    origin: str
    shards: Mapping[int, HandledShard]
    generation: int = 0


@dataclass(frozen=True)
class Source:
    """What the planning side needs besides the plan: the ledger, and how much a batch may take."""

    plan: Plan
    standing: Callable[[], Standing | None]
    rows_max: int
    wait_s: float


@dataclass
class Task(InputPartition):
    """The shards that one task runs, one after the other; or, with `claims`, one of them: that which its worker takes
    as the task of this number."""

    works: list[ShardWork]
    number: int = 0
    claims: Claims | None = None

    def taken(self, worker: Worker) -> list[ShardWork]:
        if self.claims is None:
            return self.works
        works = {work.shard: work for work in self.works}
        return [works[self.claims.take(self.number, list(works), lambda shard: worker.holds(works[shard]))]]


class HandlerReader(DataSourceStreamReader):
    """`read` runs in Spark's workers, everything else in one Python process of the driver."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.pace = Pace(rows_bound(source.plan.placed, source.rows_max))
        self._log: LogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}

    @property
    def log(self) -> LogReader:
        if self._log is None:
            self._log = self.source.plan.open_log()
        return self._log

    @property
    def streams(self) -> list[str]:
        return list(self.source.plan.placed)

    def initialOffset(self) -> Offset:
        return _offset({stream: dict(self.log.starts(stream)) for stream in self.streams})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.source.rows_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        position = _positions(start)
        standing = self.source.standing()
        if standing is not None and standing.intended is not None and source_positions(standing.start) == position:
            return _offset(source_positions(standing.intended))
        rows_max = self.pace.begin(position, time.monotonic())
        ends = self._wait(position)
        end = batch_end(self.log, self.source.plan.placed, position, ends, rows_max)
        rows = max(sum(end[name].values()) - sum(position[name].values()) for name in end)
        self.pace.planned(end, rows, time.monotonic())
        return _offset(end)

    def reportLatestOffset(self) -> Offset:
        return _offset({stream: dict(self.log.ends(stream)) for stream in self.streams})

    def _wait(self, position: Positions) -> Positions:
        """The ends of all streams, as soon as one has news."""
        deadline = time.monotonic() + self.source.wait_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            pause = left if len(self.streams) == 1 else min(left, POLL_S)
            ends = {stream: dict(self.log.wait(stream, position[stream], pause)) for stream in self.streams}
            if ends != position or not left:
                return ends

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        works = self._works(_positions(start), _positions(end))
        if sum(map(self._rows, works)) <= JOINED_ROWS_MAX:
            return [Task(works)]
        if len(works) > CLAIMED_SHARDS_MAX:
            return [Task([work]) for work in works]
        claims = new_claims(self.source.plan.claims)
        return [Task(works, number, claims) for number in range(len(works))]

    def _rows(self, work: ShardWork) -> int:
        ranges = shard_ranges(self.source.plan.placed, work.shard, work.start, work.end)
        return sum(each.end - each.start for each in ranges)

    def _works(self, start: Positions, end: Positions) -> list[ShardWork]:
        """What each shard has to do. Nothing, if the ledger has the batch already."""
        standing = self.source.standing()
        if standing is None:
            standing = Standing(0, "[]", None, None, json.dumps([_offset(start)]), {})
        elif standing.last_end is not None and source_positions(standing.last_end) == end:
            return []
        elif source_positions(standing.start) != start:
            raise LedgerMismatch(
                f"handler {self.source.plan.name}: its ledger ends at {standing.start}, the checkpoint goes on from "
                f"{json.dumps(start)}. Restore the one that belongs to the other"
            )
        origin = source_positions(standing.origin)
        works, placed = [], self.source.plan.placed
        for shard in range(self.source.plan.shards):
            if shard_ranges(placed, shard, start, end):
                known = standing.shards.get(shard)
                base, digest = (known.version, known.digest) if known is not None else (NOTHING, bytes(HASH_BYTES))
                way = (own_positions(placed, shard, each) for each in (origin, start, end))
                works.append(ShardWork(shard, standing.generation, base, digest, standing.next_id, *way))
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
        """Nothing to do: the ledger says what is done."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _offset(positions: Mapping[str, Mapping[int, int]]) -> Offset:
    return {f"{name}/{partition}": each[partition] for name, each in positions.items() for partition in sorted(each)}


def _positions(offset: Offset) -> Positions:
    return source_positions(json.dumps([offset]))


def register_handlers(spark: SparkSession, sources: Mapping[str, Source]) -> None:
    """Make handlers known to Spark. The class is made here so that it carries them to the workers by value."""

    class HandlerDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return HandlerReader(sources[self.options["handler"]])

    spark.dataSource.register(HandlerDataSource)


def handler_frame(spark: SparkSession, name: str) -> DataFrame:
    """What a handler's shards give: rows of (shard, output, payload)."""
    schema = from_arrow_schema(RESULT)
    return spark.readStream.format(FORMAT).schema(schema).option("handler", name).load()


def results(table: pa.Table) -> Inbox:
    """A batch's rows."""
    return Inbox(zip(*(column.to_pylist() for column in table.columns), strict=True))
