"""What the app is doing, as `/v1/app` and `/v1/health` tell it: put together from what each part says of itself."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock import __version__
from penstock.app import App
from penstock.collect.audit import Audit, Tally, total
from penstock.collect.door import FrontDoor
from penstock.contracts import SourceStatus
from penstock.cursor import source_positions
from penstock.declared import Feed, Handler, Keeper, Matcher, Rollup, Stream, View
from penstock.errors import PenstockError
from penstock.files import read_status
from penstock.graph import is_derived, order, read_streams
from penstock.queue import EmbeddedLog
from penstock.rows import from_micros, to_micros
from penstock.runtime import idling
from penstock.runtime.directory import DataDirectory
from penstock.runtime.pressure import Behind
from penstock.runtime.problems import Problem, Problems, without_detail
from penstock.schema import fields, type_name
from penstock.serve.connections import Connections
from penstock.settings import Settings
from penstock.store import LiveTable

RATE_WINDOW_S = 5.0
HANDLER_FIGURES = (
    "shards", "keys", "bytes", "digest", "next_timer", "emitted", "failed", "events", "run_s", "read_s", "write_s",
    "delta_bytes", "snapshot_bytes", "replica_hits", "replica_catch_ups", "replica_loads", "rebuilt",
)  # fmt: skip
"""What the engine tells of a handler, as `/v1/app` passes it on."""
_KINDS = {"views": ("view", "handler"), "handlers": ("handler",), "sources": ("source",)}
"""Of what kind the problems are that each part of `/v1/app` shows."""
CUT_OFF = frozenset({"connecting", "waiting", "failed"})
"""States of a source in which the other side may keep events for us."""
ENGINE_SILENT_S = 10.0
"""The engine writes its status each second; silent for so long, it is taken as down."""


@dataclass
class Rate:
    """Events a second over the last few seconds, from totals noted about once a second."""

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
class Status:
    """Reads figures from the tiers. Cheap enough for a call a second; called in the gateway's event loop."""

    app: App
    directory: DataDirectory
    settings: Settings
    log: EmbeddedLog
    door: FrontDoor
    tables: Mapping[str, LiveTable]
    sources: Mapping[str, SourceStatus]
    connections: Connections
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    stopping: bool = False
    rates: dict[str, Rate] = field(default_factory=dict)
    last_event: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    readings: Mapping[str, Callable[[], dict[str, int]]] = field(default_factory=dict)
    """How each stream and view is read."""
    webhooks: Callable[[], list[dict[str, Any]]] = list
    webhooks_broken: Callable[[], bool] = bool
    keys_error: Callable[[], str | None] = lambda: None
    _told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problems = Problems(self.settings)
        self._broken: dict[tuple[str, str], datetime] = {}

    def note_commit(self, stream: str) -> None:
        """Called after each commit of a stream; one that brought no event, but a tick, is passed over."""
        audit = self.door.audits().get(stream)
        accepted = sum(each.accepted for each in audit.by_source.values()) if audit is not None else 0
        if accepted > self.last_event.get(stream, (0, self.started))[0]:
            self.last_event[stream] = (accepted, datetime.now(UTC))

    def note_rates(self, now: float) -> None:
        """Called about once a second."""
        for stream in (*self.app.streams, *self.app.outputs):
            self._rate(f"stream {stream.name}").note(now, self._end(stream.name))
        engine = self._engine()
        for node in order(self.app):
            done = sum(sum(each.values()) for each in _positions(engine, node).values())
            self._rate(f"node {node.name}").note(now, done)
        for name, source in self.sources.items():
            self._rate(f"source {name}").note(now, source.received)
        self.problems.note(now, engine, self.sources, read_status(self.directory.supervisor_status))

    def _rate(self, name: str) -> Rate:
        return self.rates.setdefault(name, Rate())

    def _end(self, stream: str) -> int:
        try:
            return self.log.events_appended(stream)
        except PenstockError:
            return 0

    def describe(self, *, details: bool = True) -> dict[str, Any]:
        """The body of `/v1/app`. Without `details` errors are told by their class only: their text may quote a row."""
        found = self._describe()
        if details:
            return found
        for part in ("streams", "views", "handlers", "sources"):
            for each in found[part]:
                each["error"] = without_detail(each["error"])
                if "problem" in each:
                    each["problem"] = self._problem(each["name"], *_KINDS[part], details=False)
        return found | {"problems": self.health(details=False)["problems"]}

    def _describe(self) -> dict[str, Any]:
        engine = self._engine()
        health = self.health()
        views = [self._view(view, engine) for view in self.app.views]
        handlers = [self._handler(handler, engine) for handler in self.app.handlers]
        return {
            "name": self.app.name,
            "version": __version__,
            "started": self.started,
            "state": health["state"],
            "problems": health["problems"],
            "clock": min((each["watermark"] for each in (*views, *handlers) if each["watermark"]), default=None),
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
        """Ready or not, and why not. `degraded` means that there are problems; if one of them is red, some of the app
        does not run, and it is not ready. `details` is as for `describe`."""
        engine = self._engine()
        reasons = []
        if self.stopping:
            reasons.append("the app is stopping")
        if engine.get("state") != "ready":
            reasons.append(f"the engine is {engine.get('state', 'not running')}")
        problems = [*self.problems.found, *self._own_problems()]
        state = "stopping" if self.stopping else "starting" if reasons else "degraded" if problems else "ready"
        return {
            "ready": not reasons and all(each.level != "red" for each in problems),
            "state": state,
            "reasons": [*reasons, *(each.text(details=details) for each in problems)],
            "problems": [each.told(details=details) for each in problems],
        }

    def _problem(self, name: str, *kinds: str, details: bool = True) -> dict[str, Any] | None:
        """What is wrong with a node, as far as it is not over in a moment."""
        found = (each for each in self.problems.found if each.name == name and each.kind in kinds)
        return next((each.told(details=details) for each in found), None)

    def _own_problems(self) -> Iterator[Problem]:
        """What the gateway itself cannot do. It is seen at once, and gone as soon as it can."""
        found = [("view", name, f"view {name}", table.error) for name, table in self.tables.items() if table.error]
        found += [("stream", name, f"stream {name}", str(error)) for name, error in self.door.broken.items()]
        if self.webhooks_broken():
            found.append(("webhooks", "", "there are no webhooks: their file cannot be used", ""))
        if (error := self.keys_error()) is not None:
            found.append(("access", "", "no key is accepted", error))
        for kind, name, headline, detail in found:
            since = self._broken.setdefault((kind, name), datetime.now(UTC))
            yield Problem(kind, name, "failed", "red", headline, detail, since)
        for gone in self._broken.keys() - {(kind, name) for kind, name, *_ in found}:
            del self._broken[gone]

    def _stream(self, stream: Stream) -> dict[str, Any]:
        audit = self.door.audits().get(stream.name, Audit())
        tallies = self._tallies(stream.name, audit)
        writer = next((each.name for each in self.app.handlers if stream in each.outputs), None)
        late_for = next((name for name, each in self.app.late.items() if stream.name == each.name), None)
        stand = self.door.stands().get(stream.name)
        broken, held = self.door.broken.get(stream.name), self.door.held().get(stream.name)
        shedding = self.door.shedding().get(stream.name)
        known: dict[str, Any] = {"events": 0, "end": 0, "bytes": 0, "error": str(broken) if broken else None}
        try:
            known["end"] = self.log.events_appended(stream.name)
            known["events"] = max(0, known["end"] - sum(self.log.starts(stream.name).values()))
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
            "event_time": from_micros(stand.newest) if stand is not None and stand.newest is not None else None,
            "skew_s": self._skew([stream.name]),
            "held": held.reason if held is not None else None,
            "shedding": {"since": shedding.since, "reason": shedding.reason} if shedding is not None else None,
            "fields": [{"name": each.name, "type": type_name(each.hint)} for each in fields(stream.event)],
            "rate": self._rate(f"stream {stream.name}").value(),
            **total(tallies.values()).told(),
            **self._reading(stream.name),
            "by_source": [{"source": name, **each.told()} for name, each in sorted(tallies.items())],
            "last_event": self.last_event.get(stream.name, (0, None))[1],
            **known,
        }

    def _tallies(self, stream: str, audit: Audit) -> dict[str, Tally]:
        """The figures of a stream by source, with what its sources have lost before it came to the stream."""
        found = {name: replace(each) for name, each in audit.by_source.items()}
        for inlet in self.app.inlets:
            if inlet.into == stream:
                found.setdefault(inlet.name, Tally()).lost += self.sources[inlet.name].lost
        return found

    def _view(self, view: View, engine: dict[str, Any]) -> dict[str, Any]:
        keeper = next((each for each in self.app.keepers if each.name == view.name), None)
        told = engine.get("views" if keeper is None else "handlers", {}).get(view.name, {})
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
            "kind": "handler" if keeper is not None else "sql" if view.query is not None else "python",
            "derived": keeper is None and is_derived(self.app, view),
            "units": keeper.declared.by if isinstance(keeper, Rollup) else (),
            "columns": told.get("columns", []),
            "state": told.get("state", "starting"),
            "error": told.get("error") or table.error,
            "problem": self._problem(view.name, *_KINDS["views"]),
            "lag": self._lag(keeper or view, engine),
            "rate": self._rate(f"node {view.name}").value(),
            "rows": table.size,
            "version": table.version,
            "batch_id": told.get("batch_id"),
            "batch_ms": told.get("batch_ms"),
            "watermark": _time(told.get("watermark")),
            "skew_s": self._skew(view.reads),
            "late": self._late(f"{view.name}.late"),
            **self._reading(view.name),
        }

    def _reading(self, name: str) -> dict[str, int]:
        return self.readings[name]() if name in self.readings else {}

    def _handler(self, handler: Handler, engine: dict[str, Any]) -> dict[str, Any]:
        told = engine.get("handlers", {}).get(handler.name, {})
        return {
            "name": handler.name,
            "declared": str(handler.where),
            "reads": handler.reads,
            "key": handler.key,
            "emits": [stream.name for stream in handler.outputs],
            "view": handler.view.name if isinstance(handler, Keeper) else None,
            "timers": sorted(handler.timers),
            "state": told.get("state", "starting"),
            "error": told.get("error"),
            "problem": self._problem(handler.name, *_KINDS["handlers"]),
            "lag": self._lag(handler, engine),
            "rate": self._rate(f"node {handler.name}").value(),
            "batch_id": told.get("batch_id"),
            "batch_ms": told.get("batch_ms"),
            "watermark": from_micros(told["time"]) if told.get("time") else None,
            "skew_s": self._skew(handler.reads),
            "late": self._late(f"{handler.name}.{'missed' if isinstance(handler, Matcher) else 'late'}"),
        } | {name: told.get(name) for name in HANDLER_FIGURES}

    def due(self, now: datetime) -> list[str]:
        """The streams that need a tick, for a handler that has not come to a time that has passed: that of a timer, or,
        if it reads several streams, that of the last event in one of them."""
        engine = self._engine()
        found: set[str] = set()
        for handler in self.app.handlers:
            told = engine.get("handlers", {}).get(handler.name, {})
            if told.get("state") != "running":
                continue
            timer = told["next_timer"]
            last = [at for name, (_, at) in self.last_event.items() if name in handler.reads]
            times = [*map(to_micros, last), *(engine.get("changed", {}).get(view, 0) for view in handler.rows)]
            waits = len(handler.reads) > 1 and any(each > told["time"] for each in times)
            if waits or (timer is not None and timer <= to_micros(now)):
                found.update(handler.reads)
        return [stream.name for stream in self.app.streams if stream.name in found]

    def together(self, streams: Iterable[str]) -> set[str]:
        """These streams, and those that a handler reads beside one of them: it takes all of them in the order of log
        time, so what one of them says of it waits until the others have said so too."""
        found = set(streams)
        declared = {stream.name for stream in self.app.streams}
        beside = [declared & set(handler.reads) for handler in self.app.handlers]
        while more := set().union(*(each for each in beside if each & found)) - found:
            found |= more
        return found

    def idle(self, now: datetime) -> dict[str, int | None]:
        """The streams that need a tick that lets time pass for views, each with the event time it has come to. Those
        that take no events just now, or whose source is not connected, are not idle: what waits there is to come."""
        quiet = round(self.settings.quiet_s * 1_000_000)
        if not quiet:
            return {}
        found = idling.due(self.app, self._engine(), self.door.stands(), to_micros(now), quiet)
        waiting = {inlet.into for inlet in self.app.inlets if self.sources[inlet.name].state in CUT_OFF}
        return {name: told for name, told in found.items() if name not in waiting and name not in self.door.held()}

    def _late(self, stream: str) -> int:
        """How many events have come too late, ever: those of the stream that tells of them, if there is one."""
        return self._end(stream) if stream in {each.name for each in self.app.outputs} else 0

    def _skew(self, streams: Iterable[str]) -> float | None:
        """How far event time is behind ingest time in the one of these streams in which it is furthest."""
        stands = self.door.stands()
        skews = [stands[name].skew for name in streams if name in stands]
        return max((each / 1e6 for each in skews if each is not None), default=None)

    def _lag(self, node: View | Handler, engine: dict[str, Any]) -> int:
        """Events in a node's streams that it has not read."""
        done = _positions(engine, node)
        return max(0, sum(self._unread(name, done.get(name, {})) for name in read_streams(self.app, node)))

    def _unread(self, stream: str, read: Mapping[int, int]) -> int:
        try:
            ends, first = self.log.ends(stream), self.log.starts(stream)
        except PenstockError:
            return 0
        return sum(end - read.get(partition, first[partition]) for partition, end in ends.items())

    def behind(self, stream: str) -> Behind | None:
        """Who is furthest behind a stream, by the engine's last word; None if it has said nothing yet. While the engine
        is down, the positions that it told last go on to count."""
        self._told = self._engine() or self._told
        found = [
            Behind(node.name, self._unread(stream, done[stream]), self._rate(f"node {node.name}").value())
            for node in order(self.app)
            if stream in node.reads and stream in (done := _positions(self._told, node))
        ]
        return max(found, key=lambda each: each.events, default=None)

    def _source(self, name: str, status: SourceStatus) -> dict[str, Any]:
        inlet = next(each for each in self.app.inlets if each.name == name)
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

    def _processes(self, engine: dict[str, Any]) -> dict[str, Any]:
        told = read_status(self.directory.supervisor_status)
        gateway, other = told.get("gateway", {}), told.get("engine", {})
        return {
            "gateway": {"pid": os.getpid(), "started": self.started, "restarts": gateway.get("restarts", 0)},
            "engine": {
                "pid": other.get("pid"),
                "state": engine.get("state", "down"),
                "restarts": other.get("restarts", 0),
            },
        }

    def _engine(self) -> dict[str, Any]:
        """The engine's last word, nothing if it has been silent."""
        path = self.directory.engine_status
        try:
            age = datetime.now(UTC).timestamp() - path.stat().st_mtime
        except FileNotFoundError:
            return {}
        return read_status(path) if age < ENGINE_SILENT_S else {}


def _positions(engine: dict[str, Any], node: View | Handler) -> dict[str, dict[int, int]]:
    kind = "views" if isinstance(node, View) else "handlers"
    text = engine.get(kind, {}).get(node.name, {}).get("positions")
    return source_positions(text) if text else {}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
