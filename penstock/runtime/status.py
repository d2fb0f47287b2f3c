"""The app's status, as shown by `/v1/app` and `/v1/health`, assembled from figures from the whole app."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock import __version__
from penstock.app.app import App
from penstock.app.declared import Feed, Handler, Matcher, Rollup, Stream, View, ViewHandler
from penstock.app.graph import is_derived, order, read_streams
from penstock.collect.audit import Audit, IngressTally, total
from penstock.collect.ingress import Ingress
from penstock.control import EngineStatus, HandlerFigures, HealthStatus
from penstock.core.contracts import SourceStatus
from penstock.core.cursor import Positions
from penstock.core.errors import PenstockError
from penstock.core.schema import KIND_EVENT, fields, type_name
from penstock.core.settings import Settings
from penstock.core.times import from_micros, to_micros
from penstock.runtime import idling
from penstock.runtime.control import ControlWatcher
from penstock.runtime.pressure import Behind
from penstock.runtime.problems import Problems, RuntimeProblem, without_detail
from penstock.runtime.storage import StoredLogReader
from penstock.serve.connections import Connections
from penstock.store import StoredLiveView

RATE_WINDOW_S = 5.0
HANDLER_FIGURES: Mapping[str, Callable[[HandlerFigures], Any]] = {
    "shards": lambda figures: figures.shards,
    "keys": lambda figures: figures.keys,
    "bytes": lambda figures: figures.state_bytes,
    "digest": lambda figures: figures.digest,
    "next_timer": lambda figures: figures.next_timer_us,
    "emitted": lambda figures: figures.emitted,
    "failed": lambda figures: figures.failed,
    "events": lambda figures: figures.events,
    "run_s": lambda figures: figures.run_s,
    "read_s": lambda figures: figures.read_s,
    "write_s": lambda figures: figures.write_s,
    "delta_bytes": lambda figures: figures.delta_bytes,
    "snapshot_bytes": lambda figures: figures.snapshot_bytes,
    "replica_hits": lambda figures: figures.replica_hits,
    "replica_catch_ups": lambda figures: figures.replica_catch_ups,
    "replica_loads": lambda figures: figures.replica_loads,
    "rebuilt": lambda figures: figures.rebuilt,
}
"""A handler's figures in `/v1/app`, by the names used there."""
_KINDS = {"views": ("view", "handler"), "handlers": ("handler",), "sources": ("source",)}
"""The kinds of problems shown in each part of `/v1/app`."""
CUT_OFF = frozenset({"connecting", "waiting", "failed"})
"""States of a source in which the system that it reads from might have events waiting."""


@dataclass
class Rate:
    """A stream's events per second over the last few seconds, computed from totals that are added about once a
    second."""

    notes: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, total: int) -> None:
        self.notes.append((now, total))
        while len(self.notes) > 2 and now - self.notes[0][0] > RATE_WINDOW_S:
            self.notes.popleft()

    def value(self) -> float:
        if len(self.notes) < 2:
            return 0.0
        (then, before), (now, total) = self.notes[0], self.notes[-1]
        return round(max(0, total - before) / (now - then), 1) if now > then else 0.0


@dataclass
class _RowsRead:
    """The number of rows that a node has read, and the positions that it has reached."""

    rows: int = 0
    positions: Positions = field(default_factory=dict)


