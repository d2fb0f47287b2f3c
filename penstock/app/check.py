"""Checks of an app's declarations that need neither Spark nor data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, get_origin
from uuid import UUID

from penstock.app import shed, view_time
from penstock.app.app import App
from penstock.app.declared import (
    CHANGES_SUFFIX,
    Feed,
    Function,
    Handler,
    Joiner,
    Matcher,
    Recognizer,
    Stream,
    View,
    ViewHandler,
    Webhook,
    Where,
)
from penstock.app.graph import is_derived, nodes, row_classes
from penstock.app.sql import syntax_problem
from penstock.core import signing
from penstock.core.errors import BadExpression, DeclarationError
from penstock.core.filters import compiled
from penstock.core.operators import SPAN_MAX, key_names
from penstock.core.schema import (
    HIDDEN_COLUMNS,
    SYSTEM_COLUMNS,
    Event,
    UnmappedType,
    event_problem,
    event_schema,
    fields,
    shown,
    state_problem,
    untyped,
)

if TYPE_CHECKING:
    import pyarrow as pa

NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,46}[a-z0-9])?")
NAME_RULE = "use 1 to 48 characters from a-z, 0-9, - and _, beginning and ending with a letter or digit"
PARTITIONS_MAX = 1024
WEBHOOK_BATCH_MAX = 1_000
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OURS = "PENSTOCK_"
_KEYABLE = (str, int, bool, datetime, UUID, Decimal)


@dataclass(frozen=True)
class Problem:
    """One error in an app's declarations, with its file and line."""

    where: Where
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def check(app: App) -> list[Problem]:
    """Return all problems of an app, in the order of its declarations."""
    problems = [*_name_problems(app)]
    for stream in app.streams:
        problems += _stream_problems(stream)
    for view in app.queries:
        problems += view_problems(app, view)
    for handler in app.handlers:
        problems += _handler_problems(app, handler)
    for inlet in app.inlets:
        if inlet.into not in {stream.name for stream in app.streams}:
            message = f"source {inlet.name}: into is {inlet.into!r}, which is not a stream of this app"
            problems.append(Problem(inlet.where, message))
    for feed in app.feeds:
        problems += _feed_source_problems(app, feed)
    for webhook in app.webhooks:
        problems += _webhook_problems(app, webhook)
    return [*problems, *_cycle_problems(app)]


def require_sound(app: App) -> None:
    """Raise `DeclarationError` with all problems of an app, if it has any."""
    problems = check(app)
    if problems:
        raise DeclarationError("\n".join(map(str, problems)), problems=[str(problem) for problem in problems])


def require_sound_view(app: App, view: View) -> None:
    """Raise `DeclarationError` with the first problem of a view, if it has any."""
    for problem in view_problems(app, view):
        raise DeclarationError(str(problem), problems=[str(problem)])


def _name_problems(app: App) -> Iterator[Problem]:
    if not NAME.fullmatch(app.name):
        yield Problem(app.where, f"app {app.name!r}: the name is invalid; {NAME_RULE}")
    seen: dict[str, Where] = {}
    for kind, declaration in _declarations(app):
        if not NAME.fullmatch(declaration.name):
            yield Problem(declaration.where, f"{kind} {declaration.name!r}: the name is invalid; {NAME_RULE}")
        if declaration.name in seen:
            yield Problem(
                declaration.where,
                f"{kind} {declaration.name}: the name is already used by the declaration at {seen[declaration.name]}",
            )
        seen.setdefault(declaration.name, declaration.where)


def _declarations(app: App) -> Iterator[tuple[str, Any]]:
    yield from (("stream", stream) for stream in app.streams)
    yield from (("view", view) for view in app.queries)
    yield from (("handler", handler) for handler in app.handlers)
    yield from (("source", inlet) for inlet in app.inlets)
    yield from (("feed", feed) for feed in app.feeds)
    yield from (("webhook", webhook) for webhook in app.webhooks)


def _feed_source_problems(app: App, feed: Feed) -> Iterator[Problem]:
    """Yield the problems with a feed. If the feed reads a view, its filter is checked elsewhere against the view's
    columns, which only Spark can determine."""
    streams = row_classes(app)
    if feed.of not in streams and feed.of not in {view.name for view in app.views}:
        yield Problem(feed.where, f"feed {feed.name}: it reads {feed.of!r}, which is not a stream or view of this app")
    elif feed.of in streams:
        with suppress(UnmappedType):  # reported with the stream
            yield from feed_problems(feed, shown(event_schema(streams[feed.of])))


