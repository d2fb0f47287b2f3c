"""Keeps a query running: starts it, notices its end, starts it again with back-off, tells its state."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock.analyze.frames import node_error, spark_schema
from penstock.analyze.query import Progress, Query
from penstock.declared import Handler, Keeper, View
from penstock.errors import PenstockError
from penstock.schema import event_schema, shown

log = logging.getLogger("penstock.engine")
HEALTHY_S = 60.0
"""A query that ran this long is taken as healthy: its next failure begins with the shortest wait again."""


@dataclass
class Restart:
    """When to try again. The wait doubles from one second up to `longest_s`."""

    longest_s: float
    failures: int = 0
    at: float = 0.0

    def schedule(self, now: float) -> float:
        wait = min(self.longest_s, 2.0**self.failures)
        self.failures += 1
        self.at = now + wait
        return wait


class Runner:
    """One view or handler. `step` is called a few times a second.

    Its `state` is `starting` until it first runs. One that has failed stays `failed`, with its error, while it is tried
    again, until it is seen to run: else a fault that stays would look like many.

    `make` opens its files and gives its query, `build` its DataFrame. Either may raise: that is its own failure.
    `caught_up` tells whether there is nothing for it to read: then it runs, though no batch will show it.
    """

    def __init__(
        self,
        node: View | Handler,
        make: Callable[[], Query],
        build: Callable[[], DataFrame],
        caught_up: Callable[[], bool],
        *,
        trigger_ms: int,
        longest_s: float,
    ) -> None:
        self.node = node
        self.query: Query | None = None
        self.make = make
        self.build = build
        self.caught_up = caught_up
        self.trigger_ms = trigger_ms
        self.restart = Restart(longest_s)
        self.state = "starting"
        self.error: str | None = None
        self.columns: list[dict[str, str]] = []
        self._started_at = 0.0
        self._under_way = False
        self._batches = 0

    def start(self, *, clean: bool) -> list[str]:
        """Start, or note why not. Returns what the checkpoint's repair dropped."""
        self._started_at, self._under_way = time.monotonic(), True
        try:
            self.query = self.query or self.make()
            self._batches = self.query.progress.batches
            frame = self.build()
            schema = spark_schema(shown(event_schema(self.node.row))) if isinstance(self.node, Keeper) else frame.schema
            self.columns = [{"name": each.name, "type": each.dataType.simpleString()} for each in schema.fields]
            return self.query.start(frame, trigger_ms=self.trigger_ms, clean=clean)
        except Exception as error:
            self._fail(error)
            return []

    def step(self) -> None:
        """Look after the query: its end, its restart, its first batch."""
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
        """A fault of the declaration or of the files stays; anything else is tried again."""
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

    def status(self) -> dict[str, Any]:
        """For `/v1/app`; the gateway adds what it knows."""
        if self.query is not None:
            self.query.observe()
        progress = self.query.progress if self.query is not None else Progress()
        return {
            "state": self.state,
            "error": self.error,
            "columns": self.columns,
            "batch_id": progress.batch_id,
            "batch_ms": progress.batch_ms,
            "watermark": progress.watermark,
            "late": progress.late,
            "positions": progress.positions,
        }


def stop_all(runners: list[Runner], timeout_s: float) -> None:
    """Stop every query, side by side, since each waits for its output under way."""
    queries = [runner.query for runner in runners if runner.query is not None]
    threads = [threading.Thread(target=query.stop, args=(timeout_s,)) for query in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
