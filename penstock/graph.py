"""The app as a graph, and everything about it that can be checked without Spark and without data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, get_origin
from uuid import UUID

from penstock import shed, signing, times
from penstock.app import App
from penstock.declared import (
    CHANGES_SUFFIX,
    ChangeStream,
    Feed,
    Function,
    Handler,
    Joiner,
    Keeper,
    Matcher,
    Recognizer,
    Stream,
    View,
    Webhook,
    Where,
)
from penstock.errors import BadExpression, DeclarationError
from penstock.filters import compiled
from penstock.making import SPAN_MAX, key_names
from penstock.schema import (
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
from penstock.sql import syntax_problem

if TYPE_CHECKING:
    import pyarrow as pa

NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,46}[a-z0-9])?")
NAME_RULE = "use 1 to 48 of a-z, 0-9, - and _, beginning and ending with a letter or digit"
PARTITIONS_MAX = 1024
WEBHOOK_BATCH_MAX = 1_000
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OURS = "PENSTOCK_"
_CARRYING = (".failed", ".late", ".missed")
_KEYABLE = (str, int, bool, datetime, UUID, Decimal)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an app, and where."""

    where: Where
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def check(app: App) -> list[Problem]:
    """All problems, in the order of the declarations."""
    found = [*_names(app)]
    for stream in app.streams:
        found += _stream(stream)
    for view in app.queries:
        found += view_problems(app, view)
    for handler in app.handlers:
        found += _handler(app, handler)
    for inlet in app.inlets:
        if inlet.into not in {stream.name for stream in app.streams}:
            told = f"source {inlet.name}: it fills {inlet.into!r}, which is no stream of this app"
            found.append(Problem(inlet.where, told))
    for feed in app.feeds:
        found += _feed(app, feed)
    for webhook in app.webhooks:
        found += _webhook(app, webhook)
    return [*found, *_cycles(app)]


def require_sound(app: App) -> None:
    """Raise the problems of an app, if it has any, as one error."""
    problems = check(app)
    if problems:
        raise DeclarationError("\n".join(map(str, problems)), problems=[str(each) for each in problems])


def require_sound_view(app: App, view: View) -> None:
    """Raise the first problem of one view, if it has any."""
    for problem in view_problems(app, view):
        raise DeclarationError(str(problem), problems=[str(problem)])


Node = View | Handler


def nodes(app: App) -> dict[str, Node]:
    """What computes, by each name under which others read its results."""
    queries: dict[str, Node] = {view.name: view for view in app.queries}
    late = {stream.name: queries[name] for name, stream in app.late.items()}
    views = queries | {keeper.name: keeper for keeper in app.keepers}
    changes = {ChangeStream(name).name: node for name, node in views.items()}
    outputs: dict[str, Node] = {output.name: handler for handler in app.handlers for output in handler.outputs}
    return views | changes | late | outputs


def is_derived(app: App, view: View) -> bool:
    """Whether a view reads the rows of other views and nothing else."""
    views = {each.name for each in app.views}
    return bool(view.reads) and views.issuperset(view.reads)


def derived(app: App) -> list[View]:
    """The derived views, each after those it reads."""
    return [node for node in order(app) if isinstance(node, View) and is_derived(app, node)]


def derived_levels(app: App) -> list[list[str]]:
    """The names of derived views: those that read no other derived view, then those that read only them, and so on."""
    depths: dict[str, int] = {}
    levels: list[list[str]] = []
    for view in derived(app):
        depth = depths[view.name] = max((depths[name] + 1 for name in view.reads if name in depths), default=0)
        levels += [[]] if depth == len(levels) else []
        levels[depth].append(view.name)
    return levels


def order(app: App) -> list[Node]:
    """Views and handlers, each after those it reads."""
    known = nodes(app)
    done: dict[str, Node] = {}

    def visit(node: Node) -> None:
        for name in node.reads:
            if name in known and known[name].name not in done:
                visit(known[name])
        done[node.name] = node

    every: list[Node] = [*app.handlers, *app.queries]
    for node in every:
        if node.name not in done:
            visit(node)
    return list(done.values())


