"""Handlers on plain lists of events, without Spark and without a disk, in milliseconds: for tests.

    result = run(app, {"fixes": [Fix(...), Fix(...), CRASH, Fix(...), TICK]})
    assert result.emitted("geofence") == [Crossing(...)]

Faults are items of the list: `CRASH` ends the process before what ran since the last one is committed, so it runs
again, in a new process; `TICK` lets time pass without an event, `tick(timedelta)` more of it; after `LATE` the next
event comes later than the stream's `late_after` allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from penstock.app import App
from penstock.columns import event_key, place, text_of, to_batch
from penstock.declared import Handler, Keeper, Stream
from penstock.errors import DeclarationError
from penstock.filters.events import holds
from penstock.graph import order, require_sound
from penstock.kept import gone_class
from penstock.machine import Emitted, Machine, latest
from penstock.notebook import table
from penstock.rows import Inputs, Place, to_events, to_micros
from penstock.schema import Event, Failed, value_class
from penstock.shard import Shard, digest_text
from penstock.suggestions import unknown

STEP = timedelta(milliseconds=1)
LATE_BY = timedelta(minutes=1)
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Fault:
    """Something in an input list that is no event."""

    name: str
    by: timedelta = timedelta(0)


CRASH = Fault("crash")
TICK = Fault("tick", timedelta(seconds=1))
LATE = Fault("late")


def tick(by: timedelta) -> Fault:
    """Let log time pass without an event."""
    return Fault("tick", by)


@dataclass
class _Row:
    """One row of a stream, or a crash: its log time, its event and the places it takes. A tick has no event, and a row
    of a view that is `gone` has what says so there."""

    time: int
    stream: str
    offset: int
    event: Any = None
    id: str | None = None
    crash: bool = False
    gone: Any = None


@dataclass(repr=False)
class Result:
    """What the handlers did."""

    _shards: dict[str, list[Shard]] = field(default_factory=dict)
    _machines: dict[str, Machine] = field(default_factory=dict)
    _streams: dict[str, list[Any]] = field(default_factory=dict)
    _rows: dict[str, list[Any]] = field(default_factory=dict)

    def emitted(self, stream: Stream | Handler | str) -> list[Any]:
        """The events of a stream that a handler fills, in order; of a view that it keeps, all rows that there were."""
        return _named("stream", stream, self._streams)

    def rows(self, keeper: Handler | str) -> list[Any]:
        """The rows of a view that a handler keeps, in order of their keys. `keep` is not looked at."""
        return _named("view kept by a handler", keeper, self._rows)

    def _keep(self, keeper: Keeper, emitted: list[Emitted]) -> None:
        first = len(keeper.emits) - 2
        self._streams[keeper.name] = [each.event for each in emitted if each.output >= first]
        left = [each.event for each in latest(keeper, emitted) if each.output == first]
        key = attrgetter(*keeper.view.key)
        self._rows[keeper.name] = sorted(left, key=lambda row: msgspec.json.encode(key(row), enc_hook=str))

    def failed(self, handler: Handler | str) -> list[Failed]:
        """The events that a handler failed on, each with its error."""
        _named("handler", handler, self._machines)
        return self._streams[f"{handler if isinstance(handler, str) else handler.name}.failed"]

    def states(self, handler: Handler | str) -> dict[str, Any]:
        """The state of every key that has one."""
        decode = _named("handler", handler, self._machines).codec.decode
        shards = _named("handler", handler, self._shards)
        return {key: decode(record).state for shard in shards for key, record in shard.records.items()}

    def digest(self, handler: Handler | str) -> str:
        """The digest of all state of a handler, as a run on Spark shows it."""
        return digest_text(sum(shard.digest for shard in _named("handler", handler, self._shards)))

    def __repr__(self) -> str:
        streams = [f"{name}: {len(events)} emitted" for name, events in self._shown_streams()]
        views = [f"{name}: {len(rows)} row{'' if len(rows) == 1 else 's'}" for name, rows in self._rows.items()]
        return f"Result({'; '.join([*streams, *views])})"

    def _shown_streams(self) -> list[tuple[str, list[Any]]]:
        """The streams that are no views; failures only if there are any."""
        return [
            (name, events)
            for name, events in self._streams.items()
            if name not in self._rows and (events or not name.endswith(".failed"))
        ]

    def _repr_html_(self) -> str:
        listed = [*self._shown_streams(), *self._rows.items()]
        return "".join(
            table(name, getattr(rows[0], "__struct_fields__", ()), map(_values, rows)) if rows else table(name, (), ())
            for name, rows in listed
        )


Found = TypeVar("Found")


def _named(kind: str, given: Any, known: Mapping[str, Found]) -> Found:
    """What has that name, or is that declaration. Raises `DeclarationError`, with the names that there are."""
    name = given if isinstance(given, str) else given.name
    if name not in known:
        raise DeclarationError(unknown(kind, name, known))
    return known[name]


def _values(row: Any) -> list[Any]:
    return [getattr(row, name) for name in row.__struct_fields__]


def run(app: App, inputs: Mapping[Any, Sequence[Any]], *, shards: int = 1, batch_events: int = 1_000) -> Result:
    """Run all handlers of an app over lists of events, one for each stream; of a view that a handler reads, over a list
    of its rows as they change, and of `gone(Class, key=...)` as they go, since no view is run here.

    Log time moves a millisecond with each item; items at the same place in several lists come in the order of the
    handler's `reads`. `shards` and `batch_events` say how the work is cut, which changes nothing in the result.
    """
    require_sound(app)
    streams = {stream.name: stream for stream in app.streams}
    views = {name: () for handler in app.handlers for name in handler.rows}
    rows: dict[str, list[_Row]] = {name: [] for name in streams}
    changes: dict[str, Sequence[Any]] = dict(views)
    for given, items in inputs.items():
        name = given if isinstance(given, str) else given.name
        if name in views:
            changes[name] = items
        elif name in streams:
            rows[name] = _rows(streams[name], items)
        else:
            raise DeclarationError(f"{name!r} is no stream of this app; there are {', '.join((*streams, *views))}")
    result = Result()
    classes = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}
    for node in order(app):
        if isinstance(node, Handler):
            for view, row in node.rows.items():
                rows[f"{view}.changes"] = _rows(Stream(f"{view}.changes", row, node.where), changes[view])
            read = [(rows[name], classes.get(name), node.condition_of(name)) for name in node.inputs]
            mine = [row for each in read for row in _taken(*each)]
            made = _run_handler(node, sorted(mine, key=lambda row: row.time), shards, batch_events, result)
            _publish(node, *made, rows, result)
    return result


def _rows(stream: Stream, items: Sequence[Any]) -> list[_Row]:
    """The rows of a stream with their log times: what the front door would have made of them."""
    made: list[_Row] = []
    time = BEGIN
    plain = [item for item in items if not isinstance(item, Fault) and not _is_gone(stream, item)]
    events = iter(_normal(stream, plain))
    for item in items:
        time += item.by if isinstance(item, Fault) else STEP
        if item == LATE:
            time += stream.late_after or LATE_BY
        elif isinstance(item, Fault):
            made.append(_Row(to_micros(time), stream.name, len(made), crash=item == CRASH))
        elif _is_gone(stream, item):
            made.append(_Row(to_micros(time), stream.name, len(made), gone=item))
        else:
            event = next(events)
            identity = stream.event.__id_field__
            known = text_of(getattr(event, identity)) if identity is not None else None
            made.append(_Row(to_micros(time), stream.name, len(made), event, known))
    return made


def _is_gone(stream: Stream, item: Any) -> bool:
    """Whether the item is what `penstock.gone` makes of a view's row."""
    names: tuple[str, ...] = getattr(type(item), "__struct_fields__", ())
    return bool(names) and type(item) is gone_class(stream.event, frozenset(names))