@dataclass
class Status:
    """Figures for the whole app, read from the tiers. Cheap enough to be read every second; called in the gateway's
    event loop."""

    app: App
    control: ControlWatcher
    settings: Settings
    log: StoredLogReader
    ingress: Ingress
    tables: Mapping[str, StoredLiveView]
    sources: Mapping[str, SourceStatus]
    connections: Connections
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    stopping: bool = False
    rates: dict[str, Rate] = field(default_factory=dict)
    last_event: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    readings: Mapping[str, Callable[[], dict[str, int]]] = field(default_factory=dict)
    """For each stream and view, a function that returns figures about its readers."""
    webhooks: Callable[[], list[dict[str, Any]]] = list
    webhooks_broken: Callable[[], bool] = bool
    keys_error: Callable[[], str | None] = lambda: None
    _last_engine: EngineStatus | None = None

    def __post_init__(self) -> None:
        self.problems = Problems(self.settings, self._failed_lately)
        self._broken: dict[tuple[str, str], datetime] = {}
        self._reads: dict[str, _RowsRead] = {}

    def _failed_lately(self, handler: str) -> list[float]:
        """Return how many seconds ago each of a handler's latest failures was stored. For each partition, returns at
        most the number of failures that makes the problem red."""
        stream, now = f"{handler}.failed", datetime.now(UTC)
        ages: list[float] = []
        with suppress(PenstockError):  # nothing has failed yet
            starts = self.log.starts(stream)
            for partition, end in self.log.ends(stream).items():
                first = max(starts.get(partition, 0), end - self.settings.failed_red)
                for batch in self.log.read(stream, partition, first, end):
                    rows = batch.select(["_ingest_time", "_kind"]).to_pylist()
                    ages += [(now - row["_ingest_time"]).total_seconds() for row in rows if row["_kind"] == KIND_EVENT]
        return ages

    def note_commit(self, stream: str) -> None:
        """Update a stream's figures. Called after each commit; ignores a commit that contains only a tick."""
        audit = self.ingress.audits().get(stream)
        accepted = sum(tally.accepted for tally in audit.by_source.values()) if audit is not None else 0
        if accepted > self.last_event.get(stream, (0, self.started))[0]:
            self.last_event[stream] = (accepted, datetime.now(UTC))

    def note_rates(self, now: float) -> None:
        """Update the rates of all streams. Called about once a second."""
        for stream in (*self.app.streams, *self.app.outputs):
            self._rate(f"stream {stream.name}").note(now, self._end(stream.name))
        engine = self.control.engine
        for node in order(self.app):
            self._rate(f"node {node.name}").note(now, self._rows_read(node, engine))
        for name, source in self.sources.items():
            self._rate(f"source {name}").note(now, source.received)
        self.problems.note(now, engine, self.sources, self.control.supervisor)

    def _rows_read(self, node: View | Handler, engine: EngineStatus | None) -> int:
        """Return the number of rows that a node has read since its position was first reported; earlier rows are not
        counted."""
        read, positions = self._reads.setdefault(node.name, _RowsRead()), _node_positions(engine, node)
        for stream, position in positions.items():
            known = read.positions.get(stream, position)
            if known != position:
                read.rows += self._rows_between(stream, known, position)
        read.positions = {**read.positions, **positions}
        return read.rows

    def _rate(self, name: str) -> Rate:
        return self.rates.setdefault(name, Rate())

    def _end(self, stream: str) -> int:
        try:
            return self.log.events_appended(stream)
        except PenstockError:
            return 0

    def describe(self, *, details: bool = True) -> dict[str, Any]:
        """Return the body of `/v1/app`. Without `details`, only the class of an error is shown, because its message may
        quote a row."""
        description = self._describe()
        if details:
            return description
        for part in ("streams", "views", "handlers", "sources"):
            for entry in description[part]:
                entry["error"] = without_detail(entry["error"])
                if "problem" in entry:
                    entry["problem"] = self._problem(entry["name"], *_KINDS[part], details=False)
        return description | {"problems": self.health(details=False)["problems"]}

    def _describe(self) -> dict[str, Any]:
        engine = self.control.engine
        health = self.health()
        views = [self._view(view, engine) for view in self.app.views]
        handlers = [self._handler(handler, engine) for handler in self.app.handlers]
        return {
            "name": self.app.name,
            "version": __version__,
            "started": self.started,
            "state": health["state"],
            "problems": health["problems"],
            "clock": min((node["watermark"] for node in (*views, *handlers) if node["watermark"]), default=None),
            "streams": [self._stream(stream) for stream in (*self.app.streams, *self.app.outputs)],
            "views": views,
            "handlers": handlers,
            "sources": [self._source(name, status) for name, status in self.sources.items()],
            "feeds": [self._feed(feed) for feed in self.app.feeds],
            "webhooks": self.webhooks(),
            "processes": self._processes(engine),
            "connections": self.connections.open,
            "cut_off": self.connections.cut_off,
        }

    def _feed(self, feed: Feed) -> dict[str, Any]:
        is_view = feed.of in self.tables
        return {
            "name": feed.name,
            "of": feed.of,
            "kind": "view" if is_view else "stream",
            "where": feed.condition,
            "select": feed.select,
            "declared": str(feed.where),
        }

    def health(self, *, details: bool = True) -> dict[str, Any]:
        """Return whether the app is ready and, if not, the reasons. `degraded` means that there are problems; if a
        problem is red, a part of the app does not run, and the app is not ready. `details` works as in `describe`."""
        state, reasons, problems = self._health()
        return {
            "ready": not reasons and all(problem.level != "red" for problem in problems),
            "state": state,
            "reasons": [*reasons, *(problem.text(details=details) for problem in problems)],
            "problems": [problem.to_dict(details=details) for problem in problems],
        }

    def health_status(self) -> HealthStatus:
        """Return the part of the health status that the supervisor prints."""
        state, _, problems = self._health()
        return HealthStatus(state=state, problems=tuple(problem.to_message() for problem in problems))

    def _health(self) -> tuple[str, list[str], list[RuntimeProblem]]:
        """Return the app's state, why the app is not up, and the problems."""
        engine = self.control.engine
        reasons = []
        if self.stopping:
            reasons.append("the app is stopping")
        if engine is None or engine.state != "ready":
            reasons.append(f"the engine is {engine.state if engine is not None else 'not running'}")
        problems = [*self.problems.current, *self._own_problems()]
        state = "stopping" if self.stopping else "starting" if reasons else "degraded" if problems else "ready"
        return state, reasons, problems

    def _problem(self, name: str, *kinds: str, details: bool = True) -> dict[str, Any] | None:
        """Return the current problem with a node, or None if there is no problem."""
        problems = (problem for problem in self.problems.current if problem.name == name and problem.kind in kinds)
        return next((problem.to_dict(details=details) for problem in problems), None)

    def _own_problems(self) -> Iterator[RuntimeProblem]:
        """Yield problems in the gateway itself. They are reported immediately, and disappear once they are fixed."""
        problems = [("view", name, f"view {name}", table.error) for name, table in self.tables.items() if table.error]
        problems += [("stream", name, f"stream {name}", str(error)) for name, error in self.ingress.broken.items()]
        if self.webhooks_broken():
            problems.append(("webhooks", "", "webhooks are not running, because their file cannot be used", ""))
        if (error := self.keys_error()) is not None:
            problems.append(("access", "", "no key is accepted", error))
        for kind, name, headline, detail in problems:
            since = self._broken.setdefault((kind, name), datetime.now(UTC))
            yield RuntimeProblem(kind, name, "failed", "red", headline, detail, since)
        for gone in self._broken.keys() - {(kind, name) for kind, name, *_ in problems}:
            del self._broken[gone]

    def _stream(self, stream: Stream) -> dict[str, Any]:
        audit = self.ingress.audits().get(stream.name, Audit())
        tallies = self._tallies(stream.name, audit)
        writer = next((handler.name for handler in self.app.handlers if stream in handler.outputs), None)
        late_for = next((name for name, late_stream in self.app.late.items() if stream.name == late_stream.name), None)
        stream_time = self.ingress.stream_times().get(stream.name)
        broken, held = self.ingress.broken.get(stream.name), self.ingress.held().get(stream.name)
        shedding = self.ingress.shedding().get(stream.name)
        known: dict[str, Any] = {"events": 0, "end": 0, "bytes": 0, "error": str(broken) if broken else None}
        try:
            known["end"] = self.log.events_appended(stream.name)
            known["events"] = self.log.events_kept(stream.name)
            known["bytes"] = self.log.size_bytes(stream.name)
        except PenstockError as error:
            known["error"] = error.message
        return {
            "name": stream.name,
            "declared": str(stream.where),
            "key": stream.key,
            "id": stream.event.__id_field__,
            "time": stream.event.__time_field__,
            "partitions": stream.partitions or self.settings.partitions,
            "handler": writer,
            "view": late_for,
            "event_time": from_micros(stream_time.newest)
            if stream_time is not None and stream_time.newest is not None
            else None,
            "skew_s": self._skew([stream.name]),
            "held": held.reason if held is not None else None,
            "shedding": {"since": shedding.since, "reason": shedding.reason} if shedding is not None else None,
            "fields": [{"name": field.name, "type": type_name(field.hint)} for field in fields(stream.event)],
            "rate": self._rate(f"stream {stream.name}").value(),
            **total(tallies.values()).figures(),
            **self._reading(stream.name),
            "by_source": [{"source": name, **tally.figures()} for name, tally in sorted(tallies.items())],
            "last_event": self.last_event.get(stream.name, (0, None))[1],
            **known,
        }

    def _tallies(self, stream: str, audit: Audit) -> dict[str, IngressTally]:
        """Return a stream's figures by source, including events that its sources lost before they reached the
        stream."""
        tallies = {name: replace(tally) for name, tally in audit.by_source.items()}
        for inlet in self.app.inlets:
            if inlet.into == stream:
                tallies.setdefault(inlet.name, IngressTally()).lost += self.sources[inlet.name].lost
        return tallies

    def _view(self, view: View, engine: EngineStatus | None) -> dict[str, Any]:
        view_handler = next((candidate for candidate in self.app.view_handlers if candidate.name == view.name), None)
        node = engine.node(view.name) if engine is not None else None
        status = engine.views.get(view.name) if engine is not None else None
        table = self.tables[view.name]
        return {
            "name": view.name,
            "declared": str(view.where),
            "reads": view.reads,
            "key": view.key,
            "top": view.top,
            "by": view.by,
            "emit": view.emit,
            "time": view.time,
            "kind": "handler" if view_handler is not None else "sql" if view.query is not None else "python",
            "derived": view_handler is None and is_derived(self.app, view),
            "units": view_handler.declared.by if isinstance(view_handler, Rollup) else (),
            "columns": [{"name": column.name, "type": column.type} for column in node.columns]
            if node is not None
            else [],
            "state": node.state if node is not None else "starting",
            "error": (node.error if node is not None else None) or table.error,
            "problem": self._problem(view.name, *_KINDS["views"]),
            "lag": self._lag(view_handler or view, engine),
            "rate": self._rate(f"node {view.name}").value(),
            "rows": table.size,
            "version": table.version,
            "batch_id": node.batch_id if node is not None else None,
            "batch_ms": node.batch_ms if node is not None else None,
            "watermark": status.watermark if status is not None else None,
            "skew_s": self._skew(view.reads),
            "late": self._late(f"{view.name}.late"),
            **self._reading(view.name),
        }

    def _reading(self, name: str) -> dict[str, int]:
        return self.readings[name]() if name in self.readings else {}

    def _handler(self, handler: Handler, engine: EngineStatus | None) -> dict[str, Any]:
        status = engine.handlers.get(handler.name) if engine is not None else None
        node, figures = (status.node, status.figures) if status is not None else (None, None)
        return {
            "name": handler.name,
            "declared": str(handler.where),
            "reads": handler.reads,
            "key": handler.key,
            "emits": [stream.name for stream in handler.outputs],
            "view": handler.view.name if isinstance(handler, ViewHandler) else None,
            "timers": sorted(handler.timers),
            "state": node.state if node is not None else "starting",
            "error": node.error if node is not None else None,
            "problem": self._problem(handler.name, *_KINDS["handlers"]),
            "lag": self._lag(handler, engine),
            "rate": self._rate(f"node {handler.name}").value(),
            "batch_id": node.batch_id if node is not None else None,
            "batch_ms": node.batch_ms if node is not None else None,
            "watermark": from_micros(figures.time_us) if figures is not None and figures.time_us else None,
            "skew_s": self._skew(handler.reads),
            "late": self._late(f"{handler.name}.{'missed' if isinstance(handler, Matcher) else 'late'}"),
        } | {name: figure(figures) if figures is not None else None for name, figure in HANDLER_FIGURES.items()}

    def due(self, now: datetime) -> list[str]:
        """Return the streams that need a tick because a handler has not yet reached a time that has passed. That is the
        time of a timer or, if the handler reads several streams, of the last event in one of them."""
        engine = self.control.engine
        names: set[str] = set()
        for handler in self.app.handlers:
            status = engine.handlers.get(handler.name) if engine is not None else None
            if engine is None or status is None or status.node.state != "running" or status.figures is None:
                continue
            timer = status.figures.next_timer_us
            last = [at for name, (_, at) in self.last_event.items() if name in handler.reads]
            times = [*map(to_micros, last), *(engine.view_changed_at_us.get(view, 0) for view in handler.rows)]
            waits = len(handler.reads) > 1 and any(time > status.figures.time_us for time in times)
            if waits or (timer is not None and timer <= to_micros(now)):
                names.update(handler.reads)
        return [stream.name for stream in self.app.streams if stream.name in names]

    def together(self, streams: Iterable[str]) -> set[str]:
        """Return these idle streams, and the streams that a handler reads together with them. Such a handler processes
        all its streams in order of log time, so a tick in one stream has no effect until the other streams have a tick
        too."""
        group = set(streams)
        declared = {stream.name for stream in self.app.streams}
        beside = [declared & set(handler.reads) for handler in self.app.handlers]
        while more := set().union(*(inputs for inputs in beside if inputs & group)) - group:
            group |= more
        return group

    def idle(self, now: datetime) -> dict[str, int | None]:
        """Return the streams that need a tick to advance time for views, each with its event time. A stream that
        currently accepts no events, or whose source is not connected, is not idle, because events may be waiting."""
        quiet = round(self.settings.quiet_s * 1_000_000)
        engine = self.control.engine
        if not quiet or engine is None:
            return {}
        ticks = idling.due(self.app, engine, self.ingress.stream_times(), to_micros(now), quiet)
        waiting = {inlet.into for inlet in self.app.inlets if self.sources[inlet.name].state in CUT_OFF}
        return {
            name: event_time_us
            for name, event_time_us in ticks.items()
            if name not in waiting and name not in self.ingress.held()
        }

    def _late(self, stream: str) -> int:
        """Return the total number of events that arrived too late: the number of events in the stream of late events,
        if there is such a stream."""
        return self._end(stream) if stream in {output.name for output in self.app.outputs} else 0

    def _skew(self, streams: Iterable[str]) -> float | None:
        """Return the largest delay of event time behind ingest time in these streams, in seconds."""
        stream_times = self.ingress.stream_times()
        skews = [stream_times[name].skew for name in streams if name in stream_times]
        return max((skew / 1e6 for skew in skews if skew is not None), default=None)

    def _lag(self, node: View | Handler, engine: EngineStatus | None) -> int:
        """Return the number of events in a node's streams that the node has not read."""
        done = _node_positions(engine, node)
        return max(0, sum(self._unread(name, done.get(name, {})) for name in read_streams(self.app, node)))

    def _unread(self, stream: str, read: Mapping[int, int]) -> int:
        try:
            return self.log.rows_between(stream, read, self.log.ends(stream))
        except PenstockError:
            return 0

    def _rows_between(self, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        try:
            return self.log.rows_between(stream, start, end)
        except PenstockError:
            return 0

    def behind(self, stream: str) -> Behind | None:
        """Return the node that is furthest behind a stream according to the engine's last status, or None if there is
        no status yet. While the engine is down, the last known positions are used."""
        self._last_engine = self.control.engine or self._last_engine
        readers = [
            Behind(node.name, self._unread(stream, done[stream]), self._rate(f"node {node.name}").value())
            for node in order(self.app)
            if stream in node.reads and stream in (done := _node_positions(self._last_engine, node))
        ]
        return max(readers, key=lambda reader: reader.events, default=None)

    def _source(self, name: str, status: SourceStatus) -> dict[str, Any]:
        inlet = next(candidate for candidate in self.app.inlets if candidate.name == name)
        return {
            "name": name,
            "kind": inlet.source.kind,
            "address": inlet.source.address,
            "into": inlet.into,
            "declared": str(inlet.where),
            "state": status.state,
            "received": status.received,
            "lost": status.lost,
            "rate": self._rate(f"source {name}").value(),
            "reconnects": status.reconnects,
            "error": status.error,
            "problem": self._problem(name, *_KINDS["sources"]),
        }

    def _processes(self, engine: EngineStatus | None) -> dict[str, Any]:
        supervisor = self.control.supervisor
        return {
            "gateway": {
                "pid": os.getpid(),
                "started": self.started,
                "restarts": supervisor.gateway.restarts if supervisor is not None else 0,
            },
            "engine": {
                "pid": supervisor.engine.pid if supervisor is not None else None,
                "state": engine.state if engine is not None else "down",
                "restarts": supervisor.engine.restarts if supervisor is not None else 0,
            },
        }


def _node_positions(engine: EngineStatus | None, node: View | Handler) -> Positions:
    status = engine.node(node.name) if engine is not None else None
    return status.positions if status is not None else {}
