"""The log as a Spark streaming source.

Offsets are `{"STREAM/PARTITION": next offset}`, so Spark's offset log is enough to know what a batch has read. The
planning methods run in one Python process of the driver, and `read` runs in Spark's workers; each process opens the log
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.core.contracts import BlockingLogReader
from penstock.handlers.batches import batch_end, batch_stop

FORMAT = "penstock"
JOINED_ROWS_MAX = 20_000
"""Up to this many rows, one task reads all partitions, because starting another task would cost more than reading
them."""

LogOpener = Callable[[], BlockingLogReader]
Offset = dict[str, int]


@dataclass
class LogRanges(InputPartition):
    """The ranges of the log that one task reads, in order: (partition, start, end)."""

    ranges: list[tuple[int, int, int]]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one stream of the log for Spark. `wait_s` is how long a poll blocks if there are no new rows, so Spark
    polls less often.

    If `ordered` is true, a batch ends where all partitions have reached the same log time, even if more rows could be
    read. Without this, a partition that is read ahead of the others would make their events late.
    """

    def __init__(
        self, opener: LogOpener, stream: str, columns: list[str], rows_max: int, wait_s: float, ordered: bool = False
    ) -> None:
        self.opener = opener
        self.stream = stream
        self.columns = columns
        self.rows_max = rows_max
        self.wait_s = wait_s
        self.ordered = ordered
        self._log: BlockingLogReader | None = None
        self._final: Mapping[int, int] | None = None

    @property
    def log(self) -> BlockingLogReader:
        if self._log is None:
            self._log = self.opener()
        return self._log

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}

    def initialOffset(self) -> Offset:
        return self._spark_offset(self.log.starts(self.stream))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = self.log.ends(self.stream)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        position = _stream_position(start)
        ends = self._final if self._final is not None else self.log.wait(self.stream, position, self.wait_s)
        if isinstance(limit, ReadAllAvailable):
            return self._spark_offset(ends)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self.rows_max
        stop = batch_stop(self.log, self.stream, position, ends, rows_max)
        if not self.ordered or stop == ends:
            return self._spark_offset(stop)
        name = self.stream
        return self._spark_offset(
            batch_end(self.log, {name: False}, {name: position}, {name: dict(ends)}, rows_max)[name]
        )

    def reportLatestOffset(self) -> Offset:
        return self._spark_offset(self.log.ends(self.stream))

    def _spark_offset(self, ends: Mapping[int, int]) -> Offset:
        return {f"{self.stream}/{partition}": ends[partition] for partition in sorted(ends)}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = _stream_position(start), _stream_position(end)
        ranges = [(partition, first.get(partition, 0), last[partition]) for partition in last]
        if self.log.rows_between(self.stream, first, last) <= JOINED_ROWS_MAX:
            return [LogRanges([offset_range for offset_range in ranges if offset_range[1] < offset_range[2]])]
        return [LogRanges([offset_range]) for offset_range in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRanges)
        for number, start, end in partition.ranges:
            for batch in self.log.read(self.stream, number, start, end):
                yield batch.select(self.columns)

    def commit(self, end: Offset) -> None:
        """Do nothing. Retention asks the ledger which rows can be deleted, because Spark calls this method late, if at
        all."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _stream_position(offset: Offset) -> dict[int, int]:
    return {int(name.rpartition("/")[2]): number for name, number in offset.items()}


def register(spark: SparkSession, opener: LogOpener) -> None:
    """Register the log as a source with Spark. The class is defined inside this function so that it is pickled by value
    for the workers, together with `opener`."""

    class LogDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return LogStreamReader(
                opener,
                self.options["stream"],
                schema.fieldNames(),
                int(self.options["rows_max"]),
                float(self.options["wait_s"]),
                self.options["ordered"] == "true",
            )

    spark.dataSource.register(LogDataSource)


def read_stream(
    spark: SparkSession, stream: str, schema: StructType, *, rows_max: int, wait_s: float, ordered: bool = False
) -> DataFrame:
    """Return a streaming DataFrame of a stream, including ticks, with the columns in `schema`."""
    reader = spark.readStream.format(FORMAT).schema(schema)
    return reader.options(stream=stream, rows_max=rows_max, wait_s=wait_s, ordered=ordered).load()
