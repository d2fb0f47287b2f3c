"""Fingerprints of declarations: the parts that can be computed without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from operator import itemgetter
from typing import Literal, cast

from msgspec import NODEFAULT, Struct, structs

from penstock.app.app import App
from penstock.app.check import Problem
from penstock.app.declared import CHANGES_SUFFIX, Handler, Joiner, Matcher, Recognizer, Stream, View, ViewHandler
from penstock.app.fingerprints.classes import is_local_class, nested_classes, written_contents
from penstock.app.fingerprints.digests import digest
from penstock.app.fingerprints.functions import EARLIER, Fingerprint, fingerprint, fingerprint_of
from penstock.app.fingerprints.observing import NAMES
from penstock.app.fingerprints.parts import part_text, reading_text
from penstock.app.fingerprints.recognized import output_text
from penstock.app.fingerprints.sqltext import normal_sql
from penstock.app.fingerprints.stored import HandlerPrint, StreamPrint, ViewPrint, versions
from penstock.app.graph import is_derived, row_classes
from penstock.core.schema import Event, State, fields, migrate_of, type_name
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.joins.declaring import Interval, Lookup
from penstock.windows.aggregates import Aggregate

By = Literal["code", "source"] | int
"""The kind of a function's digest: of its code, of its source, or, for a number, of its source in that earlier form of
fingerprints."""

UNSEEN = "but the next start cannot detect whether its value has changed; use plain values instead"


def stream_print(stream: Stream, settings: Settings, first_names: Mapping[str, str]) -> StreamPrint:
    """Return the fingerprint of a stream. `first_names` maps each renamed field of its events to its first name."""
    event, partitions = stream.event, stream.partitions or settings.partitions
    key = stream.key if stream.key is None else first_names.get(stream.key, stream.key)
    return StreamPrint(key, partitions, event.__id_field__, event.__time_field__, _reading_text(event))


def view_print(app: App, view: View) -> ViewPrint:
    """Return the fingerprint of a view computed by Spark, without its plan."""
    text = view_text(view)
    surface = digest(text.code, *_plan_dependencies(app, view, ()))
    source = None if text.source is None else digest(text.source, *_plan_dependencies(app, view, (), by="source"))
    sources = {
        form: None if earlier is None else digest(earlier, *_plan_dependencies(app, view, (), by=form))
        for form, earlier in text.earlier.items()
    }
    return ViewPrint(
        view.reads,
        view.key,
        view_options(view),
        surface,
        source,
        versions(),
        {name: reading for name in view.reads if (reading := _reading_text(event_class(app, name)))},
        sources=sources,
    )


def view_options(view: View) -> dict[str, str]:
    """Return a view's options except its key. Options that are not set are omitted."""
    given = {"keep": view.keep, "top": view.top, "by": view.by, "emit": view.emit, "time": view.time}
    return {name: str(value) for name, value in given.items() if value is not None}


def handler_print(
    handler: Handler, streams: Iterable[Stream] = (), first_names: Mapping[str, Mapping[str, str]] | None = None
) -> HandlerPrint:
    """Return the fingerprint of a handler in an app with these streams. For each stream, `first_names` maps each
    renamed field of its events to its first name."""
    known = {stream.name: stream for stream in streams}
    read = {name: known[name] for name in handler.inputs if name in known}
    functions = handler_functions(handler)
    if NAMES & functions.observes:
        names = [cls.__qualname__ for cls in _handler_classes(handler, read.values())]
        functions = _with_text(functions, repr(names))
    return HandlerPrint(
        handler.inputs,
        tuple(_key_text(handler.key_of(name), (first_names or {}).get(name, {})) for name in handler.inputs),
        functions.code,
        functions.source,
        versions(),
        {stream.name: _fields_text(stream.event) for stream in handler.outputs},
        handler.view.key if isinstance(handler, ViewHandler) else None,
        view_options(handler.view) if isinstance(handler, ViewHandler) else {},
        readings={name: reading for name, stream in read.items() if (reading := _reading_text(stream.event))},
        where={name: where for name in handler.inputs if (where := handler.condition_of(name)) is not None},
        times={name: time for name, stream in read.items() if (time := _time_text(handler, stream))},
        columns={name: part_text(fingerprint_of(part)) for name, part in _view_aggregates(handler).items()},
        sources=dict(functions.earlier),
        classes=dict(_class_digests(handler, read.values())),
        defaults=_state_default_digests(handler.state),
        members=dict(_member_digests(handler, read.values())),
    )


