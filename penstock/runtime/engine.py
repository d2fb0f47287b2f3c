"""The engine process: the Spark driver, and the streaming query of every view and handler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.analyze.archive import start_archiving
from penstock.analyze.deriving import Derived
from penstock.analyze.frames import node_error, spark_schema
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.plan_print import plan_print
from penstock.analyze.runner import Runner, stop_all
from penstock.analyze.session import carry, java_process, start_session
from penstock.analyze.source import register
from penstock.analyze.streaming import IDLE_WAIT_S, stream_view
from penstock.analyze.streaming_query import AfterCommit, SparkQuery
from penstock.app.app import App
from penstock.app.declared import CHANGES_SUFFIX, Handler, View, ViewHandler
from penstock.app.fingerprints.stored import PlanPrint, ViewPrint
from penstock.app.fingerprints.verdicts import VerdictKind
from penstock.app.graph import change_streams, derived, derived_levels, is_derived, log_inputs, order
from penstock.app.loading import load
from penstock.control import (
    DerivedViewStatus,
    EngineState,
    EngineStatus,
    HandlerStatus,
    NodeStatus,
    StatusColumn,
    ViewStatus,
)
from penstock.core.contracts import LogReader, Output, StreamSpec
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import (
    EXIT_IO,
    EXIT_JAVA,
    DeclarationError,
    HandlerError,
    PenstockError,
    SyncFailed,
    ViewError,
)
from penstock.core.event_shape import event_spec
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings, from_environment
from penstock.core.times import to_micros
from penstock.handlers.fitting import row_problems
from penstock.runtime import logs
from penstock.runtime.changes import ChangePublisher, Pulse
from penstock.runtime.child import answer_call, on_end_of_parent, stop_on_signals
from penstock.runtime.comparison import Comparison
from penstock.runtime.derivation import Derivation, DerivedView, Root
from penstock.runtime.events import carried_classes, event_classes, stored_origins
from penstock.runtime.handlers import HandlerSink, open_handler, plan, source
from penstock.runtime.late import LateEvents
from penstock.runtime.retention import floor, last_entry, retention
from penstock.runtime.state_replacement import StateReplacer
from penstock.runtime.storage import Storage
from penstock.runtime.swap import Swap
from penstock.runtime.views import open_kept, open_reader, open_table
from penstock.store import StoredView

STEP_S, EAGER_STEP_S = 0.5, 0.1
STATUS_S = 1.0
ARCHIVE_AFTER_S, ARCHIVE_NICE = 60.0, 19
"""Seconds after which the engine starts a process that creates the class archive, and the niceness of that process,
which is the lowest priority. An app that has run for this long will probably be started again, so the archive is worth
creating."""

log = logging.getLogger("penstock.engine")


class Engine:
    """Runs all views and handlers of the app that `target` names. Single-threaded except for Spark's callbacks, which
    only use `SparkQuery`."""

    def __init__(self, app: App, target: str, storage: Storage, settings: Settings, epoch: int) -> None:
        self.app = app
        self.comparison = Comparison(app, target, storage, settings)
        self.plans = {handler.name: plan(app, handler, target, storage, settings) for handler in app.handlers}
        self.storage = storage
        self.channel = storage.control()
        self.settings = settings
        self.epoch = epoch
        self.own_log = storage.log(event_classes(app), disk_reserve_bytes=settings.disk_reserve_bytes)
        self.opener = storage.log_opener(carried_classes(app, target))
        self.columns: dict[str, pa.Schema] = {}
        self.publishers: dict[str, ChangePublisher] = {}
        self.pulse = Pulse(app, self.publishers, self.own_log)
        self.derivation = self._derivation()
        self.refused: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.tables: dict[str, StoredView] = {}
        self.sinks: dict[str, HandlerSink] = {}
        self.late: dict[str, LateEvents] = {}
        self.runners: dict[str, Runner] = {}
        self.spark: SparkSession | None = None
        self.stopping = threading.Event()
        self._begun = False
        self._archive_at = time.monotonic() + ARCHIVE_AFTER_S if settings.class_archive else float("inf")
        self._archiving: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Request a stop of the engine. If no query has started yet, the process exits at once, because there is
        nothing to finish and Spark's start cannot be interrupted."""
        self.stopping.set()
        if not self._begun:
            os._exit(0)

    def run(self) -> int:
        """Start everything, supervise it until a stop is requested, then stop cleanly. Returns the exit status."""
        self._say("starting", "starting Spark, which takes a few seconds")
        local, settings = self.storage.local, self.settings
        warehouse = local.temporary / "warehouse"
        self.spark = start_session(self.app.name, settings, logs=local.logs, warehouse=warehouse)
        log.info("Spark %s is up", self.spark.version)
        self._begun = True
        self.comparison.record_streams()
        clean = self.storage.begin_queries()
        nodes = order(self.app)
        kinds = "view or handler" if len(nodes) == 1 else "views and handlers"
        self._say("starting", f"Spark is up; starting {len(nodes)} {kinds}")
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
            log.warning("%s: after an unclean shutdown, deleted %s, which will be recomputed", node.name, dropped)

    def _derivation(self) -> Derivation:
        views = derived(self.app)
        names = {view.name for view in views}
        read = {name for view in views for name in view.reads if name not in names}
        inputs = [view for view in self.app.views if view.name in read]
        roots = [Root(view, partial(open_reader, view, self.storage, self.settings)) for view in inputs]
        return Derivation(derived_levels(self.app), roots, self._has_failed)

    def _has_failed(self, name: str) -> bool:
        return name in self.runners and self.runners[name].state == "failed"

    def _add_derived(self, view: View) -> None:
        """Open a derived view and add it to the thread that computes it, or record why it cannot be computed."""
        waits = not all(name in self.columns for name in view.reads)
        (self.waiting.add if waits else self.waiting.discard)(view.name)
        try:
            self._require_started(view, view.reads)
            assert self.spark is not None
            self._compare(view, self._plan(view))
            query = Derived(self.spark, view)
            columns = query.columns([self.columns[name] for name in view.reads])
            table = self.tables[view.name] = open_table(view, self.storage, self.settings)
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
        derived_view = DerivedView(view, query, table, self.epoch, publisher, longest_s=longest_s, by_row=query.by_row)
        self.derivation.add(derived_view)

    def _add_waiting(self) -> None:
        """Open derived views that had to wait for their inputs, once all inputs have started."""
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
        """Record a view's columns, which are now known, and open its stream of changes if something reads it or used to
        read it."""
        self.columns[view.name] = columns
        if view.name not in change_streams(self.app) and not self.own_log.has(view.changes.name):
            return None
        reader = open_reader(view, self.storage, self.settings)
        assert reader is not None
        if view.name in self.publishers:
            self.publishers[view.name].close()
        publisher = self.publishers[view.name] = ChangePublisher(view, columns, reader, self.own_log)
        self.pulse.wake()
        publisher.publish()
        if any(self._is_new(node) for node in order(self.app) if view.changes.name in log_inputs(self.app, node)):
            publisher.welcome()
        return publisher

    def _is_new(self, node: View | Handler) -> bool:
        """Return whether a view or handler has never run."""
        return last_entry(self.storage, node) is None

    def _view_query(self, view: View) -> SparkQuery:
        """Adopt a rebuilt view if there is one, and open the view's files. A damaged file causes only this view to
        fail."""
        assert self.spark is not None
        views = {view.changes.name for view in self.app.views}
        self._require_started(view, (name.removesuffix(CHANGES_SUFFIX) for name in view.reads if name in views))
        swap = Swap(self.app, self.storage, self.settings, self.epoch, self.opener)
        record = partial(self.comparison.record_view, view.name)
        swap.run(self.spark, view, self.own_log, partial(self._fits, view), record)
        table = self.tables[view.name] = open_table(view, self.storage, self.settings)
        checkpoint, known = self.storage.checkpoint(view.name), self.storage.rebuilt(view.name)
        before = known.batches if known is not None else 0
        self.late[view.name] = LateEvents(self.app, view, checkpoint, self.own_log, self.own_log, batches_before=before)
        return SparkQuery(view, checkpoint, table, self.epoch, self._after_commit(view))

    def _fits(self, view: View, made_with: ViewPrint) -> bool:
        """Return whether a rebuilt view has the data that the current code would compute."""
        return self.comparison.is_made_by(view, made_with, self._plan(view))

    def _handler_query(self, handler: Handler) -> SparkQuery:
        """Open a handler, and declare the streams that it fills."""
        self._require_views(handler)
        self._compare(handler)
        handler_plan = self.plans[handler.name]
        table = open_kept(handler, self.storage, self.settings) if isinstance(handler, ViewHandler) else None
        try:
            opened = open_handler(handler, handler_plan, self.storage, self.own_log, table)
        except BaseException:
            if table is not None:
                table.close()
            raise
        if table is not None:
            self.tables[handler.name] = table
        committed = self._rows_committed(handler) if isinstance(handler, ViewHandler) else lambda: None
        replacer = StateReplacer(self.app, handler, opened, self.storage)
        prepared = self.comparison.adoptable(handler)
        replacer.run(
            self.own_log,
            self.settings,
            prepared,
            reread=self.comparison.rereads(handler),
            record=lambda: self.comparison.record(handler),
        )
        committed()  # a rebuild changes rows without a batch
        self.comparison.record(handler)
        for output in handler.outputs:
            self.own_log.declare(StreamSpec.of(output.name, event_spec(output.event), handler_plan.shards))
        sink = HandlerSink(handler, handler_plan, self.storage, opened, committed)
        self.sinks[handler.name] = sink
        return SparkQuery(handler, self.storage.checkpoint(handler.name), sink, self.epoch)

    def _require_views(self, handler: Handler) -> None:
        """Raise an error if the views that a handler reads have not started, or lack columns that the handler needs."""
        for view in handler.rows:
            if view not in self.columns:
                raise HandlerError(
                    f"{handler.where}: handler {handler.name}: it reads {view}, which has not started",
                    handler=handler.name,
                )
            for problem in row_problems(self.app, view, self.columns[view]):
                if problem.where == handler.where:
                    raise DeclarationError(str(problem))

    def _rows_committed(self, view_handler: ViewHandler) -> Callable[[], None]:
        """Return a function that publishes the changes and wakes derived views, to be called when a handler has changed
        its view."""
        publisher = self._publisher(view_handler.view, shown(event_schema(view_handler.row)))

        def committed() -> None:
            if publisher is not None:
                publisher.publish()
            self.derivation.wake()

        return committed

    def _handler_frame(self, handler: Handler) -> DataFrame:
        """Return the handler as a DataFrame. As with a view, the source is registered for this query only. Spark writes
        to a map that belongs to a registered source, and two queries that start at the same time can corrupt that map
        permanently."""
        assert self.spark is not None
        handler_source = source(self.plans[handler.name], self.storage, self.settings, IDLE_WAIT_S)
        register_handlers(self.spark, {handler.name: handler_source})
        return handler_frame(self.spark, handler.name)

    def _frame(self, view: View) -> DataFrame:
        """Return the view's DataFrame, which reads the log. First opens the view's stream of changes if something reads
        that stream."""
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
            origins = stored_origins(self.app, self.storage)
            return plan_print(spark, self.app, view, self.columns, origins)[0]

        return plan

    def _compare(self, node: View | Handler, plan: Callable[[], PlanPrint] | None = None) -> None:
        """Raise an error if this declaration cannot continue with the data stored for the node. Log a verdict that the
        operator should know about."""
        verdict = self.comparison.require(node, plan)
        if verdict.kind in (VerdictKind.compatible, VerdictKind.adopted):
            log.info("%s", verdict)

    def _caught_up(self, node: View | Handler) -> bool:
        """Return whether a node has no batch to run, for example after a restart when there are no new events."""
        query = self.runners[node.name].query
        last = query.sink.last() if query is not None else None
        read = source_positions(last.end) if last is not None else {}
        return bool(read) and has_nothing_to_run(self.own_log, node, log_inputs(self.app, node), read)

    def _after_commit(self, view: View) -> AfterCommit:
        """Return a function that appends late events to VIEW.late and changes to VIEW.changes, to be called once the
        ledger contains a batch.

        After a crash between the commit and the appends, the batch runs again over the same range. Both appends are
        idempotent: the first by batch id, the second by version.
        """
        late = self.late[view.name]

        def after(output: Output) -> None:
            late(output)
            if view.name in self.publishers:
                self.publishers[view.name].publish()
            self.derivation.wake()

        return after

    def _look_after(self, java: subprocess.Popen[bytes]) -> int:
        """Step every query of the engine, publish the status and run the upkeep until a stop is requested. Returns the
        exit status.

        If Java has ended, nothing can continue, no matter what a query reports. The engine therefore stops; otherwise a
        query that is about to start would treat the error as its own failure and be retried forever.
        """
        said: EngineState | None = None
        said_at, upkeep_at = 0.0, time.monotonic() + self.settings.upkeep_s
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
            now = time.monotonic()
            state: EngineState = "ready" if self._settled() else "starting"
            if state != said or now >= said_at + STATUS_S:
                self._say(state)
                said, said_at = state, now
            if now >= self._archive_at:
                self._archive_at, self._archiving = float("inf"), start_archiving(nice=ARCHIVE_NICE)
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
        """Delete expired rows, and trim and merge the engine's own streams. Returns False if a write to disk failed."""
        try:
            for name, table in self.tables.items():
                if table.expire() and name in self.publishers:
                    self.publishers[name].publish()
            self.derivation.wake()
            handled = [output.name for sink in self.sinks.values() for output in sink.handler.outputs]
            late = [stream.name for name, stream in self.app.late.items() if name in self.late]
            for stream in (*(publisher.name for publisher in self.publishers.values()), *handled, *late):
                needed = floor(self.app, self.storage, self.own_log, stream)
                self.own_log.trim(stream, retention(None, self.settings, needed))
                self.own_log.merge(stream)
        except SyncFailed as error:
            log.critical("%s", error)
            return False
        except PenstockError as error:
            log.error("upkeep: %s", error)
        return True

    def _say(self, state: EngineState, doing: str = "") -> None:
        """Publish the engine's status. If the disk is full, the previous status stays and goes out of date."""
        nodes = {name: runner.status() for name, runner in self.runners.items()}
        status = EngineStatus(
            epoch=self.epoch,
            state=state,
            doing=doing,
            views={name: self._view_status(name, node) for name, node in nodes.items() if name not in self.plans},
            derived_views={
                name: DerivedViewStatus(node=self._derived_status(name))
                for name in (*self.derivation.views, *self.refused)
            },
            handlers={name: self._handler_status(name, node) for name, node in nodes.items() if name in self.plans},
            view_changed_at_us={
                name: to_micros(publisher.written) for name, publisher in self.publishers.items() if publisher.written
            },
        )
        self.channel.publish(status)

    def _view_status(self, name: str, node: NodeStatus) -> ViewStatus:
        watermark = self.runners[name].progress.watermark
        return ViewStatus(
            node=node,
            watermark=datetime.fromisoformat(watermark) if watermark is not None else None,
            window_timings=self.late[name].window_timings() if name in self.late else (),
        )

    def _derived_status(self, name: str) -> NodeStatus:
        fields = spark_schema(self.columns[name]).fields if name in self.columns else []
        columns = tuple(StatusColumn(field.name, field.dataType.simpleString()) for field in fields)
        if name in self.refused:
            return NodeStatus(state="failed", error=self.refused[name], columns=columns)
        return self.derivation.views[name].status(columns)

    def _handler_status(self, name: str, node: NodeStatus) -> HandlerStatus:
        return HandlerStatus(node=node, figures=self.sinks[name].describe() if name in self.sinks else None)

    def _stop(self, status: int) -> None:
        """Let the queries finish their current output, which completes the checkpoints. Mark the checkpoints as
        complete once they are durable."""
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
            self.storage.end_queries()
        self._say("stopped")


def has_nothing_to_run(log: LogReader, node: View | Handler, streams: Iterable[str], read: Positions) -> bool:
    """Return whether a node has no batch after the position `read`.

    A handler that reads several streams processes their events in order of log time. While one of the streams has no
    new rows, there is no batch, even if the other streams have new rows: the gateway must first append a tick.
    """
    if isinstance(node, Handler):
        return any(not log.rows_between(name, read[name], log.ends(name)) for name in streams)
    return all(read.get(name) == log.ends(name) for name in streams)


def main() -> int:
    logs.configure()
    logging.getLogger("py4j").setLevel(logging.WARNING)
    child = answer_call()
    loaded = load(child.call.target)
    carry(loaded.module, loaded.file)
    engine = Engine(loaded.app, child.call.target, child.storage, from_environment(), child.call.epoch)
    stop_on_signals(engine.stop)
    on_end_of_parent(child.call, engine.stop)
    return engine.run()


if __name__ == "__main__":
    sys.exit(main())