def feed_problems(feed: Feed, schema: pa.Schema) -> Iterator[Problem]:
    """Yield the problems with a feed's filter, given the columns of its stream or view."""
    try:
        compiled(schema, feed.condition, feed.select)
    except BadExpression as error:
        yield Problem(feed.where, f"feed {feed.name}: {error.message}")


def _webhook_problems(app: App, webhook: Webhook) -> Iterator[Problem]:
    def problem(message: str) -> Problem:
        return Problem(webhook.where, f"webhook {webhook.name}: {message}")

    streams = row_classes(app)
    if webhook.of not in {*streams, *(view.name for view in app.views), *(feed.name for feed in app.feeds)}:
        yield problem(f"it sends {webhook.of!r}, which is not a stream, view or feed of this app")
    elif webhook.of in streams:
        try:
            compiled(shown(event_schema(streams[webhook.of])), webhook.condition, webhook.select)
        except BadExpression as error:
            yield problem(error.message)
        except UnmappedType:
            return  # reported with the stream
    if not isinstance(webhook.url, str) or not webhook.url.startswith(("https://", "http://")):
        yield problem("its url must begin with https:// (or with http://, for an address in an allowed network)")
    if webhook.secret.startswith(signing.PREFIX):
        yield problem("secret must be the name of an environment variable or the path of a file, not the secret itself")
    elif "/" not in webhook.secret and (not VARIABLE.fullmatch(webhook.secret) or webhook.secret.startswith(OURS)):
        yield problem(
            f"secret must be either the name of an environment variable that does not begin with {OURS}, or the path "
            "of a file"
        )
    if not isinstance(webhook.batch, int) or not 1 <= webhook.batch <= WEBHOOK_BATCH_MAX:
        yield problem(f"batch must be from 1 to {WEBHOOK_BATCH_MAX}")


def _stream_problems(stream: Stream) -> Iterator[Problem]:
    def problem(message: str) -> Problem:
        return Problem(stream.where, f"stream {stream.name}: {message}")

    if not (isinstance(stream.event, type) and issubclass(stream.event, Event) and stream.event is not Event):
        yield problem(f"{stream.event!r} is not a class derived from Event")
        return
    try:
        event_schema(stream.event)
        kinds = {field.name: field for field in fields(stream.event)}
    except UnmappedType as error:
        yield problem(f"{stream.event.__name__}{error.message.removeprefix('$')}")
        return
    except NameError as error:
        yield problem(f"a type of {stream.event.__name__} cannot be resolved: {error}")
        return
    if not kinds:
        yield problem(f"{stream.event.__name__} has no fields")
    for name in untyped(stream.event):
        yield problem(f"{name} has no type, so it is not a field; write `name: type`, or ClassVar for a constant")
    for name in kinds:
        if name in HIDDEN_COLUMNS:
            yield problem(f"the field name {name} is reserved by Penstock")
    for role, chosen in (("key", stream.key), ("id", stream.event.__id_field__)):
        if chosen is None:
            continue
        if chosen not in kinds:
            yield problem(
                f"the {role} {chosen!r} is not a field of {stream.event.__name__}; its fields are {', '.join(kinds)}"
            )
        elif not _can_be_key(kinds[chosen].base):
            yield problem(f"the {role} {chosen!r} has a type that cannot identify an event; use a string or an integer")
    yield from map(problem, filter(None, [event_problem(stream.event), _default_problem(stream.event)]))
    yield from map(problem, _time_problems(stream, kinds))
    if stream.shed is not None:
        yield from map(problem, shed.problems(stream.shed, stream.event, kinds))


def _default_problem(event: type[Event]) -> str | None:
    """Describe the problem with the defaults of an event class, or return None if there is no problem. Does not check a
    class with reserved names, which are reported separately."""
    if set(HIDDEN_COLUMNS) & set(event.__struct_fields__):
        return None
    from penstock.core.event_shape import event_spec  # imported here: it loads pyarrow, which declarations do not need

    try:
        event_spec(event)
    except DeclarationError as error:
        return error.message
    return None


def _can_be_key(base: Any) -> bool:
    return base in _KEYABLE or get_origin(base) is Literal or (isinstance(base, type) and issubclass(base, Enum))