def downstream(app: App, name: str) -> list[str]:
    """The views and handlers that read a stream, view or handler, directly or by way of others, nearest first."""
    makers = {read: node.name for read, node in nodes(app).items()}
    found = [name]
    for node in order(app):
        if any(makers.get(each, each) in found for each in node.reads):
            found.append(node.name)
    return [each for each in found[1:] if each != name]


def change_streams(app: App) -> frozenset[str]:
    """The names of the views whose changes another view, or a handler, reads as a stream."""
    every: list[Node] = [*app.queries, *app.handlers]
    read = {name for node in every for name in log_inputs(app, node)}
    return frozenset(view.name for view in app.views if view.changes.name in read)


def log_inputs(app: App, node: Node) -> list[str]:
    """The names in the log of what a view or handler reads itself. A derived view reads nothing there."""
    if isinstance(node, Handler):
        return list(node.inputs)
    return [] if is_derived(app, node) else list(node.reads)


def read_streams(app: App, node: Node) -> list[str]:
    """The names in the log of what a view or handler is computed from: those that a derived view reads by way of
    others count too."""
    if isinstance(node, Handler) or not is_derived(app, node):
        return log_inputs(app, node)
    known = nodes(app)
    return list(dict.fromkeys(stream for name in node.reads for stream in read_streams(app, known[name])))


def carried(app: App) -> dict[str, list[str]]:
    """The streams that have whole events of others as text, as of those that a handler failed on or a view got too
    late, with the names of these others."""
    made = {output.name: handler for handler in app.handlers for output in handler.outputs}
    found = {name: read_streams(app, node) for name, node in made.items() if name.endswith(_CARRYING)}
    views = {view.name: view for view in app.queries}
    return found | {stream.name: read_streams(app, views[name]) for name, stream in app.late.items()}


def row_classes(app: App) -> dict[str, type[Event]]:
    """The classes of what is served, by name, as far as they are known without Spark: of streams, and of views that
    handlers keep."""
    streams = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}
    return streams | {keeper.name: keeper.row for keeper in app.keepers}


def _names(app: App) -> Iterator[Problem]:
    if not NAME.fullmatch(app.name):
        yield Problem(app.where, f"app {app.name!r}: this name is malformed: {NAME_RULE}")
    seen: dict[str, Where] = {}
    for kind, each in _declared(app):
        if not NAME.fullmatch(each.name):
            yield Problem(each.where, f"{kind} {each.name!r}: this name is malformed: {NAME_RULE}")
        if each.name in seen:
            yield Problem(each.where, f"{kind} {each.name}: this name is taken by the declaration at {seen[each.name]}")
        seen.setdefault(each.name, each.where)


def _declared(app: App) -> Iterator[tuple[str, Any]]:
    yield from (("stream", each) for each in app.streams)
    yield from (("view", each) for each in app.queries)
    yield from (("handler", each) for each in app.handlers)
    yield from (("source", each) for each in app.inlets)
    yield from (("feed", each) for each in app.feeds)
    yield from (("webhook", each) for each in app.webhooks)


def _feed(app: App, feed: Feed) -> Iterator[Problem]:
    """The filter of a feed of a view is checked with the columns of the view, which Spark knows."""
    streams = row_classes(app)
    if feed.of not in streams and feed.of not in {view.name for view in app.views}:
        yield Problem(feed.where, f"feed {feed.name}: it is of {feed.of!r}, which is no stream or view of this app")
    elif feed.of in streams:
        with suppress(UnmappedType):  # told of the stream
            yield from feed_problems(feed, shown(event_schema(streams[feed.of])))


def feed_problems(feed: Feed, schema: pa.Schema) -> Iterator[Problem]:
    """What is wrong with the filter of a feed, given the columns of what it is of."""
    try:
        compiled(schema, feed.condition, feed.select)
    except BadExpression as error:
        yield Problem(feed.where, f"feed {feed.name}: {error.message}")