def _normal(stream: Stream, items: Sequence[Any]) -> list[Any]:
    """Events as they come out of the log. A mapping is taken as if it had been posted."""
    values = [msgspec.convert(item, value_class(stream.event), from_attributes=True) for item in items]
    empty: list[str | None] = [None] * len(values)
    batch = to_batch(stream.event, values, ids=empty, keys=empty, now=BEGIN)
    return to_events(stream.event, batch)


def _run_handler(
    handler: Handler, mine: list[_Row], count: int, batch: int, result: Result
) -> tuple[list[tuple[int, Emitted]], list[tuple[int, Failed]]]:
    """What the handler emits and what it fails on, each with its log time. Its state is left in the result."""
    machine = result._machines[handler.name] = Machine(handler)
    shards = result._shards[handler.name] = [Shard() for _ in range(count)]
    emitted: list[tuple[int, Emitted]] = []
    failed: list[tuple[int, Failed]] = []
    for number, shard in enumerate(shards):
        for piece in _pieces([row for row in mine if _belongs(handler, row, number, count)], batch):
            effects = machine.run(shard, _inputs(handler, piece))
            if piece and piece[-1].crash:
                machine = Machine(handler)
                effects = machine.run(shard, _inputs(handler, piece))
            shard.apply(effects.changes)
            emitted += [(each.time, each) for each in effects.emitted]
            failed += [(each.time, each.event) for each in effects.failures]
    return emitted, failed


