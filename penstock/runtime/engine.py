"""The engine process: the Spark driver, and the streaming query of every view and handler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.analyze.archive import start_making
from penstock.analyze.deriving import Derived
from penstock.analyze.fitting import row_problems
from penstock.analyze.frames import node_error, spark_schema
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.planning import plan_print
from penstock.analyze.query import AfterCommit, Query
from penstock.analyze.runner import Runner, stop_all
from penstock.analyze.session import carry, java_process, start_session
from penstock.analyze.source import register
from penstock.analyze.streaming import IDLE_WAIT_S, stream_view
from penstock.app import App
from penstock.contracts import Output, StreamSpec
from penstock.cursor import source_positions
from penstock.declared import CHANGES_SUFFIX, Handler, Keeper, View
from penstock.errors import EXIT_IO, EXIT_JAVA, DeclarationError, HandlerError, PenstockError, SyncFailed, ViewError
from penstock.event_shape import event_spec
from penstock.files import sync_filesystem, write_atomic, write_status
from penstock.fingerprints.stored import PlanPrint, ViewPrint
from penstock.fingerprints.verdicts import Kind
from penstock.graph import change_streams, derived, derived_levels, is_derived, log_inputs, order
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.rows import to_micros
from penstock.runtime import logs
from penstock.runtime.changes import ChangePublisher, Pulse
from penstock.runtime.child import answer_call, on_end_of_parent, stop_on_signals
from penstock.runtime.comparison import Comparison
from penstock.runtime.derivation import Derivation, DerivedView, Root
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import carried_classes, event_classes, stored_origins
from penstock.runtime.handlers import HandlerSink, Kept, open_ledger, plan, source
from penstock.runtime.late import LateEvents
from penstock.runtime.loading import code_of, load
from penstock.runtime.renewal import Renewal
from penstock.runtime.retention import floor, last_entry, retention
from penstock.runtime.swap import Swap
from penstock.runtime.views import open_kept, open_reader, open_table
from penstock.schema import event_schema, shown
from penstock.settings import Settings, from_environment
from penstock.store import ViewTable, rebuilt

STEP_S, EAGER_STEP_S = 0.5, 0.1
STATUS_S = 1.0
ARCHIVE_AFTER_S, ARCHIVE_NICE = 60.0, 19
"""An app that has run so long will be started again: then the archive of classes is worth its making, by a
process that gives way to all others."""
UNKNOWN: dict[str, Any] = dict.fromkeys(("batch_id", "batch_ms", "watermark")) | {"late": 0, "positions": "[]"}
"""The status of a derived view that could not be opened."""

log = logging.getLogger("penstock.engine")


class Engine:
    """All views and handlers of one app, which `target` names. Single-threaded but for Spark's callbacks, which reach
    `Query` only."""

    def __init__(self, app: App, target: str, directory: DataDirectory, settings: Settings, epoch: int) -> None:
        self.app = app
        self.code = code_of(target)
        self.comparison = Comparison(app, target, directory, settings)
        self.plans = {each.name: plan(app, each, target, directory, settings) for each in app.handlers}
        self.directory = directory
        self.settings = settings
        self.epoch = epoch
        self.own_log = EmbeddedLog(
            directory.streams, disk_reserve_bytes=settings.disk_reserve_bytes, classes=event_classes(app)
        )
        self.opener = EmbeddedLogOpener(directory.streams, carried_classes(app, target))
        self.columns: dict[str, pa.Schema] = {}
        self.publishers: dict[str, ChangePublisher] = {}
        self.pulse = Pulse(app, self.publishers, self.own_log)
        self.derivation = self._derivation()
        self.refused: dict[str, str] = {}
        self.waiting: set[str] = set()
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
        self._say("starting", "starting Spark, which takes some seconds")
        directory, settings = self.directory, self.settings
        self.spark = start_session(self.app.name, settings, logs=directory.logs, warehouse=directory.run / "warehouse")
        log.info("Spark %s is up", self.spark.version)
        self._begun = True
        self.comparison.record_streams()
        clean = directory.clean_mark.exists()
        directory.clean_mark.unlink(missing_ok=True)
        nodes = order(self.app)
        self._say("starting", f"Spark is up; starting {len(nodes)} views and handlers")
        for node in nodes:
            if isinstance(node, View) and is_derived(self.app, node):
                self._add_derived(node)
            else:
                self._start(node, clean)
            if self.stopping.is_set():
                break
        self.pulse.start()
        self.derivation.start()
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

    def _derivation(self) -> Derivation:
        views = derived(self.app)
        names = {view.name for view in views}
        read = {name for view in views for name in view.reads if name not in names}
        found = [view for view in self.app.views if view.name in read]
        roots = [Root(view, partial(open_reader, view, self.directory, self.settings)) for view in found]
        return Derivation(derived_levels(self.app), roots, self._has_failed)

    def _has_failed(self, name: str) -> bool:
        return name in self.runners and self.runners[name].state == "failed"

    def _add_derived(self, view: View) -> None:
        """Open a derived view and hand it to the thread that computes it, or note why it cannot be computed."""
        waits = not all(name in self.columns for name in view.reads)
        (self.waiting.add if waits else self.waiting.discard)(view.name)
        try:
            self._require_started(view, view.reads)
            assert self.spark is not None
            self._compare(view, self._plan(view))
            query = Derived(self.spark, view)
            columns = query.columns([self.columns[name] for name in view.reads])
            table = self.tables[view.name] = open_table(view, self.directory, self.settings)
            table.describe(columns)
            publisher = self._publisher(view, columns)
            self.comparison.record(view)
        except Exception as error:
            shown = error if isinstance(error, PenstockError) else node_error(view, error)
            log.error("%s failed: %s", view.name, shown)
            self.refused[view.name] = str(shown)
            return
        self.refused.pop(view.name, None)
        longest_s = self.settings.restart_backoff_max_s
        made = DerivedView(view, query, table, self.epoch, publisher, longest_s=longest_s, by_row=query.by_row)
        self.derivation.add(made)

    def _add_waiting(self) -> None:
        """Open derived views that had to wait for what they read, once all of that has started."""
        for view in derived(self.app) if self.waiting else ():
            if view.name in self.waiting and all(name in self.columns for name in view.reads):
                self._add_derived(view)

    def _require_started(self, view: View, names: Iterable[str]) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise ViewError(
                f"{view.where}: view {view.name}: it reads {missing[0]}, which has not started", view=view.name
            )

    def _publisher(self, view: View, columns: pa.Schema) -> ChangePublisher | None:
        """The columns of a view are known: note them, and open its stream of changes if someone reads that, or has."""
        self.columns[view.name] = columns
        if view.name not in change_streams(self.app) and not self.own_log.has(view.changes.name):
            return None
        reader = open_reader(view, self.directory, self.settings)
        assert reader is not None
        if view.name in self.publishers:
            self.publishers[view.name].close()
        made = self.publishers[view.name] = ChangePublisher(view, columns, reader, self.own_log)
        made.publish()
        if any(self._is_new(node) for node in order(self.app) if view.changes.name in log_inputs(self.app, node)):
            made.welcome()
        return made

    def _is_new(self, node: View | Handler) -> bool:
        """Whether a view or handler has never run."""
        return last_entry(self.directory, node) is None

    def _view_query(self, view: View) -> Query:
        """Take over what was rebuilt of a view, and open its files. One that is damaged is that view's failure and no
        other's."""
        assert self.spark is not None
        views = {each.changes.name for each in self.app.views}
        self._require_started(view, (name.removesuffix(CHANGES_SUFFIX) for name in view.reads if name in views))
        swap = Swap(self.app, self.directory, self.settings, self.epoch, self.opener)
        record = partial(self.comparison.record_view, view.name)
        swap.run(self.spark, view, self.own_log, partial(self._fits, view), record)
        table = self.tables[view.name] = open_table(view, self.directory, self.settings)
        checkpoint, known = self.directory.checkpoint(view.name), rebuilt(self.directory.view_file(view.name))
        before = known.batches if known is not None else 0
        self.late[view.name] = LateEvents(self.app, view, checkpoint, self.own_log, self.own_log, batches_before=before)
        return Query(view, checkpoint, table, self.epoch, self._after_commit(view))

    def _fits(self, view: View, made_with: ViewPrint) -> bool:
        """Whether a view that was rebuilt is what the code as it is now would make."""
        return self.comparison.is_made_by(view, made_with, self._plan(view))

    def _handler_query(self, handler: Handler) -> Query:
        """Open a handler's ledger, and make the streams that it fills."""
        self._require_views(handler)
        self._compare(handler)
        made = self.plans[handler.name]
        ledger = open_ledger(handler, made, self.directory, self.own_log)
        kept = self._kept(handler) if isinstance(handler, Keeper) else None
        table = kept.table if kept is not None else None
        renewal = Renewal(self.app, handler, ledger, self.directory, table)
        renewal.run(self.own_log, self.settings, self.code, reread=self.comparison.rereads(handler))
        if kept is not None:
            kept.committed()  # a rebuild changes rows without a batch
        self.comparison.record(handler)
        for output in handler.outputs:
            self.own_log.declare(StreamSpec.of(output.name, event_spec(output.event), made.shards))
        sink = self.sinks[handler.name] = HandlerSink(handler, made, ledger, self.own_log, kept)
        return Query(handler, self.directory.checkpoint(handler.name), sink, self.epoch)

    def _require_views(self, handler: Handler) -> None:
        """Refuse to start a handler before the views that it reads, or if they have not the columns that it needs."""
        for view in handler.rows:
            if view not in self.columns:
                raise HandlerError(
                    f"{handler.where}: handler {handler.name}: it reads {view}, which has not started",
                    handler=handler.name,
                )
            for problem in row_problems(self.app, view, self.columns[view]):
                if problem.where == handler.where:
                    raise DeclarationError(str(problem))

    def _kept(self, keeper: Keeper) -> Kept:
        """Open the view that a handler keeps, with the stream of its changes if another view reads that."""
        table = self.tables[keeper.name] = open_kept(keeper, self.directory, self.settings)
        publisher = self._publisher(keeper.view, shown(event_schema(keeper.row)))

        def committed() -> None:
            if publisher is not None:
                publisher.publish()
            self.derivation.wake()

        return Kept(table, committed)

    def _handler_frame(self, handler: Handler) -> DataFrame:
        """The handler as a DataFrame. Its source is registered for this query alone, as is a view's: Spark puts words
        into a map that belongs to a registered source, and two queries that start at once can spoil it for good."""
        assert self.spark is not None
        made = source(self.plans[handler.name], self.directory, self.settings, IDLE_WAIT_S)
        register_handlers(self.spark, {handler.name: made})
        return handler_frame(self.spark, handler.name)

    def _frame(self, view: View) -> DataFrame:
        """The view's DataFrame on the log. A view whose changes others read gets its stream of them here."""
        assert self.spark is not None
        self._compare(view, self._plan(view))
        rows_max = self.settings.batch_events_max
        built = stream_view(self.spark, self.app, view, self.columns, self.opener, rows_max=rows_max)
        self.comparison.record(view)
        self.tables[view.name].describe(built.columns)
        self._publisher(view, built.columns)
        self.late[view.name].fit(built)
        return built.frame

    def _plan(self, view: View) -> Callable[[], PlanPrint]:
        """Return a function that fingerprints the plan of a view."""
        spark = self.spark
        assert spark is not None

        def plan() -> PlanPrint:
            register(spark, self.opener)
            origins = stored_origins(self.app, self.directory)
            return plan_print(spark, self.app, view, self.columns, origins)[0]

        return plan

    def _compare(self, node: View | Handler, plan: Callable[[], PlanPrint] | None = None) -> None:
        """Refuse to go on with data that another declaration has made."""
        verdict = self.comparison.require(node, plan)
        if verdict.kind in (Kind.compatible, Kind.adopted):
            log.info("%s", verdict)

    def _caught_up(self, node: View | Handler) -> bool:
        """Whether it has read all that its streams have, as after a restart in which nothing came."""
        query = self.runners[node.name].query
        last = query.sink.last() if query is not None else None
        read = source_positions(last.end) if last is not None else {}
        names = log_inputs(self.app, node)
        return bool(read) and all(read.get(name) == self.own_log.ends(name) for name in names)

    def _after_commit(self, view: View) -> AfterCommit:
        """Append what came too late to VIEW.late, and what changed to VIEW.changes, after the ledger has the batch.

        A crash in between runs the batch again over the same range, and both are idempotent: the first by batch id, the
        second by version.
        """
        late = self.late[view.name]

        def after(output: Output) -> None:
            late(output)
            if view.name in self.publishers:
                self.publishers[view.name].publish()
            self.derivation.wake()

        return after

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
            if self.derivation.fatal is not None:
                log.critical("%s", self.derivation.fatal)
                return EXIT_IO
            self._add_waiting()
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
        states = [runner.state for runner in self.runners.values()]
        states += [view.state for view in self.derivation.views.values()]
        return "starting" not in states

    def _upkeep(self) -> bool:
        """Expiry of rows, retention and merging of our own streams. False if the disk failed to take a write."""
        try:
            for name, table in self.tables.items():
                if table.expire() and name in self.publishers:
                    self.publishers[name].publish()
            self.derivation.wake()
            handled = [output.name for sink in self.sinks.values() for output in sink.handler.outputs]
            late = [stream.name for name, stream in self.app.late.items() if name in self.late]
            for stream in (*(each.name for each in self.publishers.values()), *handled, *late):
                needed = floor(self.app, self.directory, self.own_log, stream)
                self.own_log.trim(stream, retention(None, self.settings, needed))
                self.own_log.merge(stream)
        except SyncFailed as error:
            log.critical("%s", error)
            return False
        except PenstockError as error:
            log.error("upkeep: %s", error)
        return True

    def _say(self, state: str, doing: str = "") -> None:
        told = {name: runner.status() for name, runner in self.runners.items()}
        told |= {name: self._derived_status(name) for name in (*self.derivation.views, *self.refused)}
        status: dict[str, Any] = {
            "epoch": self.epoch,
            "state": state,
            "doing": doing,
            "views": {name: told[name] | self._closings(name) for name in told if name not in self.plans},
            "handlers": {name: told[name] | self._figures(name) for name in told if name in self.plans},
            "changed": {name: to_micros(each.written) for name, each in self.publishers.items() if each.written},
        }
        write_status(self.directory.engine_status, msgspec.json.encode(status))

    def _derived_status(self, name: str) -> dict[str, Any]:
        columns = spark_schema(self.columns[name]).fields if name in self.columns else []
        listed = {"columns": [{"name": each.name, "type": each.dataType.simpleString()} for each in columns]}
        if name in self.refused:
            return UNKNOWN | listed | {"state": "failed", "error": self.refused[name]}
        return self.derivation.views[name].describe() | listed

    def _closings(self, view: str) -> dict[str, Any]:
        return self.late[view].describe() if view in self.late else {}

    def _figures(self, handler: str) -> dict[str, Any]:
        return self.sinks[handler].describe() if handler in self.sinks else {}

    def _stop(self, status: int) -> None:
        """Finish the output under way; then the checkpoints are whole, and marked so once they are durable."""
        stop_all(list(self.runners.values()), self.settings.drain_s / 2)
        self.derivation.stop()
        self.pulse.stop()
        for publisher in self.publishers.values():
            publisher.close()
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
    logs.configure()
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