def _webhook(app: App, webhook: Webhook) -> Iterator[Problem]:
    def problem(message: str) -> Problem:
        return Problem(webhook.where, f"webhook {webhook.name}: {message}")

    streams = row_classes(app)
    if webhook.of not in {*streams, *(view.name for view in app.views), *(feed.name for feed in app.feeds)}:
        yield problem(f"it sends {webhook.of!r}, which is no stream, view or feed of this app")
    elif webhook.of in streams:
        try:
            compiled(shown(event_schema(streams[webhook.of])), webhook.condition, webhook.select)
        except BadExpression as error:
            yield problem(error.message)
        except UnmappedType:
            return  # told of the stream
    if not isinstance(webhook.url, str) or not webhook.url.startswith(("https://", "http://")):
        yield problem("its url must begin with https:// (or http://, in a network that is allowed)")
    if webhook.secret.startswith(signing.PREFIX):
        yield problem("name the environment variable or the file that has the secret, not the secret itself")
    elif "/" not in webhook.secret and (not VARIABLE.fullmatch(webhook.secret) or webhook.secret.startswith(OURS)):
        yield problem(f"secret must name an environment variable that does not begin with {OURS}, or a file")
    if not isinstance(webhook.batch, int) or not 1 <= webhook.batch <= WEBHOOK_BATCH_MAX:
        yield problem(f"batch must be from 1 to {WEBHOOK_BATCH_MAX}")


def _stream(stream: Stream) -> Iterator[Problem]:
    def problem(message: str) -> Problem:
        return Problem(stream.where, f"stream {stream.name}: {message}")

    if not (isinstance(stream.event, type) and issubclass(stream.event, Event) and stream.event is not Event):
        yield problem(f"{stream.event!r} is not a class derived from Event")
        return
    try:
        event_schema(stream.event)
        kinds = {each.name: each for each in fields(stream.event)}
    except UnmappedType as error:
        yield problem(f"{stream.event.__name__}{error.message.removeprefix('$')}")
        return
    except NameError as error:
        yield problem(f"a type of {stream.event.__name__} cannot be resolved: {error}")
        return
    if not kinds:
        yield problem(f"{stream.event.__name__} has no fields")
    for name in untyped(stream.event):
        yield problem(f"{name} has no type, so it is no field; write `name: type`, or ClassVar for a constant")
    for name in kinds:
        if name in SYSTEM_COLUMNS:
            yield problem(f"the field name {name} is taken by Penstock")
    for role, chosen in (("key", stream.key), ("id", stream.event.__id_field__)):
        if chosen is None:
            continue
        if chosen not in kinds:
            yield problem(f"the {role} {chosen!r} is no field of {stream.event.__name__}; it has {', '.join(kinds)}")
        elif not _keyable(kinds[chosen].base):
            yield problem(
                f"the {role} {chosen!r} is of a type that cannot identify an event; use text or a whole number"
            )
    yield from map(problem, filter(None, [event_problem(stream.event), _default_problem(stream.event)]))
    yield from map(problem, _times(stream, kinds))
    if stream.shed is not None:
        yield from map(problem, shed.problems(stream.shed, stream.event, kinds))


def _default_problem(event: type[Event]) -> str | None:
    """What is wrong with the defaults of an event's fields; of names that are taken, that is told before."""
    if set(SYSTEM_COLUMNS) & set(event.__struct_fields__):
        return None
    from penstock.event_shape import event_spec  # loads pyarrow, which declaring an app does not need

    try:
        event_spec(event)
    except DeclarationError as error:
        return error.message
    return None


def _keyable(base: Any) -> bool:
    return base in _KEYABLE or get_origin(base) is Literal or (isinstance(base, type) and issubclass(base, Enum))