def _belongs(handler: Handler, row: _Row, shard: int, shards: int) -> bool:
    """Ticks and crashes are everyone's."""
    return (row.event is None and row.gone is None) or place(_key(handler, row), shards) == shard


def _key(handler: Handler, row: _Row) -> str | None:
    keyed = row.gone if row.event is None else row.event
    return None if keyed is None else event_key(keyed, handler.key_of(row.stream))


def _taken(rows: list[_Row], cls: type[Event] | None, where: str | None) -> list[_Row]:
    """The rows of a stream as a handler takes them: an event that does not meet its condition is a tick."""
    if cls is None or where is None:
        return rows
    passes = iter(holds(cls, where, [row.event for row in rows if row.event is not None]))
    return [row if row.event is None or next(passes) else replace(row, event=None, id=None) for row in rows]


def _pieces(rows: list[_Row], size: int) -> Iterable[list[_Row]]:
    """The batches: of a size, and cut at each crash."""
    piece: list[_Row] = []
    for row in rows:
        piece.append(row)
        if row.crash or len(piece) >= size:
            yield piece
            piece = []
    yield piece


def _inputs(handler: Handler, rows: list[_Row]) -> Inputs:
    def locate(index: int) -> Place:
        return Place(rows[index].stream, 0, 0, rows[index].offset)

    told = handler.gone
    return Inputs.of(
        [_key(handler, row) for row in rows],
        [row.gone if row.event is None and row.stream in told else row.event for row in rows],
        [row.time for row in rows],
        lambda index: rows[index].id,
        locate,
    )


def _publish(
    handler: Handler,
    emitted: list[tuple[int, Emitted]],
    failed: list[tuple[int, Failed]],
    rows: dict[str, list[_Row]],
    result: Result,
) -> None:
    """Give what was emitted to whoever reads it: to the caller, and to handlers further down."""
    *outputs, failures = handler.outputs
    if isinstance(handler, Keeper):
        result._keep(handler, [each for _, each in emitted])
    for number, stream in enumerate(outputs):
        mine = sorted((each for _, each in emitted if each.output == number), key=lambda each: each.time)
        result._streams[stream.name] = [each.event for each in mine]
        events = _normal(stream, result._streams[stream.name])
        rows[stream.name] = [
            _Row(each.time, stream.name, offset, event, each.id)
            for offset, (each, event) in enumerate(zip(mine, events, strict=True))
        ]
    result._streams[failures.name] = [event for _, event in sorted(failed, key=lambda each: each[0])]
    rows[failures.name] = [_Row(time, failures.name, offset, event) for offset, (time, event) in enumerate(failed)]
