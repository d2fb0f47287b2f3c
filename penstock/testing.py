"""Runs handlers on plain lists of events, without Spark or a disk, in milliseconds. For tests.

    result = run(app, {"fixes": [Fix(...), Fix(...), CRASH, Fix(...), TICK]})
    assert result.emitted("geofence") == [Crossing(...)]

Faults are items in the list. `CRASH` ends the process before the current batch is committed, so the batch runs again in
a new process. `TICK` lets one second pass without an event, and `tick(timedelta)` any other amount of time. After
`LATE`, the next event arrives later than the stream's `late_after` allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from penstock.app.app import App
from penstock.app.check import require_sound
from penstock.app.declared import Handler, Stream, ViewHandler
from penstock.app.graph import order
from penstock.core.columns import event_key, partition_of, text_of, to_batch
from penstock.core.deletes import gone_class
from penstock.core.errors import DeclarationError
from penstock.core.filters.events import holds
from penstock.core.notebook import table
from penstock.core.schema import Event, Failed, value_class
from penstock.core.suggestions import unknown
from penstock.core.times import to_micros
from penstock.handlers.machine import Emitted, Machine, latest
from penstock.handlers.rows import Inputs, LogPosition, to_events
from penstock.handlers.samples import BEGIN
from penstock.handlers.shard import Shard, digest_text

Found = TypeVar("Found")
STEP = timedelta(milliseconds=1)
LATE_BY = timedelta(minutes=1)


@dataclass(frozen=True)
class Fault:
    """An item of a test's input list that is not an event."""

    name: str
    by: timedelta = timedelta(0)


CRASH = Fault("crash")
TICK = Fault("tick", timedelta(seconds=1))
LATE = Fault("late")


def tick(by: timedelta) -> Fault:
    """Return an item of a test's input list that lets log time pass without an event."""
    return Fault("tick", by)


@dataclass
class _Row:
    """One row in a test's stream, or a crash. A tick has no `event`. If the row deletes a row of a view, `gone` is set
    instead of `event`."""

    time: int
    stream: str
    offset: int
    event: Any = None
    id: str | None = None
    crash: bool = False
    gone: Any = None


@dataclass(repr=False)
class Result:
    """The results of the handlers. `_unknown` maps each handler without a result, and each of its streams, to the view
    whose rows are missing."""

    _shards: dict[str, list[Shard]] = field(default_factory=dict)
    _machines: dict[str, Machine] = field(default_factory=dict)
    _streams: dict[str, list[Any]] = field(default_factory=dict)
    _rows: dict[str, list[Any]] = field(default_factory=dict)
    _unknown: dict[str, str] = field(default_factory=dict)

    def emitted(self, stream: Stream | Handler | str) -> list[Any]:
        """Return the events that a handler emitted to a stream, in order. For a handler's view, return every emitted
        row."""
        return self._known("stream", stream, self._streams)

    def rows(self, view_handler: Handler | str) -> list[Any]:
        """Return the rows of a handler's view, in key order. Windows and rollups remove rows as in a running app; any
        other `keep` is ignored."""
        return self._known("view handler", view_handler, self._rows)

    def _known(self, kind: str, given: Any, known: Mapping[str, Found]) -> Found:
        """Look up a result. Raises `DeclarationError` if it depends on a view whose rows are missing."""
        name = given if isinstance(given, str) else given.name
        if view := self._unknown.get(name):
            raise DeclarationError(
                f"{name} depends on the rows of the view {view}, which `run` does not compute: pass a list of these "
                f"rows, {{{view!r}: [...]}}, or pass an empty list"
            )
        return _look_up_result(kind, name, known)

    def _keep_rows(self, view_handler: ViewHandler, emitted: list[Emitted]) -> None:
        first = len(view_handler.emits) - 2
        self._streams[view_handler.name] = [emission.event for emission in emitted if emission.output >= first]
        left = [emission.event for emission in latest(view_handler, emitted) if emission.output == first]
        key = attrgetter(*view_handler.view.key)
        self._rows[view_handler.name] = sorted(left, key=lambda row: msgspec.json.encode(key(row), enc_hook=str))

    def failed(self, handler: Handler | str) -> list[Failed]:
        """Return the events that a handler failed on, each with its error."""
        self._known("handler", handler, self._machines)
        return self._streams[f"{handler if isinstance(handler, str) else handler.name}.failed"]

    def states(self, handler: Handler | str) -> dict[str, Any]:
        """Return the state of every key that has state."""
        decode = self._known("handler", handler, self._machines).codec.decode
        shards = self._known("handler", handler, self._shards)
        return {key: decode(record).state for shard in shards for key, record in shard.records.items()}

    def digest(self, handler: Handler | str) -> str:
        """Return the digest of a handler's whole state, which is the same as after a run on Spark."""
        return digest_text(sum(shard.digest for shard in self._known("handler", handler, self._shards)))

    def __repr__(self) -> str:
        streams = [f"{name}: {len(events)} emitted" for name, events in self._shown_streams()]
        views = [f"{name}: {len(rows)} row{'' if len(rows) == 1 else 's'}" for name, rows in self._shown_rows()]
        return f"Result({'; '.join([*streams, *views])})"

    def _shown_streams(self) -> list[tuple[str, list[Any]]]:
        """Return the streams that are not views. Streams of failures are included only if there are any failures."""
        known = [(name, events) for name, events in self._streams.items() if name not in self._unknown]
        return [
            (name, events)
            for name, events in known
            if name not in self._rows and (events or not name.endswith(".failed"))
        ]

    def _shown_rows(self) -> list[tuple[str, list[Any]]]:
        return [(name, rows) for name, rows in self._rows.items() if name not in self._unknown]

    def _repr_html_(self) -> str:
        listed = [*self._shown_streams(), *self._shown_rows()]
        return "".join(
            table(name, getattr(rows[0], "__struct_fields__", ()), map(_row_values, rows))
            if rows
            else table(name, (), ())
            for name, rows in listed
        )