def _times(stream: Stream, kinds: dict[str, Any]) -> Iterator[str]:
    time = stream.event.__time_field__
    if time is not None and time not in kinds:
        yield f"the time {time!r} is no field of {stream.event.__name__}; it has {', '.join(kinds)}"
    elif time is not None and kinds[time].base is not datetime:
        yield f"the time {time!r} must be a datetime (or EpochMillis)"
    for option in ("late_after", "ahead"):
        if getattr(stream, option) is not None and time is None:
            yield f"{option} needs an event time: class {stream.event.__name__}(Event, time=...)"
    late = stream.late_after
    if late is not None and not (isinstance(late, timedelta) and late >= timedelta(0)):
        yield "late_after must be a timedelta, of zero or more"
    for option in ("keep", "ahead"):
        value = getattr(stream, option)
        if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
            yield f"{option} must be a timedelta above zero"
    if isinstance(stream.ahead, timedelta) and stream.ahead > SPAN_MAX:
        yield f"ahead is {stream.ahead}, and at most {SPAN_MAX.days} days; leave it out to take any time"
    if stream.partitions is not None and not 1 <= stream.partitions <= PARTITIONS_MAX:
        yield f"partitions must be from 1 to {PARTITIONS_MAX}"


def view_problems(app: App, view: View) -> Iterator[Problem]:
    """The problems of one view, as far as that is known without Spark."""

    def problem(message: str) -> Problem:
        return Problem(view.where, f"view {view.name}: {message}")

    streams, views = {each.name for each in (*app.streams, *app.outputs)}, {each.name for each in app.views}
    changes = {each.changes.name for each in app.views}
    if not view.reads:
        found = syntax_problem(view.query) if view.query is not None else None
        yield problem("it reads nothing" if found is None else f"its SQL cannot be read: {found}")
    known = streams | views | changes
    for name in view.reads:
        if name not in known:
            others = [each for each in sorted(streams | views) if not _is_of(view, each)]
            near = get_close_matches(name, others, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(others) or 'no others'}"
            yield problem(f"it reads {name!r}, which is not a stream or view of this app; {hint}")
        elif "." in name and view.query is not None and f"`{name}`" not in view.query:
            yield problem(f"write {name} in backticks: `{name}`")
    if is_derived(app, view):
        yield from map(problem, _derived(view))
    elif known.issuperset(view.reads):
        yield from map(problem, _mixed(view, views))
    if view.emit not in ("change", "close"):
        yield problem(f"emit is {view.emit!r}; use 'change' or 'close'")
    yield from map(problem, _rows_of(view))
    yield from map(problem, times.problems(app, view))


def _is_of(view: View, name: str) -> bool:
    """Whether a name is that of the view itself, or of what it makes, such as its late events."""
    return name == view.name or name.startswith(f"{view.name}.")


def _derived(view: View) -> Iterator[str]:
    """Problems with the options of a derived view: its rows are always what its query gives."""
    read = " and ".join(view.reads)
    if view.emit != "change":
        yield (
            f"emit={view.emit!r} cannot be used on a view that reads views: its rows change whenever those of {read} "
            "do. Leave emit out"
        )
    if view.keep is not None:
        yield (
            f"keep cannot be used on a view that reads views: its rows come and go with those of {read}. Put keep on "
            f"{read}, or a condition in the query"
        )


def _mixed(view: View, views: set[str]) -> Iterator[str]:
    """Why a view must not read streams and rows of views: a batch that is run again could see other rows."""
    rows = [name for name in view.reads if name in views]
    if not rows:
        return
    streams = [name for name in view.reads if name not in views]
    yield (
        f"it reads the stream {streams[0]} together with the rows of the view {rows[0]}, and a batch that is run again "
        f"could see other rows: look them up with app.enrich (docs/joins.md), or read {ChangeStream(rows[0]).name}, "
        "which is a stream"
    )


def _rows_of(view: View) -> Iterator[str]:
    """What is wrong with how the rows of a view are identified, ranked and kept."""
    if not view.key:
        yield "it has no key: name the columns that identify a row"
    if len(set(view.key)) != len(view.key):
        yield "a column stands twice in its key"
    if (view.top is None) != (view.by is None):
        yield "top and by go together: the number of rows, and the column they are ranked by"
    if view.top is not None and not (isinstance(view.top, int) and view.top >= 1):
        yield "top must be a whole number, at least 1"
    if view.keep is not None and not (isinstance(view.keep, timedelta) and view.keep > timedelta(0)):
        yield "keep must be a timedelta above zero"


