"""One view or handler as one Spark streaming query, from the log to its sink, exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.fetching import fetch
from penstock.analyze.frames import node_error
from penstock.contracts import Output, Sink
from penstock.declared import Handler, View
from penstock.errors import PenstockError, Stopping
from penstock.failpoints import reach
from penstock.files import sync_filesystem

AfterCommit = Callable[[Output], None]
STOP_POLL_S = 0.01
POLL_S = 1
NO_WATERMARK = "1970-01-01T00:00:00.000Z"


@dataclass
class Progress:
    """What the last batches of a query did; read by the status thread, written by the query's."""

    batch_id: int | None = None
    batch_ms: float | None = None
    rows: int = 0
    late: int = 0
    watermark: str | None = None
    positions: str = "[]"
    batches: int = 0
    finished_at: float = field(default_factory=time.monotonic)


class Query:
    """Runs a DataFrame as a streaming query. Spark calls `_output` for each batch, one at a time."""

    def __init__(
        self, node: View | Handler, checkpoint: Path, sink: Sink, epoch: int, after_commit: AfterCommit | None = None
    ) -> None:
        self.node = node
        self.checkpoint = Checkpoint(checkpoint)
        self.sink = sink
        self.epoch = epoch
        self.after_commit = after_commit
        self.progress = Progress()
        self.failure: BaseException | None = None
        self._observed: int | None = None
        self._writing = Lock()
        self._draining = False
        self.query: StreamingQuery | None = None

    def start(self, frame: DataFrame, *, trigger_ms: int, clean: bool) -> list[str]:
        """Begin. Returns what the repair of an unclean end dropped; `LedgerMismatch` over a foreign checkpoint."""
        dropped = self._prepare(clean=clean)
        writer = self._writer(frame)
        if trigger_ms:
            writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
        self.query = writer.start()
        return dropped

    def run_to_end(self, frame: DataFrame, *, clean: bool, poll: Callable[[], object]) -> None:
        """Run over all that the log has now, then end; calls `poll` about once a second. Blocks until it is done.

        Raises what failed: an error of ours as it is, another one as an error that names the view and its line.
        """
        self._prepare(clean=clean)
        self.query = self._writer(frame).trigger(availableNow=True).start()
        try:
            while not self.query.awaitTermination(POLL_S):
                poll()
        except PySparkException as error:
            found = self.failure or error
            raise found if isinstance(found, PenstockError) else node_error(self.node, found) from error

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
        return writer.option("checkpointLocation", str(self.checkpoint.path)).foreachBatch(self._output)

    def _output(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._commit(frame, batch_id)
        except BaseException as error:
            self.failure = error  # Spark would only pass its text on
            raise

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        sync_filesystem(self.checkpoint.path)
        start, end = self.checkpoint.range(batch_id)
        table = fetch(frame)  # all of it, also for a batch that the ledger knows: the state must be committed
        with self._writing:
            if self._draining:
                raise Stopping("the app is stopping; this batch will run again")
            reach("engine.before_commit")
            output = Output(batch_id, start, end, self.epoch, table)
            self.sink.commit(output)
            reach("engine.after_commit")
            if self.after_commit is not None:
                self.after_commit(output)
        now = time.monotonic()
        progress = self.progress
        progress.batch_id, progress.positions, progress.rows = batch_id, end, table.num_rows
        progress.batch_ms, progress.finished_at = (now - began) * 1000, now
        progress.batches += 1

    def observe(self) -> None:
        """Take watermark and late rows from Spark's own progress: some milliseconds, for a status thread."""
        if self.query is None or self._observed == self.progress.batch_id:
            return
        recent: Any = self.query._jsq.recentProgress()
        for each in reversed(recent):
            report = json.loads(each.json())
            if self._observed is not None and report["batchId"] <= self._observed:
                break
            self.progress.late += sum(
                operator.get("numRowsDroppedByWatermark", 0) for operator in report.get("stateOperators", ())
            )
        if len(recent):
            newest = json.loads(recent[len(recent) - 1].json())
            self._observed = newest["batchId"]
            self.progress.watermark = _known(newest.get("eventTime", {}).get("watermark"))

    def stop(self, timeout_s: float = 0.0) -> None:
        """End the query. Output under way is finished and Spark given `timeout_s` to write down that it is; a batch
        that has not come to its output is left for the next start."""
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


def _known(watermark: str | None) -> str | None:
    """Spark begins with 1970, before it has seen an event."""
    return None if watermark == NO_WATERMARK else watermark


def output_mode(node: View | Handler) -> str:
    return "append" if isinstance(node, Handler) or node.emit == "close" else "update"