def _time_problems(stream: Stream, kinds: dict[str, Any]) -> Iterator[str]:
    time = stream.event.__time_field__
    if time is not None and time not in kinds:
        yield f"the time {time!r} is not a field of {stream.event.__name__}; its fields are {', '.join(kinds)}"
    elif time is not None and kinds[time].base is not datetime:
        yield f"the time field {time!r} must be a datetime (or EpochMillis)"
    for option in ("late_after", "ahead"):
        if getattr(stream, option) is not None and time is None:
            yield f"{option} needs an event time: write class {stream.event.__name__}(Event, time=...)"
    late = stream.late_after
    if late is not None and not (isinstance(late, timedelta) and late >= timedelta(0)):
        yield "late_after must be a timedelta of zero or more"
    for option in ("keep", "ahead"):
        value = getattr(stream, option)
        if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
            yield f"{option} must be a timedelta above zero"
    if isinstance(stream.ahead, timedelta) and stream.ahead > SPAN_MAX:
        yield f"ahead is {stream.ahead}, but the maximum is {SPAN_MAX.days} days; omit it to accept any time"
    if stream.partitions is not None and not 1 <= stream.partitions <= PARTITIONS_MAX:
        yield f"partitions must be from 1 to {PARTITIONS_MAX}"


def view_problems(app: App, view: View) -> Iterator[Problem]:
    """Yield the problems with one view that can be found without Spark."""

    def problem(message: str) -> Problem:
        return Problem(view.where, f"view {view.name}: {message}")

    streams, views = {stream.name for stream in (*app.streams, *app.outputs)}, {other.name for other in app.views}
    changes = {other.changes.name for other in app.views}
    if not view.reads:
        error = syntax_problem(view.query) if view.query is not None else None
        yield problem("it reads nothing" if error is None else f"its SQL is invalid: {error}")
    known = streams | views | changes
    for name in view.reads:
        if name not in known:
            others = [other for other in sorted(streams | views) if not _belongs_to_view(view, other)]
            near = get_close_matches(name, others, 1)
            hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(others) or 'none'}"
            yield problem(f"it reads {name!r}, which is not a stream or view of this app; {hint}")
        elif "." in name and view.query is not None and f"`{name}`" not in view.query:
            yield problem(f"write {name} in backticks: `{name}`")
    if is_derived(app, view):
        yield from map(problem, _derived_view_problems(view))
    elif known.issuperset(view.reads):
        yield from map(problem, _mixed_input_problems(view, views))
    if view.emit not in ("change", "close"):
        yield problem(f"emit is {view.emit!r}; use 'change' or 'close'")
    yield from map(problem, _row_option_problems(view))
    yield from map(problem, view_time.problems(app, view))


def _belongs_to_view(view: View, name: str) -> bool:
    """Return whether a name belongs to the view or to one of its streams, such as the stream of late events."""
    return name == view.name or name.startswith(f"{view.name}.")


def _derived_view_problems(view: View) -> Iterator[str]:
    """Yield the problems with the options of a derived view, whose rows always equal the result of its query."""
    read = " and ".join(view.reads)
    if view.emit != "change":
        yield (
            f"emit={view.emit!r} cannot be used on a view that reads other views, because its rows change whenever the "
            f"rows of {read} do: remove emit"
        )
    if view.keep is not None:
        yield (
            f"keep cannot be used on a view that reads other views, because its rows come and go with the rows of "
            f"{read}: set keep on {read}, or add a condition to the query"
        )


def _mixed_input_problems(view: View, views: set[str]) -> Iterator[str]:
    """Yield a problem if a view reads both streams and rows of views, because a batch that is run again could see
    different rows."""
    rows = [name for name in view.reads if name in views]
    if not rows:
        return
    streams = [name for name in view.reads if name not in views]
    yield (
        f"it reads both the stream {streams[0]} and the rows of the view {rows[0]}, but a batch that is run again "
        f"could see different rows: look up the rows with app.enrich (docs/joins.md)"
    )


def _row_option_problems(view: View) -> Iterator[str]:
    """Yield the problems with the key, the ranking and the retention of a view's rows."""
    if not view.key:
        yield "it has no key: set key= to the columns that identify a row"
    if len(set(view.key)) != len(view.key):
        yield "its key contains a column twice"
    if (view.top is None) != (view.by is None):
        yield "top and by must be set together: top is the number of rows, and by is the column that ranks them"
    if view.top is not None and not (isinstance(view.top, int) and view.top >= 1):
        yield "top must be an integer of at least 1"
    if view.keep is not None and not (isinstance(view.keep, timedelta) and view.keep > timedelta(0)):
        yield "keep must be a timedelta above zero"