def _handler(app: App, handler: Handler) -> Iterator[Problem]:
    def problem(message: str) -> Problem:
        return Problem(handler.where, f"handler {handler.name}: {message}")

    if isinstance(handler, Keeper) and handler.compiled:
        made: Iterable[str | None] = ()  # its state is ours
    elif isinstance(handler, Joiner):
        made = handler.faults
    else:
        made = _matcher(app, handler) if isinstance(handler, Matcher) else [state_problem(handler.state)]
    kept = _keeper(handler) if isinstance(handler, Keeper) else ()
    emitted = () if isinstance(handler, Keeper) and handler.faults else _emitted(handler)
    faults = [*_inputs(app, handler), *made, *emitted, *kept]
    yield from map(problem, filter(None, faults))
    if not handler.reads:
        yield problem("it reads nothing")
    roles: list[tuple[str, Function]]
    if isinstance(handler, Matcher):
        roles = [("it", handler.select), *(("its timeout", each) for each in handler.late)]
    elif isinstance(handler, Joiner):
        roles = [("it", handler.select)]
    else:
        roles = [("it", handler.function), *((f"timer {name!r}", each) for name, each in handler.timers.items())]
    for role, function in roles:
        if iscoroutinefunction(function) or isasyncgenfunction(function):
            yield problem(f"{role} is async; a handler is a plain function")


def _matcher(app: App, handler: Matcher) -> Iterator[str]:
    """What is wrong with a pattern, and with what it is looked for in."""
    yield from handler.faults
    if handler.timeouts is None and handler.late:
        yield "it has a function for timeouts and no class for what that makes: give timeouts=Class"
    if handler.timeouts is not None and len(handler.late) != 1:
        yield f"it declares timeouts, and {len(handler.late)} functions for them: declare one with .timeout"
    if handler.timeouts is not None and handler.search.within is None and handler.search.gap is None:
        yield "it declares timeouts, and no time is ever over: give within= or gap=, or leave timeouts= out"
    streams = {stream.name: stream.event for stream in (*app.streams, *app.outputs)}
    classes = [streams[name] for name in handler.reads if name in streams]
    timeless = [each.__name__ for each in classes if getattr(each, "__time_field__", None) is None]
    if timeless and len(timeless) < len(classes):
        yield f"{timeless[0]} has no event time, and others that it reads have: class {timeless[0]}(Event, time=...)"


def _inputs(app: App, handler: Handler) -> Iterator[str]:
    """What is wrong with what a handler reads."""
    declared = {stream.name: stream for stream in app.streams}
    streams = declared | {stream.name: stream for stream in app.outputs}
    views = {view.name for view in app.views}
    for name, read in zip(handler.reads, handler.inputs, strict=True):
        if name in handler.rows and name in views:
            yield from _key_of(handler, Stream(read, handler.rows[name], handler.where))
        elif name not in streams:
            viewed = name.removesuffix(CHANGES_SUFFIX) in views
            what = "a view: use app.enrich; a handler reads streams of events" if viewed else "not a stream here"
            yield f"it reads {name!r}, which is {what}; there are {', '.join(sorted(streams))}"
        elif len(handler.reads) > 1 and name not in declared:
            yield f"it reads {name!r}, which a handler fills, beside other streams; read one or the other"
        else:
            yield from _key_of(handler, streams[name])
            yield from _condition_of(handler, streams[name])