def _look_up_result(kind: str, given: Any, known: Mapping[str, Found]) -> Found:
    """Look up a declaration, or its name. Raises `DeclarationError`, listing the known names, if it is unknown."""
    name = given if isinstance(given, str) else given.name
    if name not in known:
        raise DeclarationError(unknown(kind, name, known))
    return known[name]


def _row_values(row: Any) -> list[Any]:
    return [getattr(row, name) for name in row.__struct_fields__]


def run(app: App, inputs: Mapping[Any, Sequence[Any]], *, shards: int = 1, batch_events: int = 1_000) -> Result:
    """Run all handlers of an app over lists of events, one for each stream.

    A handler that looks up rows in another handler's view, such as a rollup, gets the rows that are computed here: each
    event is joined with the rows that result from all events before it. Windows and rollups remove rows as in a running
    app; any other `keep` is ignored. The rows of other views, and of a view with `top`, are not computed: pass a list
    of the rows as they change, with `gone(Class, key=...)` for deleted rows. Without such a list, asking for the
    results of a handler that depends on the view is an error. If you pass a list for a view whose rows are computed,
    the list is used instead.

    Log time advances by a millisecond with each item; items at the same index in several lists are processed in the
    order of the handler's `reads`. `shards` and `batch_events` determine how the work is divided, which does not change
    the result.
    """
    require_sound(app)
    streams = {stream.name: stream for stream in app.streams}
    views = {name: () for handler in app.handlers for name in handler.rows}
    rows: dict[str, list[_Row]] = {name: [] for name in streams}
    changes: dict[str, Sequence[Any]] = {}
    for given, items in inputs.items():
        name = given if isinstance(given, str) else given.name
        if name in views:
            changes[name] = items
        elif name in streams:
            rows[name] = _stream_rows(streams[name], items)
        else:
            raise DeclarationError(f"{name!r} is not a stream of this app; available: {', '.join((*streams, *views))}")
    result = Result()
    computed: dict[str, list[tuple[int, Any, bool]]] = {}
    classes = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}
    for node in order(app):
        if isinstance(node, Handler):
            for view, row in node.rows.items():
                stream = Stream(f"{view}.changes", row, node.where)
                if view in changes:
                    rows[stream.name] = _stream_rows(stream, changes[view])
                else:
                    rows[stream.name] = _computed_rows(stream, computed.get(view, ()))
            _mark_unknown(node, changes.keys() | computed.keys(), result)
            read = [(rows[name], classes.get(name), node.condition_of(name)) for name in node.inputs]
            mine = sorted((row for source in read for row in _passing_rows(*source)), key=lambda row: row.time)
            effects = _run_handler(node, mine, shards, batch_events, result)
            _publish_emitted(node, *effects, rows, result)
            if isinstance(node, ViewHandler) and node.name in views and node.view.top is None:
                computed[node.name] = _view_changes(node, mine, shards)
    return result


