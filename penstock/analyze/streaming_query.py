"""Runs a view or handler as a Spark streaming query that moves data from the log to the sink exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.analyze.contracts import QueryCheckpoint
from penstock.analyze.fetching import fetch
from penstock.analyze.frames import node_error
from penstock.app.declared import Handler, View
from penstock.core.contracts import Output, Sink
from penstock.core.errors import PenstockError, Stopping
from penstock.core.failpoints import reach

AfterCommit = Callable[[Output], None]
STOP_POLL_S = 0.01
POLL_S = 1
NO_WATERMARK = "1970-01-01T00:00:00.000Z"


@dataclass
class QueryProgress:
    """Figures about a query's latest batches. Written by the query's thread and read by the status thread."""

    batch_id: int | None = None
    batch_ms: float | None = None
    rows: int = 0
    late: int = 0
    watermark: str | None = None
    positions: str = "[]"
    batches: int = 0
    finished_at: float = field(default_factory=time.monotonic)


class SparkQuery:
    """Runs a DataFrame as a streaming query. Spark calls `_output` for each batch, one at a time."""

    def __init__(
        self,
        node: View | Handler,
        checkpoint: QueryCheckpoint,
        sink: Sink,
        epoch: int,
        after_commit: AfterCommit | None = None,
    ) -> None:
        self.node = node
        self.checkpoint = checkpoint
        self.sink = sink
        self.epoch = epoch
        self.after_commit = after_commit
        self.progress = QueryProgress()
        self.failure: BaseException | None = None
        self._observed: int | None = None
        self._writing = Lock()
        self._draining = False
        self.query: StreamingQuery | None = None

    def start(self, frame: DataFrame, *, trigger_ms: int, clean: bool) -> list[str]:
        """Start the Spark query. Returns the files that the repair after a crash deleted. Raises `LedgerMismatch` if
        the checkpoint does not match the ledger."""
        dropped = self._prepare(clean=clean)
        writer = self._writer(frame)
        if trigger_ms:
            writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
        self.query = writer.start()
        return dropped

    def run_to_end(self, frame: DataFrame, *, clean: bool, poll: Callable[[], object]) -> None:
        """Run the Spark query over everything that is currently in the log, then end. Blocks until done, and calls
        `poll` about once a second.

        Raises the error that stopped the query: a Penstock error unchanged, any other error as an error with the name
        of the view or handler and its line.
        """
        self._prepare(clean=clean)
        self.query = self._writer(frame).trigger(availableNow=True).start()
        try:
            while not self.query.awaitTermination(POLL_S):
                poll()
        except PySparkException as error:
            failure = self.failure or error
            raise failure if isinstance(failure, PenstockError) else node_error(self.node, failure) from error

    def _prepare(self, *, clean: bool) -> list[str]:
        last = self.sink.last()
        dropped = [] if clean else self.checkpoint.repair(last)
        self.checkpoint.verify(self.node.name, last)
        self.failure, self._draining = None, False
        if last is not None:
            self.progress.batch_id, self.progress.positions = last.batch_id, last.end
        return dropped

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        writer = frame.writeStream.queryName(self.node.name).outputMode(output_mode(self.node))
        return writer.option("checkpointLocation", self.checkpoint.location).foreachBatch(self._output)

    def _output(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._commit(frame, batch_id)
        except BaseException as error:
            self.failure = error  # Spark would pass on only its message
            raise

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        self.checkpoint.sync()
        start, end = self.checkpoint.range(batch_id)
        table = fetch(frame)  # even if the ledger already contains the batch, because Spark must commit its state
        with self._writing:
            if self._draining:
                raise Stopping("the app is stopping; this batch will run again")
            reach("engine.before_commit")
            output = Output(batch_id, start, end, self.epoch, table)
            is_new = self.sink.commit(output)
            reach("engine.after_commit")
            if self.after_commit is not None:
                self.after_commit(output)
        now = time.monotonic()
        progress = self.progress
        progress.batch_id, progress.positions, progress.rows = batch_id, end, table.num_rows
        progress.batch_ms, progress.finished_at = (now - began) * 1000, now
        progress.batches += is_new  # a repeated batch does not show that the query can process new rows

    def observe(self) -> None:
        """Read the watermark and the number of late rows from Spark's progress. Takes a few milliseconds; called by the
        status thread."""
        if self.query is None or self._observed == self.progress.batch_id:
            return
        recent: Any = self.query._jsq.recentProgress()
        for progress in reversed(recent):
            report = json.loads(progress.json())
            if self._observed is not None and report["batchId"] <= self._observed:
                break
            self.progress.late += sum(
                operator.get("numRowsDroppedByWatermark", 0) for operator in report.get("stateOperators", ())
            )
        if len(recent):
            newest = json.loads(recent[len(recent) - 1].json())
            self._observed = newest["batchId"]
            self.progress.watermark = _known_watermark(newest.get("eventTime", {}).get("watermark"))

    def stop(self, timeout_s: float = 0.0) -> None:
        """Stop the Spark query. Output in progress is finished, and Spark gets `timeout_s` seconds to record that. A
        batch that has not reached its output is left for the next start."""
        with self._writing:
            self._draining = True
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.query is not None and self.query.isActive:
            last = self.sink.last()
            if last is None or self.checkpoint.has_commit(last.batch_id):
                break
            time.sleep(STOP_POLL_S)
        if self.query is not None:
            self.query.stop()


def _known_watermark(watermark: str | None) -> str | None:
    """Return a query's watermark, or None for the initial value in 1970, which Spark reports before the first event."""
    return None if watermark == NO_WATERMARK else watermark


def output_mode(node: View | Handler) -> str:
    return "append" if isinstance(node, Handler) or node.emit == "close" else "update"