def _view_aggregates(handler: Handler) -> Mapping[str, Aggregate]:
    return handler.aggregates if isinstance(handler, ViewHandler) and not handler.faults else {}


def _class_digests(handler: Handler, streams: Iterable[Stream]) -> Iterator[tuple[str, str]]:
    """Yield the name and digest of each class of a handler's state and events, and of each class in their fields. A
    digest covers everything that the user wrote in the class body. Classes whose bodies contain only fields are left
    out."""
    for cls in _handler_classes(handler, streams):
        written = sorted(written_contents(cls), key=itemgetter(0))
        if written:
            yield cls.__qualname__, part_text(fingerprint_of(*(part for pair in written for part in pair)))


def _member_digests(handler: Handler, streams: Iterable[Stream]) -> Iterator[tuple[str, str]]:
    """Yield each member of the enums in a handler's state and events, with the digest of its value: code may read the
    name of a member, but only its value is stored."""
    for cls in _handler_classes(handler, streams):
        if issubclass(cls, Enum):
            for name, member in cls.__members__.items():
                yield f"{cls.__qualname__}.{name}", part_text(fingerprint_of(member.value))


def _handler_classes(handler: Handler, streams: Iterable[Stream]) -> list[type]:
    return nested_classes((handler.state, *(stream.event for stream in streams)))


def _state_default_digests(state: type[State]) -> dict[str, str]:
    """Return the digests of the default values in the state of a new key, by field name. Empty if the handler is
    compiled."""
    if not is_local_class(state):
        return {}
    return {field.encode_name: _default_digest(field) for field in structs.fields(cast(type[Struct], state))}


def _default_digest(field: structs.FieldInfo) -> str:
    return part_text(fingerprint_of(field.default_factory if field.default is NODEFAULT else field.default))


def _time_text(handler: Handler, stream: Stream) -> str:
    """Return, as text, the time field of a stream's events and the time for which a compiled handler waits for late
    events. Empty if neither affects the handler. The generated code of a window already includes its lateness."""
    if not (isinstance(handler, Joiner | Matcher) or (isinstance(handler, ViewHandler) and handler.compiled)):
        return ""
    spec = handler.spec if isinstance(handler, Joiner) else None
    if isinstance(spec, Lookup) and spec.view_key is not None:
        return ""  # the join uses the current row
    waits = isinstance(handler, Matcher) or isinstance(spec, Interval)
    waits |= isinstance(spec, Lookup) and stream.name == handler.inputs[0]
    late = f", up to {stream.late_after or timedelta(0)} late" if waits else ""
    time = stream.event.__time_field__
    return f"{_first_field_name(stream.event, time) if time is not None else 'log time'}{late}"


def _first_field_name(event: type[Event], field: str) -> str:
    """Return the first name that a field had, following the renames in its class."""
    renamed = {new: old for old, new in event.__renamed__.items()}
    for _ in range(len(renamed)):
        field = renamed.get(field, field)
    return field


def _key_text(fields: tuple[str, ...], first_names: Mapping[str, str]) -> str:
    """Return a key as text: the first name of each of its fields."""
    names = [first_names.get(field, field) for field in fields]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def handler_functions(handler: Handler) -> Fingerprint:
    """Return the fingerprint of a handler's functions: the user's functions, or the generated functions if the handler
    is compiled."""
    if isinstance(handler, Recognizer) and not handler.faults:
        return _with_text(fingerprint_of(handler.search), output_text(handler.text))
    if isinstance(handler, Matcher):
        return fingerprint_of(handler.search, *handler.written)
    if isinstance(handler, Joiner):
        return fingerprint_of(handler.spec, *handler.written)
    if handler.written:
        return fingerprint_of(tuple(handler.timers), *handler.written)
    settle = handler.settle if isinstance(handler, ViewHandler) else None
    digests = fingerprint_of(handler.function, *handler.timers.values(), settle)
    source = digest("compiled", repr(shape_of(handler.state)))  # the state class contains a digest of the declaration
    return replace(digests, source=source, earlier=dict.fromkeys(EARLIER, source))