def _mark_unknown(handler: Handler, known_views: AbstractSet[str], result: Result) -> None:
    """Mark a handler's results as unknown if the handler depends on a view without rows, directly or through other
    handlers."""
    missing = [view for view in handler.rows if view not in known_views]
    missing += [result._unknown[name] for name in handler.reads if name in result._unknown]
    if missing:
        names = [handler.name, *(stream.name for stream in handler.outputs)]
        result._unknown.update(dict.fromkeys(names, missing[0]))


def _view_changes(handler: ViewHandler, mine: list[_Row], shards: int) -> list[tuple[int, Any, bool]]:
    """Return the changes to a handler's view in log order: the time, the row or key, and whether it was deleted. Each
    batch contains one event, so that the changes do not depend on how the work is divided."""
    emitted, _ = _run_handler(handler, mine, shards, 1, Result())
    last = len(handler.emits) - 1
    changes = [(time, change.event, change.output == last) for time, change in emitted if change.output >= last - 1]
    return sorted(changes, key=lambda change: change[0])


def _computed_rows(stream: Stream, changes: Sequence[tuple[int, Any, bool]]) -> list[_Row]:
    """Return the changes to a handler's view as its reader gets them. In the log, each change comes after its cause and
    before the next event."""
    written = iter(_as_logged(stream, [event for _, event, is_deleted in changes if not is_deleted]))
    rows: list[_Row] = []
    for offset, (time, event, is_deleted) in enumerate(changes):
        row = _Row(time + 1, stream.name, offset)
        if is_deleted:
            key = {name: getattr(event, name) for name in event.__struct_fields__}
            rows.append(replace(row, gone=gone_class(stream.event, frozenset(key))(**key)))
        else:
            rows.append(replace(row, event=next(written)))
    return rows


def _stream_rows(stream: Stream, items: Sequence[Any]) -> list[_Row]:
    """Return the rows of a stream with their log times, as the ingress would have stored them."""
    rows: list[_Row] = []
    time = BEGIN
    plain = [item for item in items if not isinstance(item, Fault) and not _is_gone(stream, item)]
    events = iter(_as_logged(stream, plain))
    for item in items:
        time += item.by if isinstance(item, Fault) else STEP
        if item == LATE:
            time += stream.late_after or LATE_BY
        elif isinstance(item, Fault):
            rows.append(_Row(to_micros(time), stream.name, len(rows), crash=item == CRASH))
        elif _is_gone(stream, item):
            rows.append(_Row(to_micros(time), stream.name, len(rows), gone=item))
        else:
            event = next(events)
            identity = stream.event.__id_field__
            known = text_of(getattr(event, identity)) if identity is not None else None
            rows.append(_Row(to_micros(time), stream.name, len(rows), event, known))
    return rows


def _is_gone(stream: Stream, item: Any) -> bool:
    """Return whether the item is a `penstock.gone` event for a row of a view."""
    names: tuple[str, ...] = getattr(type(item), "__struct_fields__", ())
    return bool(names) and type(item) is gone_class(stream.event, frozenset(names))


def _as_logged(stream: Stream, items: Sequence[Any]) -> list[Any]:
    """Return a test's events as they would be read from the log. A mapping is converted as if it had been posted."""
    values = [msgspec.convert(item, value_class(stream.event), from_attributes=True) for item in items]
    empty: list[str | None] = [None] * len(values)
    batch = to_batch(stream.event, values, ids=empty, keys=empty, now=BEGIN)
    return to_events(stream.event, batch)


