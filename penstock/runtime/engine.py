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
from penstock.analyze.closing import closings
from penstock.analyze.fitting import row_problems
from penstock.analyze.frames import Reader, build, changes_batch, changes_schema, columns_schema, inputs, key_problems
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.pruning import prune
from penstock.analyze.query import AfterCommit, Query
from penstock.analyze.runner import Runner, stop_all
from penstock.analyze.session import carry, java_process, start_session
from penstock.analyze.sifting import sifter
from penstock.analyze.source import read_stream, register
from penstock.app import App
from penstock.columns import json_rows
from penstock.contracts import Output, StreamSpec
from penstock.cursor import source_positions
from penstock.declared import Handler, Keeper, View
from penstock.errors import EXIT_IO, EXIT_JAVA, DeclarationError, HandlerError, PenstockError, SyncFailed, ViewError
from penstock.files import sync_filesystem, write_atomic, write_status
from penstock.graph import order, read_streams, read_views
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.rows import to_micros
from penstock.runtime.changes import Changes, Pulse
from penstock.runtime.child import answer_call, on_end_of_parent, stop_on_signals
from penstock.runtime.directory import DataDirectory
from penstock.runtime.handlers import HandlerSink, Kept, open_kept, open_ledger, open_table, plan, source
from penstock.runtime.late import LateEvents, timed_streams
from penstock.runtime.loading import code_of, load
from penstock.runtime.renewal import Renewal
from penstock.runtime.retention import floor, retention
from penstock.schema import event_schema
from penstock.settings import Settings, from_environment
from penstock.store import ViewTable

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
        self.published: dict[str, Changes] = {}
        self.pulse = Pulse(app, self.published, self.own_log)
        self.tables: dict[str, ViewTable] = {}
        self.sinks: dict[str, HandlerSink] = {}
        self.late: dict[str, LateEvents] = {}
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
        self.pulse.start()
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
        table = self.tables[view.name] = open_table(view, self.directory, self.settings)
        self.late[view.name] = LateEvents(self.app, view, self.directory, self.own_log)
        return Query(view, self.directory.checkpoint(view.name), table, self.epoch, self._publisher(view))

    def _handler_query(self, handler: Handler) -> Query:
        """Open a handler's ledger, and make the streams that it fills."""
        self._require_views(handler)
        made = self.plans[handler.name]
        ledger = open_ledger(handler, made, self.directory, self.own_log)
        kept = self._kept(handler) if isinstance(handler, Keeper) else None
        table = kept.table if kept is not None else None
        Renewal(self.app, handler, ledger, self.directory, table).run(self.own_log, self.settings, self.code)
        for output in handler.outputs:
            self.own_log.declare(StreamSpec(output.name, event_schema(output.event), made.shards))
        sink = self.sinks[handler.name] = HandlerSink(handler, made, ledger, self.own_log, kept)
        return Query(handler, self.directory.checkpoint(handler.name), sink, self.epoch)

    def _require_views(self, handler: Handler) -> None:
        """Refuse to start a handler before the views that it reads, or if they have not the columns that it needs."""
        for view in handler.rows:
            if view not in self.changes:
                raise HandlerError(
                    f"{handler.where}: handler {handler.name} reads {view}, which has not started", handler=handler.name
                )
            for problem in row_problems(self.app, view, self.changes[view]):
                if problem.where == handler.where:
                    raise DeclarationError(str(problem))

    def _kept(self, keeper: Keeper) -> Kept:
        """Open the view that a handler keeps, with the stream of its changes if another view reads it."""
        kept = open_kept(keeper, self.directory, self.settings, self.own_log, read=keeper.name in read_views(self.app))
        self.tables[keeper.name] = kept.table
        if kept.changes is not None:
            self.changes[keeper.name], self.published[keeper.name] = kept.changes.schema, kept.changes
        return kept

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
        timed = view.time == "ingest" or bool(timed_streams(self.app, view))

        def read(stream: str, schema: StructType) -> DataFrame:
            rows_max = self.settings.batch_events_max
            return read_stream(spark, stream, schema, rows_max=rows_max, wait_s=wait_s, ordered=timed)

        views = {each.name for each in self.app.views}
        missing = [name for name in view.reads if name not in self.changes and name in views]
        if missing:
            raise ViewError(f"{view.where}: view {view.name} reads {missing[0]}, which has not started", view=view.name)
        times = frozenset(filter(None, (stream.event.__time_field__ for stream in self.app.streams)))
        times |= {"_ingest_time"} if view.time == "ingest" else set()

        def make(reader: Reader) -> DataFrame:
            return build(spark, view, inputs(self.app, view, reader, self.changes))

        frame = prune(spark, make, read, times)
        problems = key_problems(view, frame)
        if problems:
            raise ViewError(f"{view.where}: view {view.name}: {problems[0]}", view=view.name)
        self.tables[view.name].describe(columns_schema(frame))
        late = self.late[view.name]
        late.closings = closings(frame)
        late.sift = sifter(spark, make) if late.stream is not None and late.closings.late else None
        if view.name in read_views(self.app):
            self.changes[view.name] = changes_schema(frame)
            self.published[view.name] = Changes(view.name, self.changes[view.name], self.own_log)
        return frame

    def _caught_up(self, node: View | Handler) -> bool:
        """Whether it has read all that its streams have, as after a restart in which nothing came."""
        query = self.runners[node.name].query
        last = query.sink.last() if query is not None else None
        read = source_positions(last.end) if last is not None else {}
        names = read_streams(self.app, node)
        return bool(read) and all(read.get(name) == self.own_log.ends(name) for name in names)

    def _publisher(self, view: View) -> AfterCommit:
        """Appends what came too late to VIEW.late, and what a view wrote to VIEW.changes, after the ledger has it.

        A crash in between runs the batch again over the same range, and the append is idempotent by batch id: each
        batch is in the stream once.
        """
        late = self.late[view.name]
        if view.name not in read_views(self.app):
            return late

        def publish(output: Output) -> None:
            late(output)
            table = output.table
            if table.num_rows == 0:
                return
            keys = [key.decode() for key in json_rows(table, view.key)]
            batch = changes_batch(table, self.changes[view.name], keys, datetime.now(UTC))
            self.published[view.name].append(batch, producer=view.name, sequence=output.batch_id)

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
            late = [stream.name for name, stream in self.app.late.items() if name in self.late]
            for stream in (*(f"{name}.changes" for name in self.changes), *handled, *late):
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
            "views": {name: told[name] | self._closings(name) for name in told if name not in self.plans},
            "handlers": {name: told[name] | self._figures(name) for name in told if name in self.plans},
            "changed": {name: to_micros(each.written) for name, each in self.published.items() if each.written},
        }
        write_status(self.directory.engine_status, msgspec.json.encode(status))

    def _closings(self, view: str) -> dict[str, Any]:
        return self.late[view].describe() if view in self.late else {}

    def _figures(self, handler: str) -> dict[str, Any]:
        return self.sinks[handler].describe() if handler in self.sinks else {}

    def _stop(self, status: int) -> None:
        """Finish the output under way; then the checkpoints are whole, and marked so once they are durable."""
        stop_all(list(self.runners.values()), self.settings.drain_s / 2)
        self.pulse.stop()
        for sink in self.sinks.values():
            sink.close()
        for name, table in self.tables.items():
            if name not in self.sinks:
                table.close()
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