def _with_text(digests: Fingerprint, text: str) -> Fingerprint:
    """Return a fingerprint that covers a text too. Forms before 4 did not cover it."""
    source = None if digests.source is None else digest(digests.source, text)
    return replace(digests, code=digest(digests.code, text), source=source)


def incomparable(app: App) -> list[Problem]:
    """Return a problem for each handler and each `migrate` method that uses a value that can be compared only by type,
    so that a change to the value is not detected. For views, `plan_problems` reports this."""
    problems = [
        Problem(handler.where, f"handler {handler.name}: it uses {part}, {UNSEEN}")
        for handler in app.handlers
        for part in handler_functions(handler).opaque[:1]
    ]
    for stream in (*app.streams, *app.outputs):
        migrate = migrate_of(stream.event)
        opaque = fingerprint(migrate).opaque if migrate is not None else ()
        problems += [
            Problem(stream.where, f"stream {stream.name}: migrate uses {part}, {UNSEEN}") for part in opaque[:1]
        ]
    return problems


def view_text(view: View) -> Fingerprint:
    """Return the fingerprint of a view's function or query, and of everything that it refers to."""
    if view.query is not None:
        text = digest("sql", normal_sql(view.query))
        return Fingerprint(text, text, earlier=dict.fromkeys(EARLIER, text))
    assert view.function is not None
    return fingerprint(view.function)


def _plan_dependencies(app: App, view: View, above: tuple[str, ...], *, by: By = "code") -> Iterator[str]:
    """Yield everything else that the fingerprint of a view's plan depends on: its options and the columns of its
    inputs. The input views of a derived view are left out, because the derived view is recomputed from their rows."""
    yield from (*view.key, "options", *(f"{name}={value}" for name, value in sorted(view_options(view).items())))
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    queries = {query.name: query for query in app.queries}
    for name in view.reads:
        yield f"reads {name}"
        event = event_class(app, name)
        if event is not None:
            yield _fields_text(event)
            yield repr(sorted(event.__renamed__.items()))
            yield _reading_digest(event, by)
        if name in streams:
            yield f"{event and event.__time_field__} {streams[name].late_after}"
        base = name.removesuffix(CHANGES_SUFFIX)
        if base in queries and base not in above and not is_derived(app, view):
            text = view_text(queries[base])
            yield str({"code": text.code, "source": text.source}[by] if isinstance(by, str) else text.earlier.get(by))
            yield from _plan_dependencies(app, queries[base], (*above, view.name), by=by)


def event_class(app: App, name: str) -> type[Event] | None:
    """Return the class of a stream's events, or of the rows in a handler's view, or None for a view computed by
    Spark."""
    return row_classes(app).get(name.removesuffix(CHANGES_SUFFIX))


def classes_behind(app: App, view: View) -> frozenset[str]:
    """Return the streams and handler views whose classes a view's plan depends on: its inputs, and the inputs of the
    views whose changes it reads."""
    queries = {query.name: query for query in app.queries}
    names = [name.removesuffix(CHANGES_SUFFIX) for name in view.reads]
    behind = [classes_behind(app, queries[name]) for name in names if name in queries]
    return frozenset(name for name in names if name not in queries).union(*behind)


def _fields_text(event: type[Event]) -> str:
    """Return the fields of an event class and their types, as text for a fingerprint."""
    return ", ".join(f"{field.name}: {type_name(field.hint)}" for field in fields(event))


def _reading_text(event: type[Event] | None) -> str:
    """Return a text that changes when stored events from earlier versions of a class might be read differently. Empty
    if events are read as they were written."""
    migrate = migrate_of(event) if event is not None else None
    return "" if migrate is None or event is None else reading_text(event.__event_version__, fingerprint(migrate))


def _reading_digest(event: type[Event], by: By) -> str:
    """Return one digest for everything that `_reading_text` depends on. Digests of sources in earlier forms of
    fingerprints contain the source of `migrate` in that form, or its instructions if it has no source."""
    migrate = migrate_of(event)
    if migrate is None:
        return ""
    digests = fingerprint(migrate)
    source = digests.earlier.get(by) if isinstance(by, int) else digests.source if by == "source" else None
    return f"version {event.__event_version__} {source or digests.code}"