def _run_handler(
    handler: Handler, mine: list[_Row], count: int, batch: int, result: Result
) -> tuple[list[tuple[int, Emitted]], list[tuple[int, Failed]]]:
    """Run a handler, and return its emitted events and its failures, each with its log time. Stores its state in the
    result."""
    machine = result._machines[handler.name] = Machine(handler)
    shards = result._shards[handler.name] = [Shard() for _ in range(count)]
    emitted: list[tuple[int, Emitted]] = []
    failed: list[tuple[int, Failed]] = []
    for number, shard in enumerate(shards):
        for piece in _test_batches([row for row in mine if _belongs_to_shard(handler, row, number, count)], batch):
            effects = machine.run(shard, _machine_inputs(handler, piece))
            if piece and piece[-1].crash:
                machine = Machine(handler)
                effects = machine.run(shard, _machine_inputs(handler, piece))
            shard.apply(effects.changes)
            emitted += [(emission.time, emission) for emission in effects.emitted]
            failed += [(failure.time, failure.event) for failure in effects.failures]
    return emitted, failed


def _belongs_to_shard(handler: Handler, row: _Row, shard: int, shards: int) -> bool:
    """Return whether a row belongs to the shard. Ticks and crashes belong to all shards."""
    return (row.event is None and row.gone is None) or partition_of(_row_key(handler, row), shards) == shard


def _row_key(handler: Handler, row: _Row) -> str | None:
    keyed = row.gone if row.event is None else row.event
    return None if keyed is None else event_key(keyed, handler.key_of(row.stream))


def _passing_rows(rows: list[_Row], cls: type[Event] | None, where: str | None) -> list[_Row]:
    """Return the rows of a stream as a handler sees them: an event that does not meet the handler's condition becomes a
    tick."""
    if cls is None or where is None:
        return rows
    passes = iter(holds(cls, where, [row.event for row in rows if row.event is not None]))
    return [row if row.event is None or next(passes) else replace(row, event=None, id=None) for row in rows]


def _test_batches(rows: list[_Row], size: int) -> Iterable[list[_Row]]:
    """Yield batches of a test's rows of at most `size` rows, split after each crash."""
    piece: list[_Row] = []
    for row in rows:
        piece.append(row)
        if row.crash or len(piece) >= size:
            yield piece
            piece = []
    yield piece


def _machine_inputs(handler: Handler, rows: list[_Row]) -> Inputs:
    def locate(index: int) -> LogPosition:
        return LogPosition(rows[index].stream, 0, 0, rows[index].offset)

    delete_streams = handler.gone
    return Inputs.of(
        [_row_key(handler, row) for row in rows],
        [row.gone if row.event is None and row.stream in delete_streams else row.event for row in rows],
        [row.time for row in rows],
        lambda index: rows[index].id,
        locate,
    )


def _publish_emitted(
    handler: Handler,
    emitted: list[tuple[int, Emitted]],
    failed: list[tuple[int, Failed]],
    rows: dict[str, list[_Row]],
    result: Result,
) -> None:
    """Pass the emitted events to the result and to the handlers that read them."""
    *outputs, failures = handler.outputs
    if isinstance(handler, ViewHandler):
        result._keep_rows(handler, [emission for _, emission in emitted])
    for number, stream in enumerate(outputs):
        mine = sorted(
            (emission for _, emission in emitted if emission.output == number), key=lambda emission: emission.time
        )
        result._streams[stream.name] = [emission.event for emission in mine]
        events = _as_logged(stream, result._streams[stream.name])
        rows[stream.name] = [
            _Row(emission.time, stream.name, offset, event, emission.id)
            for offset, (emission, event) in enumerate(zip(mine, events, strict=True))
        ]
    result._streams[failures.name] = [event for _, event in sorted(failed, key=lambda failure: failure[0])]
    rows[failures.name] = [_Row(time, failures.name, offset, event) for offset, (time, event) in enumerate(failed)]
