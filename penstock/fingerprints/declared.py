"""Fingerprints of declarations, as far as they are known without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from penstock.app import App
from penstock.declared import CHANGES_SUFFIX, Handler, Joiner, Keeper, Matcher, Stream, View
from penstock.evolution import shape_of
from penstock.fingerprints.digests import digest
from penstock.fingerprints.functions import Fingerprint, fingerprint, fingerprint_of
from penstock.fingerprints.sqltext import normal_sql
from penstock.fingerprints.stored import HandlerPrint, StreamPrint, ViewPrint, versions
from penstock.graph import is_derived, row_classes
from penstock.joins.spec import Interval, Lookup
from penstock.schema import Event, fields, migrate_of, type_name
from penstock.settings import Settings
from penstock.windows.aggregates import Aggregate

By = Literal["code", "source", "earlier"]
"""Which digest of a function."""


def stream_print(stream: Stream, settings: Settings, first_names: Mapping[str, str]) -> StreamPrint:
    """Of a stream. `first_names` has the first name of each field of its events that was renamed."""
    event, partitions = stream.event, stream.partitions or settings.partitions
    key = stream.key if stream.key is None else first_names.get(stream.key, stream.key)
    return StreamPrint(key, partitions, event.__id_field__, event.__time_field__, _reading(event))


def view_print(app: App, view: View) -> ViewPrint:
    """Of a view that Spark computes, without its plan."""
    text = view_text(view)
    surface = digest(text.code, *_around(app, view, ()))
    source = None if text.source is None else digest(text.source, *_around(app, view, (), by="source"))
    earlier = None if text.earlier is None else digest(text.earlier, *_around(app, view, (), by="earlier"))
    return ViewPrint(
        view.reads,
        view.key,
        view_options(view),
        surface,
        source,
        versions(),
        {name: found for name in view.reads if (found := _reading(event_class(app, name)))},
        earlier=earlier,
    )


def view_options(view: View) -> dict[str, str]:
    """The options of a view but its key, those that are not given left out."""
    given = {"keep": view.keep, "top": view.top, "by": view.by, "emit": view.emit, "time": view.time}
    return {name: str(value) for name, value in given.items() if value is not None}


def handler_print(
    handler: Handler, streams: Iterable[Stream] = (), first_names: Mapping[str, Mapping[str, str]] | None = None
) -> HandlerPrint:
    """Of a handler in an app with these streams. `first_names` has, by stream, the first name of each field of its
    events that was renamed."""
    made, known = handler_functions(handler), {each.name: each for each in streams}
    read = {name: known[name] for name in handler.inputs if name in known}
    return HandlerPrint(
        handler.inputs,
        tuple(_key_text(handler.key_of(name), (first_names or {}).get(name, {})) for name in handler.inputs),
        made.code,
        made.source,
        versions(),
        {stream.name: _fields_text(stream.event) for stream in handler.outputs},
        handler.view.key if isinstance(handler, Keeper) else None,
        view_options(handler.view) if isinstance(handler, Keeper) else {},
        readings={name: found for name, stream in read.items() if (found := _reading(stream.event))},
        where={name: where for name in handler.inputs if (where := handler.condition_of(name)) is not None},
        times={name: found for name, stream in read.items() if (found := _time_text(handler, stream))},
        columns={name: _aggregate(each) for name, each in _aggregates(handler).items()},
        earlier=made.earlier,
    )


def _aggregates(handler: Handler) -> Mapping[str, Aggregate]:
    return handler.aggregates if isinstance(handler, Keeper) and not handler.faults else {}


def _aggregate(aggregate: Aggregate) -> str:
    """Digest of an aggregate with all that it was given: two kinds must not be in one column."""
    made = fingerprint_of(aggregate)
    return made.source or made.code


def _time_text(handler: Handler, stream: Stream) -> str:
    """What a compiled handler takes for the time of a stream's events, and how long it waits for late ones. Empty if it
    makes no difference to it. Windows have their lateness in their code."""
    if not (isinstance(handler, Joiner | Matcher) or (isinstance(handler, Keeper) and handler.compiled)):
        return ""
    spec = handler.spec if isinstance(handler, Joiner) else None
    if isinstance(spec, Lookup) and spec.view_key is not None:
        return ""  # the current row counts
    waits = isinstance(handler, Matcher) or isinstance(spec, Interval)
    waits |= isinstance(spec, Lookup) and stream.name == handler.inputs[0]
    late = f", up to {stream.late_after or timedelta(0)} late" if waits else ""
    time = stream.event.__time_field__
    return f"{_first_name(stream.event, time) if time is not None else 'log time'}{late}"


def _first_name(event: type[Event], field: str) -> str:
    """The name that a field had at first, by what its class says."""
    renamed = {new: old for old, new in event.__renamed__.items()}
    for _ in range(len(renamed)):
        field = renamed.get(field, field)
    return field


def _key_text(fields: tuple[str, ...], first_names: Mapping[str, str]) -> str:
    """A key as text: the first name of its field, or of each of them."""
    names = [first_names.get(each, each) for each in fields]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def handler_functions(handler: Handler) -> Fingerprint:
    """Fingerprint of what the user wrote for a handler; of one that is compiled, of what it was compiled to."""
    if isinstance(handler, Matcher):
        return fingerprint_of(handler.search, *handler.written)
    if isinstance(handler, Joiner):
        return fingerprint_of(handler.spec, *handler.written)
    if handler.written:
        return fingerprint_of(tuple(handler.timers), *handler.written)
    settle = handler.settle if isinstance(handler, Keeper) else None
    made = fingerprint_of(handler.function, *handler.timers.values(), settle)
    source = digest("compiled", repr(shape_of(handler.state)))  # it has a mark of the declaration
    return replace(made, source=source, earlier=source)


def view_text(view: View) -> Fingerprint:
    """Fingerprint of the text of a view and all that it refers to."""
    if view.query is not None:
        text = digest("sql", normal_sql(view.query))
        return Fingerprint(text, text, earlier=text)
    assert view.function is not None
    return fingerprint(view.function)


def _around(app: App, view: View, above: tuple[str, ...], *, by: By = "code") -> Iterator[str]:
    """What else the plan of a view depends on: its options, and the columns of what it reads. Those of the views that a
    derived one reads do not count: it is recomputed from their rows."""
    yield from (*view.key, "options", *(f"{name}={value}" for name, value in sorted(view_options(view).items())))
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    queries = {each.name: each for each in app.queries}
    for name in view.reads:
        yield f"reads {name}"
        event = event_class(app, name)
        if event is not None:
            yield _fields_text(event)
            yield repr(sorted(event.__renamed__.items()))
            yield _reading(event)
        if name in streams:
            yield f"{event and event.__time_field__} {streams[name].late_after}"
        base = name.removesuffix(CHANGES_SUFFIX)
        if base in queries and base not in above and not is_derived(app, view):
            text = view_text(queries[base])
            yield str({"code": text.code, "source": text.source, "earlier": text.earlier}[by])
            yield from _around(app, queries[base], (*above, view.name), by=by)


def event_class(app: App, name: str) -> type[Event] | None:
    """The class of the events of a stream, or of the rows of a view that a handler keeps; None of a view of Spark's."""
    return row_classes(app).get(name.removesuffix(CHANGES_SUFFIX))


def classes_behind(app: App, view: View) -> frozenset[str]:
    """The streams, and the views that handlers keep, whose classes the plan of a view depends on: those that it reads,
    and those behind the views whose changes it reads."""
    queries = {each.name: each for each in app.queries}
    names = [name.removesuffix(CHANGES_SUFFIX) for name in view.reads]
    behind = [classes_behind(app, queries[name]) for name in names if name in queries]
    return frozenset(name for name in names if name not in queries).union(*behind)


def _fields_text(event: type[Event]) -> str:
    return ", ".join(f"{each.name}: {type_name(each.hint)}" for each in fields(event))


def _reading(event: type[Event] | None) -> str:
    """How events that were stored with an earlier version of their class are read: a text that changes when they may
    be read as something else. Empty if they are read as they were written."""
    migrate = migrate_of(event) if event is not None else None
    if migrate is None or event is None:
        return ""
    made = fingerprint(migrate)
    return f"version {event.__event_version__} {made.source or made.code}"
