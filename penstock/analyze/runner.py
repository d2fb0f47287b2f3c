"""Keep a query running: start it, detect when it ends, restart it with back-off, and report its state."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock.analyze.frames import node_error, spark_schema
from penstock.analyze.streaming_query import QueryProgress, SparkQuery
from penstock.app.declared import Handler, View, ViewHandler
from penstock.control import NodeState, NodeStatus, StatusColumn
from penstock.core.backoff import doubled_s
from penstock.core.cursor import source_positions
from penstock.core.errors import PenstockError
from penstock.core.schema import event_schema, shown

log = logging.getLogger("penstock.engine")
HEALTHY_S = 60.0
"""A query that has run for this long counts as healthy: its next failure starts with the shortest wait again."""


@dataclass
class Restart:
    """A schedule of restarts of a Spark query. The wait doubles each time, from one second up to `longest_s`."""

    longest_s: float
    failures: int = 0
    at: float = 0.0

    def schedule(self, now: float) -> float:
        wait = doubled_s(1.0, self.longest_s, self.failures)
        self.failures += 1
        self.at = now + wait
        return wait


class Runner:
    """Runs one view or handler. `step` is called a few times a second.

    The `state` is `starting` until the query first runs. After a failure, the state stays `failed`, with the error,
    during all restarts, until the query has been seen running; otherwise a single persistent fault would look like many
    faults.

    `make` opens the files and returns the query, and `build` returns its DataFrame. If either raises, that counts as a
    failure of this view or handler. `caught_up` returns whether there is nothing left to read: if so, the query counts
    as running although it has no batch that would show this.
    """

    def __init__(
        self,
        node: View | Handler,
        make: Callable[[], SparkQuery],
        build: Callable[[], DataFrame],
        caught_up: Callable[[], bool],
        *,
        trigger_ms: int,
        longest_s: float,
    ) -> None:
        self.node = node
        self.query: SparkQuery | None = None
        self.make = make
        self.build = build
        self.caught_up = caught_up
        self.trigger_ms = trigger_ms
        self.restart = Restart(longest_s)
        self.state: NodeState = "starting"
        self.error: str | None = None
        self.columns: tuple[StatusColumn, ...] = ()
        self._started_at = 0.0
        self._under_way = False
        self._batches = 0

    def start(self, *, clean: bool) -> list[str]:
        """Start the Spark query, or record why it failed to start. Returns the files deleted by the checkpoint's
        repair."""
        self._started_at, self._under_way = time.monotonic(), True
        try:
            self.query = self.query or self.make()
            self._batches = self.query.progress.batches
            frame = self.build()
            schema = (
                spark_schema(shown(event_schema(self.node.row))) if isinstance(self.node, ViewHandler) else frame.schema
            )
            self.columns = tuple(StatusColumn(field.name, field.dataType.simpleString()) for field in schema.fields)
            return self.query.start(frame, trigger_ms=self.trigger_ms, clean=clean)
        except Exception as error:
            self._fail(error)
            return []

    def step(self) -> None:
        """Check whether the Spark query has ended, must be restarted, or has finished its first batch."""
        now = time.monotonic()
        if not self._under_way:
            if self.restart.at and now >= self.restart.at:
                self.start(clean=False)
            return
        assert self.query is not None
        query = self.query.query
        if query is not None and not query.isActive:
            self._fail(self.query.failure or query.exception() or RuntimeError("its query ended"))
            return
        if self.state != "running" and (self.query.progress.batches > self._batches or self.caught_up()):
            self.state, self.error = "running", None
            log.info("%s: running", self.node.name)
        if self.state == "running" and now - self._started_at > HEALTHY_S:
            self.restart.failures = 0

    def _fail(self, error: BaseException) -> None:
        """Record a failure of the Spark query. Errors in the declaration or in the files are permanent; anything else
        is retried."""
        self.state, self._under_way = "failed", False
        final = isinstance(error, AnalysisException) or (isinstance(error, PenstockError) and not error.retry)
        shown = error if isinstance(error, PenstockError) else node_error(self.node, error)
        self.error = str(shown)
        log.error("%s failed: %s", self.node.name, shown)
        if final:
            self.restart.at = 0.0
        else:
            wait = self.restart.schedule(time.monotonic())
            self.error += f" (retrying in {wait:.0f} s)"

    def status(self) -> NodeStatus:
        """Return the query's state and progress as of Spark's last report. Takes a few milliseconds after a batch."""
        if self.query is not None:
            self.query.observe()
        progress = self.progress
        return NodeStatus(
            state=self.state,
            error=self.error,
            columns=self.columns,
            batch_id=progress.batch_id,
            batch_ms=progress.batch_ms,
            positions=source_positions(progress.positions),
        )

    @property
    def progress(self) -> QueryProgress:
        return self.query.progress if self.query is not None else QueryProgress()


def stop_all(runners: list[Runner], timeout_s: float) -> None:
    """Stop all Spark queries in parallel, because each one waits for its current output."""
    queries = [runner.query for runner in runners if runner.query is not None]
    threads = [threading.Thread(target=query.stop, args=(timeout_s,)) for query in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
