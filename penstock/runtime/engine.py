"""The engine process: the Spark driver, and the streaming query of every view and handler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.archive import start_making
from penstock.analyze.frames import build, changes_batch, changes_schema, columns_schema, inputs, key_problems
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.pruning import prune
from penstock.analyze.query import AfterCommit, Query
from penstock.analyze.runner import Runner, stop_all
from penstock.analyze.session import carry, java_process, start_session
from penstock.analyze.source import read_stream, register
from penstock.app import App, Handler, View
from penstock.columns import json_rows
from penstock.contracts import StreamSpec
from penstock.cursor import source_positions
from penstock.errors import EXIT_IO, EXIT_JAVA, PenstockError, SyncFailed, ViewError
from penstock.files import sync_filesystem, write_atomic, write_status
from penstock.graph import order, read_views
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.child import answer_call, on_end_of_parent, stop_on_signals
from penstock.runtime.clock import WallClock
from penstock.runtime.directory import DataDirectory
from penstock.runtime.handlers import HandlerSink, open_ledger, plan, source
from penstock.runtime.loading import code_of, load
from penstock.runtime.renewal import Renewal
from penstock.runtime.retention import floor, retention
from penstock.schema import event_schema
from penstock.settings import Settings, from_environment
from penstock.store import ViewSpec, ViewTable

STEP_S, EAGER_STEP_S = 0.5, 0.1
STATUS_S = 1.0
ARCHIVE_AFTER_S, ARCHIVE_NICE = 60.0, 19
"""An app that has run so long will be started again: then the archive of classes is worth its making, by a
process that gives way to all others."""
IDLE_WAIT_S = 1.0
SHARED_WAIT_S = 0.02
"""How long a poll of the log may block: long for a query with one input, short if it has others to look at."""

log = logging.getLogger("penstock.engine")


class Engine:
    """All views and handlers of one app, which `target` names. Single-threaded but for Spark's callbacks, which reach
    `Query` only."""

    def __init__(self, app: App, target: str, directory: DataDirectory, settings: Settings, epoch: int) -> None:
        self.app = app
        self.code = code_of(target)
        self.plans = {each.name: plan(app, each, target, directory, settings) for each in app.handlers}
        self.directory = directory
        self.settings = settings
        self.epoch = epoch
        self.own_log = EmbeddedLog(directory.streams, disk_reserve_bytes=settings.disk_reserve_bytes)
        self.changes: dict[str, pa.Schema] = {}
        self.tables: dict[str, ViewTable] = {}
        self.sinks: dict[str, HandlerSink] = {}
        self.runners: dict[str, Runner] = {}
        self.spark: SparkSession | None = None
        self.stopping = threading.Event()
        self._begun = False
        self._archive_at = time.monotonic() + ARCHIVE_AFTER_S if settings.class_archive else float("inf")
        self._archiving: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Begin to stop. Before the first query there is nothing to finish, and Spark's start cannot be broken off."""
        self.stopping.set()
        if not self._begun:
            os._exit(0)

    def run(self) -> int:
        """Start everything, look after it until told to stop, end in good order. Returns the exit status."""
        self._say("starting")
        directory, settings = self.directory, self.settings
        self.spark = start_session(self.app.name, settings, logs=directory.logs, warehouse=directory.run / "warehouse")
        log.info("Spark %s is up", self.spark.version)
        self._begun = True
        clean = directory.clean_mark.exists()
        directory.clean_mark.unlink(missing_ok=True)
        for node in order(self.app):
            self._start(node, clean)
            if self.stopping.is_set():
                break
        status = self._look_after(java_process(self.spark))
        if self._archiving is not None:
            self._archiving.kill()
        if status != EXIT_JAVA:
            self._stop(status)
        return status

    def _start(self, node: View | Handler, clean: bool) -> None:
        runner = Runner(
            node,
            lambda: self._handler_query(node) if isinstance(node, Handler) else self._view_query(node),
            lambda: self._handler_frame(node) if isinstance(node, Handler) else self._frame(node),
            lambda: self._caught_up(node),
            trigger_ms=self.settings.trigger_ms,
            longest_s=self.settings.restart_backoff_max_s,
        )
        self.runners[node.name] = runner
        log.info("%s: starting", node.name)
        for dropped in runner.start(clean=clean):
            log.warning("%s: after an unclean end, dropped %s to have it made again", node.name, dropped)

    def _view_query(self, view: View) -> Query:
        """Open a view's files. One that is damaged is that view's failure and no other's."""
        chosen = self.settings
        spec = ViewSpec(view.name, view.key, view.keep, view.top, view.by, chosen.changes_kept, chosen.changes_bytes)
        table = ViewTable(self.directory.view_file(view.name), spec, clock=WallClock())
        self.tables[view.name] = table
        return Query(view, self.directory.checkpoint(view.name), table, self.epoch, self._publisher(view))

    def _handler_query(self, handler: Handler) -> Query:
        """Open a handler's ledger, and make the streams that it fills."""
        made = self.plans[handler.name]
        ledger = open_ledger(handler, made, self.directory, self.own_log)
        Renewal(self.app, handler, ledger, self.directory).run(self.own_log, self.settings, self.code)
        for output in handler.outputs:
            self.own_log.declare(StreamSpec(output.name, event_schema(output.event), made.shards))
        sink = self.sinks[handler.name] = HandlerSink(handler, made, ledger, self.own_log)
        return Query(handler, self.directory.checkpoint(handler.name), sink, self.epoch)

    def _handler_frame(self, handler: Handler) -> DataFrame:
        """The handler as a DataFrame. Its source is registered for this query alone, as is a view's: Spark puts words
        into a map that belongs to a registered source, and two queries that start at once can spoil it for good."""
        assert self.spark is not None
        made = source(self.plans[handler.name], self.directory, self.settings, IDLE_WAIT_S)
        register_handlers(self.spark, {handler.name: made})
        return handler_frame(self.spark, handler.name)

    def _frame(self, view: View) -> DataFrame:
        """The view's DataFrame on the log. Views that others read get their stream of changes here."""
        assert self.spark is not None
        register(self.spark, EmbeddedLogOpener(self.directory.streams))
        spark, wait_s = self.spark, IDLE_WAIT_S if len(view.reads) == 1 else SHARED_WAIT_S

        def read(stream: str, schema: StructType) -> DataFrame:
            return read_stream(spark, stream, schema, rows_max=self.settings.batch_events_max, wait_s=wait_s)

        views = {each.name for each in self.app.views}
        missing = [name for name in view.reads if name not in self.changes and name in views]
        if missing:
            raise ViewError(f"{view.where}: view {view.name} reads {missing[0]}, which has not started", view=view.name)
        times = frozenset(filter(None, (stream.event.__time_field__ for stream in self.app.streams)))
        frame = prune(
            spark, lambda reader: build(spark, view, inputs(self.app, view, reader, self.changes)), read, times
        )
        problems = key_problems(view, frame)
        if problems:
            raise ViewError(f"{view.where}: view {view.name}: {problems[0]}", view=view.name)
        self.tables[view.name].describe(columns_schema(frame))
        if view.name in read_views(self.app):
            self.changes[view.name] = changes_schema(frame)
            self.own_log.declare(StreamSpec(f"{view.name}.changes", self.changes[view.name], 1))
        return frame

    def _caught_up(self, node: View | Handler) -> bool:
        """Whether it has read all that its streams have, as after a restart in which nothing came."""
        query = self.runners[node.name].query
        last = query.sink.last() if query is not None else None
        read = source_positions(last.end) if last is not None else {}
        declared = {stream.name for stream in (*self.app.streams, *self.app.outputs)}
        names = [name if name in declared else f"{name}.changes" for name in node.reads]
        return bool(read) and all(read.get(name) == self.own_log.ends(name) for name in names)

    def _publisher(self, view: View) -> AfterCommit | None:
        """Appends what a view wrote to VIEW.changes, after the ledger has it.

        A crash in between runs the batch again over the same range, and the append is idempotent by batch id: each
        batch is in the stream once.
        """
        if view.name not in read_views(self.app):
            return None

        def publish(batch_id: int, table: pa.Table) -> None:
            if table.num_rows == 0:
                return
            keys = [key.decode() for key in json_rows(table, view.key)]
            batch = changes_batch(table, self.changes[view.name], keys, datetime.now(UTC))
            self.own_log.append(f"{view.name}.changes", 0, batch, producer=view.name, sequence=batch_id)

        return publish

    def _look_after(self, java: subprocess.Popen[bytes]) -> int:
        """Step every query, tell the status, keep things up, until told to stop. Returns the exit status.

        Without Java nothing can go on, whatever a query may say of it: one that is about to start takes it for a
        failure of its own, and would be tried again for ever.
        """
        said, said_at, upkeep_at = "", 0.0, time.monotonic() + self.settings.upkeep_s
        while not self.stopping.wait(STEP_S if said == "ready" else EAGER_STEP_S):
            if java.poll() is not None:
                log.critical("Spark's Java process has ended with status %s", java.returncode)
                return EXIT_JAVA
            for runner in self.runners.values():
                runner.step()
                if runner.query is not None and isinstance(runner.query.failure, SyncFailed):
                    return EXIT_IO
            now, state = time.monotonic(), "ready" if self._settled() else "starting"
            if state != said or now >= said_at + STATUS_S:
                self._say(state)
                said, said_at = state, now
            if now >= self._archive_at:
                self._archive_at, self._archiving = float("inf"), start_making(nice=ARCHIVE_NICE)
            if now >= upkeep_at:
                upkeep_at = now + self.settings.upkeep_s
                if not self._upkeep():
                    return EXIT_IO
        return 0

    def _settled(self) -> bool:
        return all(runner.state != "starting" for runner in self.runners.values())

    def _upkeep(self) -> bool:
        """Expiry of rows, retention and merging of our own streams. False if the disk failed to take a write."""
        try:
            for table in self.tables.values():
                table.expire()
            handled = [output.name for sink in self.sinks.values() for output in sink.handler.outputs]
            for stream in (*(f"{name}.changes" for name in self.changes), *handled):
                needed = floor(self.app, self.directory, self.own_log, stream)
                self.own_log.trim(stream, retention(None, self.settings, needed))
                self.own_log.merge(stream)
        except SyncFailed as error:
            log.critical("%s", error)
            return False
        except PenstockError as error:
            log.error("upkeep: %s", error)
        return True

    def _say(self, state: str) -> None:
        told = {name: runner.status() for name, runner in self.runners.items()}
        status: dict[str, Any] = {
            "epoch": self.epoch,
            "state": state,
            "views": {name: each for name, each in told.items() if name not in self.plans},
            "handlers": {name: told[name] | self._figures(name) for name in told if name in self.plans},
        }
        write_status(self.directory.engine_status, msgspec.json.encode(status))

    def _figures(self, handler: str) -> dict[str, Any]:
        return self.sinks[handler].describe() if handler in self.sinks else {}

    def _stop(self, status: int) -> None:
        """Finish the output under way; then the checkpoints are whole, and marked so once they are durable."""
        stop_all(list(self.runners.values()), self.settings.drain_s / 2)
        for table in self.tables.values():
            table.close()
        for sink in self.sinks.values():
            sink.ledger.close()
        self.own_log.close()
        if status == 0:
            sync_filesystem(self.directory.checkpoints)
            write_atomic(self.directory.clean_mark, b"", durable=True)
        self._say("stopped")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    child = answer_call()
    loaded = load(child.call.target)
    carry(loaded.module, loaded.file)
    engine = Engine(loaded.app, child.call.target, child.directory, from_environment(), child.call.epoch)
    stop_on_signals(engine.stop)
    on_end_of_parent(child.call, engine.stop)
    return engine.run()


if __name__ == "__main__":
    sys.exit(main())