def _key_of(handler: Handler, stream: Stream) -> Iterator[str]:
    try:
        kinds = {each.name: each for each in fields(stream.event)}
    except (NameError, TypeError, AttributeError):
        return  # the stream's own problem, told with it
    key = handler.key_of(stream.name)
    if not any(key) and isinstance(handler, Recognizer | Joiner):
        return  # it was not read, and is told
    several = isinstance(handler, Joiner) or (isinstance(handler, Keeper) and handler.compiled)
    if not all(isinstance(name, str) for name in key) or (len(key) > 1 and not several):
        given = key[0] if len(key) == 1 else key
        count = "one field, or of several," if several else "one field"
        yield f"the key is {given!r}; give the name of {count} of {stream.event.__name__}: {', '.join(kinds)}"
        return
    if len(set(key)) < len(key):
        yield f"the key is {', '.join(key)}: a field stands twice in it"
    for name in key:
        if name not in kinds:
            yield f"the key {name!r} is no field of {stream.event.__name__}; it has {', '.join(kinds)}"
        elif not _keyable(kinds[name].base):
            yield f"the key {name!r} is of a type that cannot identify anything; use text or a whole number"


def _condition_of(handler: Handler, stream: Stream) -> Iterator[str]:
    """What is wrong with the condition for the events of a stream."""
    where = handler.condition_of(stream.name)
    if where is None:
        return
    try:
        compiled(shown(event_schema(stream.event)), where, None)
    except BadExpression as error:
        yield f"where={str(where)[:80]!r}, for {stream.name}: {error.message}"
    except (DeclarationError, NameError, TypeError, AttributeError):
        return  # the stream's own problem, told with it


def _keeper(keeper: Keeper) -> Iterator[str]:
    """What is wrong with the view that a handler keeps."""
    yield from keeper.faults
    yield from _rows_of(keeper.view)
    if keeper.faults:
        return  # there is no row class
    try:
        kinds = {each.name: each.base for each in fields(keeper.row)}
        schema = event_schema(keeper.row)
    except (UnmappedType, NameError, TypeError, AttributeError):
        return  # told of what it emits
    for name in keeper.view.key:
        if name not in kinds:
            yield f"the key {name!r} of its view is no field of {keeper.row.__name__}; it has {', '.join(kinds)}"
        elif not _identifies(schema.field(name).type):
            yield f"the key {name!r} of its view is of a type that cannot identify a row; use text or a whole number"
    for name in key_names(keeper.key):
        if keeper.view.key and isinstance(name, str) and name not in keeper.view.key:
            yield f"the key of its view must have {name!r} in it: rows of one key must not overwrite those of another"
    if keeper.view.by is not None and keeper.view.by not in [*kinds]:
        yield f"by={keeper.view.by!r} is no field of {keeper.row.__name__}; it has {', '.join(kinds)}"


def _identifies(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return all(_identifies(field.type) for field in kind)
    return not (pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind))


def _emitted(handler: Handler) -> Iterator[str]:
    """What is wrong with what a handler emits."""
    emits = handler.emits[:-1] if isinstance(handler, Keeper) else handler.emits  # the last is made of the row's
    for cls in emits:
        if not (isinstance(cls, type) and issubclass(cls, Event) and cls is not Event):
            yield f"it emits {cls!r}, which is not a class derived from Event"
            continue
        try:
            if not event_schema(cls).names[: -len(SYSTEM_COLUMNS)]:
                yield f"it emits {cls.__name__}, which has no fields"
        except (UnmappedType, NameError) as error:
            yield f"it emits {cls.__name__}: {error}"
            continue
        yield from filter(None, [event_problem(cls), _default_problem(cls)])
    names = [getattr(cls, "__name__", "") for cls in emits]
    if len(set(names)) < len(names):
        yield "two of the classes that it emits have the same name"


def _cycles(app: App) -> Iterator[Problem]:
    known = nodes(app)
    clear: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> tuple[str, ...] | None:
        if name in path:
            return (*path[path.index(name) :], name)
        if name not in known or name in clear:
            return None
        for each in known[name].reads:
            cycle = walk(each, (*path, name))
            if cycle:
                return cycle
        clear.add(name)
        return None

    for name, node in known.items():
        cycle = walk(name, ())
        if cycle and cycle[0] == name:
            kind = "view" if isinstance(node, View) else "handler"
            yield Problem(node.where, f"{kind} {node.name}: it reads itself by way of {' <- '.join(cycle)}")