def _handler_problems(app: App, handler: Handler) -> Iterator[Problem]:
    def problem(message: str) -> Problem:
        return Problem(handler.where, f"handler {handler.name}: {message}")

    if isinstance(handler, ViewHandler) and handler.compiled:
        own_faults: Iterable[str | None] = ()  # the state class is generated
    elif isinstance(handler, Joiner):
        own_faults = handler.faults
    else:
        own_faults = _pattern_problems(app, handler) if isinstance(handler, Matcher) else [state_problem(handler.state)]
    kept = _view_handler_problems(handler) if isinstance(handler, ViewHandler) else ()
    emitted = () if isinstance(handler, ViewHandler) and handler.faults else _emitted_class_problems(handler)
    faults = [*_input_problems(app, handler), *own_faults, *emitted, *kept]
    yield from map(problem, filter(None, faults))
    if not handler.reads:
        yield problem("it reads nothing")
    roles: list[tuple[str, Function]]
    if isinstance(handler, Matcher):
        roles = [("it", handler.select), *(("its timeout", function) for function in handler.late)]
    elif isinstance(handler, Joiner):
        roles = [("it", handler.select)]
    else:
        roles = [
            ("it", handler.function),
            *((f"timer {name!r}", function) for name, function in handler.timers.items()),
        ]
    for role, function in roles:
        if iscoroutinefunction(function) or isasyncgenfunction(function):
            yield problem(f"{role} is async; write def instead of async def")


def _pattern_problems(app: App, handler: Matcher) -> Iterator[str]:
    """Yield the problems with a pattern and its inputs."""
    yield from handler.faults
    if handler.timeouts is None and handler.late:
        yield "it has a timeout function, but no class for the events that the function emits: set timeouts=Class"
    if handler.timeouts is not None and len(handler.late) != 1:
        yield f"it declares timeouts, but has {len(handler.late)} timeout functions: declare exactly one, with .timeout"
    if handler.timeouts is not None and handler.search.within is None and handler.search.gap is None:
        yield "it declares timeouts, but has no time limit: set within= or gap=, or remove timeouts="
    streams = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}
    classes = [streams[name] for name in handler.reads if name in streams]
    timeless = [cls.__name__ for cls in classes if getattr(cls, "__time_field__", None) is None]
    if timeless and len(timeless) < len(classes):
        yield (
            f"{timeless[0]} has no event time, but the other inputs have one: write class {timeless[0]}(Event, "
            "time=...)"
        )


def _input_problems(app: App, handler: Handler) -> Iterator[str]:
    """Yield the problems with a handler's inputs."""
    declared = {stream.name: stream for stream in app.streams}
    streams = declared | {stream.name: stream for stream in app.outputs}
    views = {view.name for view in app.views}
    for name, read in zip(handler.reads, handler.inputs, strict=True):
        if name in handler.rows and name in views:
            yield from _handler_key_problems(handler, Stream(read, handler.rows[name], handler.where))
        elif isinstance(handler, Joiner) and handler.view == name:
            continue  # the class for the view's rows is missing, which is reported separately
        elif name not in streams:
            yield f"it reads {name!r}, which {_why_unreadable(name, views)}; available: {', '.join(sorted(streams))}"
        elif len(handler.reads) > 1 and name not in declared:
            yield (
                f"it reads {name!r}, which a handler writes, together with other streams: read either {name!r} alone, "
                "or only streams that no handler writes"
            )
        else:
            yield from _handler_key_problems(handler, streams[name])
            yield from _condition_problems(handler, streams[name])


def _why_unreadable(name: str, views: Collection[str]) -> str:
    """Return why a handler cannot read the declaration with this name, and what to do instead."""
    view = name.removesuffix(CHANGES_SUFFIX)
    if name in views:
        return "is a view, but a handler reads only streams: look up the view's rows with app.enrich"
    if view in views:
        return (
            f"only a view can read: look up the rows of {view} with app.enrich(table={view!r}), or read the changes in "
            "a view"
        )
    return "is not a stream of this app"


def _handler_key_problems(handler: Handler, stream: Stream) -> Iterator[str]:
    try:
        kinds = {field.name: field for field in fields(stream.event)}
    except (NameError, TypeError, AttributeError):
        return  # an error in the stream, which is reported separately
    key = handler.key_of(stream.name)
    if not any(key) and isinstance(handler, Recognizer | Joiner):
        return  # its condition could not be parsed, which is reported separately
    several = isinstance(handler, Joiner) or (isinstance(handler, ViewHandler) and handler.compiled)
    if not all(isinstance(name, str) for name in key) or (len(key) > 1 and not several):
        given = key[0] if len(key) == 1 else key
        count = "one or more fields" if several else "one field"
        yield f"the key is {given!r}; use the name of {count} of {stream.event.__name__}: {', '.join(kinds)}"
        return
    if len(set(key)) < len(key):
        yield f"the key is {', '.join(key)}, which contains a field twice"
    for name in key:
        if name not in kinds:
            yield f"the key {name!r} is not a field of {stream.event.__name__}; its fields are {', '.join(kinds)}"
        elif not _can_be_key(kinds[name].base):
            yield f"the key {name!r} has a type that cannot be used as a key; use a string or an integer"


def _condition_problems(handler: Handler, stream: Stream) -> Iterator[str]:
    """Yield the problems with the condition for the events of a stream."""
    where = handler.condition_of(stream.name)
    if where is None:
        return
    try:
        compiled(shown(event_schema(stream.event)), where, None)
    except BadExpression as error:
        yield f"where={str(where)[:80]!r} for {stream.name}: {error.message}"
    except (DeclarationError, NameError, TypeError, AttributeError):
        return  # an error in the stream, which is reported separately


def _view_handler_problems(view_handler: ViewHandler) -> Iterator[str]:
    """Yield the problems with a handler's view."""
    yield from view_handler.faults
    yield from _row_option_problems(view_handler.view)
    if view_handler.faults:
        return  # there is no row class
    try:
        kinds = {field.name: field.base for field in fields(view_handler.row)}
        schema = event_schema(view_handler.row)
    except (UnmappedType, NameError, TypeError, AttributeError):
        return  # reported with the class
    for name in view_handler.view.key:
        if name not in kinds:
            row = view_handler.row.__name__
            yield f"its view's key {name!r} is not a field of {row}; its fields are {', '.join(kinds)}"
        elif not _can_identify_row(schema.field(name).type):
            yield f"its view's key {name!r} has a type that cannot identify a row; use a string or an integer"
    for name in key_names(view_handler.key):
        if view_handler.view.key and isinstance(name, str) and name not in view_handler.view.key:
            yield f"its view's key must include {name!r}, or rows with different keys would overwrite each other"
    if view_handler.view.by is not None and view_handler.view.by not in [*kinds]:
        yield (
            f"by={view_handler.view.by!r} is not a field of {view_handler.row.__name__}; its fields are "
            f"{', '.join(kinds)}"
        )


def _can_identify_row(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return all(_can_identify_row(field.type) for field in kind)
    return not (pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind))


def _emitted_class_problems(handler: Handler) -> Iterator[str]:
    """Yield the problems with the declared classes that a handler emits."""
    emits = (
        handler.emits[:-1] if isinstance(handler, ViewHandler) else handler.emits
    )  # the last class is derived from the row's class
    for cls in emits:
        if not (isinstance(cls, type) and issubclass(cls, Event) and cls is not Event):
            yield f"it emits {cls!r}, which is not a class derived from Event"
            continue
        try:
            if not event_schema(cls).names[: -len(SYSTEM_COLUMNS)]:
                yield f"it emits {cls.__name__}, which has no fields"
        except UnmappedType as error:
            yield f"it emits {cls.__name__}{error.message.removeprefix('$')}"
            continue
        except NameError as error:
            yield f"it emits {cls.__name__}, and a type of that class cannot be resolved: {error}"
            continue
        yield from filter(None, [event_problem(cls), _default_problem(cls)])
    names = [getattr(cls, "__name__", "") for cls in emits]
    if len(set(names)) < len(names):
        yield "two of the classes that it emits have the same name"


def _cycle_problems(app: App) -> Iterator[Problem]:
    known = nodes(app)
    clear: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> tuple[str, ...] | None:
        if name in path:
            return (*path[path.index(name) :], name)
        if name not in known or name in clear:
            return None
        for read in known[name].reads:
            cycle = walk(read, (*path, name))
            if cycle:
                return cycle
        clear.add(name)
        return None

    for name, node in known.items():
        cycle = walk(name, ())
        if cycle and cycle[0] == name:
            kind = "view" if isinstance(node, View) else "handler"
            yield Problem(node.where, f"{kind} {node.name}: it reads its own output through {' <- '.join(cycle)}")
