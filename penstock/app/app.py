"""The App class: a named list of frozen declarations, each with its file and line.

Importing an app's file builds these values and does nothing else. Nothing is checked here, so that `penstock check`
can report every problem at once, each with its file and line (see `graph.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from penstock import joins, rollups
from penstock.app.declared import (
    ChangeStream,
    Emit,
    Feed,
    Function,
    Handler,
    Inlet,
    Joiner,
    Matcher,
    Readable,
    Recognizer,
    Rollup,
    Stream,
    Time,
    View,
    ViewHandler,
    Webhook,
    Where,
)
from penstock.app.shed import Shed
from penstock.app.sql import is_pattern, tables
from penstock.cep import skip as skips
from penstock.cep.handling import TIMER, Missed, Select, Telling, handled
from penstock.cep.match import Match
from penstock.cep.memory import DEFAULT, Bounds
from penstock.cep.pattern import Pattern
from penstock.cep.search import Search
from penstock.core.contracts import Source
from penstock.core.deletes import kept
from penstock.core.errors import DeclarationError
from penstock.core.notebook import table
from penstock.core.operators import given_key
from penstock.core.schema import Event, Late, Raw, State
from penstock.core.suggestions import unknown
from penstock.joins.bounds import DEFAULT as JOIN_BOUNDS
from penstock.joins.current import Latest
from penstock.joins.declaring import (
    How,
    Interval,
    JoinInputs,
    Lookup,
    Ranged,
    Spec,
    Within,
    range_faults,
    two_conditions,
    two_keys,
)
from penstock.joins.output import Joining, Pair, Side
from penstock.windows.aggregates import Aggregate
from penstock.windows.handling import Windowing
from penstock.windows.handling import handled as windowed
from penstock.windows.shapes import Shape, Trigger, on_change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _where_declared() -> Where:
    """Return the position of the statement that called a method of `App`."""
    frame = sys._getframe(2)
    return Where.of(frame.f_code.co_filename, frame.f_lineno)


class App:
    """A named set of declarations.

    app = App("fleet")
    fixes = app.stream("fixes", Fix, key="vehicle")
    """

    _previewer: ClassVar[Callable[[App, View, Sequence[Iterable[Any]]], DataFrame]]
    """Runs a view on lists of events. The `penstock` package sets it, because it needs Spark, which this module must
    not import."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = _where_declared()
        self._streams: list[Stream] = []
        self._views: list[View] = []
        self._handlers: list[Handler] = []
        self._inlets: list[Inlet] = []
        self._feeds: list[Feed] = []
        self._webhooks: list[Webhook] = []

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(self._streams)

    @property
    def views(self) -> tuple[View, ...]:
        """All views, computed by Spark or by handlers."""
        return (*self._views, *(handler.view for handler in self.view_handlers))

    @property
    def queries(self) -> tuple[View, ...]:
        """The views that Spark computes."""
        return tuple(self._views)

    @property
    def view_handlers(self) -> tuple[ViewHandler, ...]:
        """The handlers that produce views; they are also in `handlers`."""
        return tuple(handler for handler in self._handlers if isinstance(handler, ViewHandler))

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers)

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that handlers write, and the stream `VIEW.late` of each view that can have late events."""
        emitted = (output for handler in self._handlers for output in handler.outputs)
        return (*emitted, *self.late.values())

    @property
    def late(self) -> dict[str, Stream]:
        """The streams `VIEW.late`, by view name. A view can have late events if it uses event time and reads a stream
        with `late_after`."""
        timed = {stream.name for stream in self._streams if stream.late_after is not None}
        return {
            view.name: Stream(f"{view.name}.late", Late, view.where, partitions=1)
            for view in self._views
            if view.time == "event" and (view.function or view.query) and timed & set(view.reads)
        }

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """The sources, each with the stream that it fills."""
        return tuple(self._inlets)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        return tuple(self._feeds)

    @property
    def webhooks(self) -> tuple[Webhook, ...]:
        return tuple(self._webhooks)

    def stream(
        self,
        name: str,
        event: type[Event] = Raw,
        *,
        key: str | None = None,
        late_after: timedelta | None = None,
        keep: timedelta | None = None,
        keep_bytes: int | None = None,
        partitions: int | None = None,
        shed: Shed | None = None,
        ahead: timedelta | None = None,
    ) -> Stream:
        """Declare a stream of events of one class, or of raw bytes if no class is passed.

        Events with the same `key` stay in order. An event more than `late_after` behind the newest event is too late
        for windows. Events older than `keep` are deleted, and so are the oldest events when the stream exceeds
        `keep_bytes`, but only after every view has read them. With `shed`, some events are dropped while the stream is
        overloaded; without it, no events are dropped. An event whose time is more than `ahead` later than its arrival
        is rejected; without `ahead`, any time is accepted.
        """
        declared = Stream(name, event, _where_declared(), key, late_after, keep, keep_bytes, partitions, shed, ahead)
        self._streams.append(declared)
        return declared

    def view(
        self,
        name: str,
        *,
        reads: Readable | Sequence[Readable],
        key: str | Sequence[str],
        keep: timedelta | None = None,
        top: int | None = None,
        by: str | None = None,
        emit: Emit = "change",
        time: Time = "event",
    ) -> Callable[[Callable[..., DataFrame]], View]:
        """Declare a view, computed by a function that takes one DataFrame for each input, in the order of `reads`.

        A view reads streams, or the changes of views (`view.changes`), which are streams too. A view that reads only
        the rows of other views is *derived*: its rows always equal the result of its query on the current rows of those
        views.

        `key` names the columns that identify a row. `keep` is how long a row stays after its window has ended or,
        without a window, after its last change. With `top` and `by`, only the `top` rows with the highest values of
        `by` are served; if the key includes a window, only rows for the newest window. `emit="close"` shows a window's
        rows once, when the window is complete, instead of on every change. An event that is too late for its window
        goes to the stream `VIEW.late`. With `time="ingest"`, the DataFrames have an `ingest_time` column, which decides
        when windows close, and no event is late.
        """
        where = _where_declared()

        def declare(function: Callable[..., DataFrame]) -> View:
            declared = View(name, where, _input_names(reads), _view_key(key), function, None, keep, top, by, emit, time)
            self._views.append(declared)
            return declared

        return declare

    @overload
    def sql(self, name: str, query: str, *, bounds: Bounds = DEFAULT) -> Recognizer: ...

    @overload
    def sql(
        self,
        name: str,
        query: str,
        *,
        key: str | Sequence[str],
        keep: timedelta | None = None,
        top: int | None = None,
        by: str | None = None,
        emit: Emit = "change",
        time: Time = "event",
    ) -> View: ...

    def sql(
        self,
        name: str,
        query: str,
        *,
        key: str | Sequence[str] = (),
        keep: timedelta | None = None,
        top: int | None = None,
        by: str | None = None,
        emit: Emit = "change",
        time: Time = "event",
        bounds: Bounds = DEFAULT,
    ) -> View | Recognizer:
        """Declare a view by a SQL SELECT over the app's streams and views. Its inputs are the tables named in the
        query; write the changes of a view as `` `VIEW.changes` ``, in backticks. As with `view`, the inputs can be
        streams or views.

        With MATCH_RECOGNIZE after FROM, the query is a pattern to find in a stream. It becomes a handler that emits the
        selected columns to the stream `name`. PARTITION BY sets the key. The only option allowed is `bounds`, which
        works as in `match`.
        """
        where = _where_declared()
        if is_pattern(query):
            given = {"key": key, "keep": keep, "top": top, "by": by, "emit": emit != "change", "time": time != "event"}
            return self._recognize(name, query, where, bounds, [option for option, value in given.items() if value])
        declared = View(name, where, tables(query), _view_key(key), None, query, keep, top, by, emit, time)
        self._views.append(declared)
        return declared

    def _recognize(self, name: str, text: str, where: Where, bounds: Bounds, surplus: Sequence[str]) -> Recognizer:
        from penstock.cep.recognize import recognized

        known = {stream.name: stream for stream in (*self._streams, *self.outputs)}
        read = recognized(name, text, {source: stream.event for source, stream in known.items()}, bounds)
        reasons = (
            f"{option} cannot be used with MATCH_RECOGNIZE: PARTITION BY sets the key, and the result is a stream"
            for option in surplus
        )
        faults = (*reasons, *read.faults)
        streams = [(known[source].event, known[source].late_after) for source in read.reads if not faults]
        parts = handled(read.search, streams, Telling(read.select, ()), faults)
        declared = Recognizer(
            name, where, read.reads, read.key, parts.state, (read.emits, Missed), parts.on_event,
            {TIMER: parts.on_timer}, search=read.search, select=read.select, faults=parts.faults, text=text,
        )  # fmt: skip
        self._handlers.append(declared)
        return declared

    def handler(
        self,
        name: str,
        *,
        reads: Readable | Sequence[Readable],
        key: str,
        state: type[State],
        emits: type[Event] | Sequence[type[Event]] = (),
        view: str | Sequence[str] | None = None,
        keep: timedelta | None = None,
    ) -> Callable[[Function], Handler]:
        """Declare a handler: a function of (state, event, context) that mutates the state and yields events.

        The function is called once for each event in the streams that the handler reads. Events with the same value of
        the field `key` are processed in log order and share a state, which is initially `state()`. The function must be
        deterministic: no wall clock, no random numbers and no I/O. The emitted events go to the stream `name`, or to
        `name.Class` if the handler emits several classes; events that it fails on go to `name.failed`.

        With `view`, the handler writes the rows of the view `name`. `view` names the columns that identify a row, and
        must include `key`. `emits` is then a single class, the class of the rows. An emitted event replaces the row
        with the same values in these columns, and `gone(Class, ...)` removes a row. `keep` works as in `view`.
        """
        where = _where_declared()
        classes = (emits,) if isinstance(emits, type) else tuple(emits)

        def declare(function: Function) -> Handler:
            declared = Handler(name, where, _input_names(reads), key, state, classes, function)
            if view is not None:
                declared = _view_handler(declared, _view_key(view), keep)
            self._handlers.append(declared)
            return declared

        return declare

    def match(
        self,
        name: str,
        *,
        reads: Readable | Sequence[Readable],
        key: str,
        pattern: Pattern,
        emits: type[Event],
        within: timedelta | None = None,
        gap: timedelta | None = None,
        skip: skips.Skip = skips.none,
        every: bool = True,
        timeouts: type[Event] | None = None,
        bounds: Bounds = DEFAULT,
    ) -> Callable[[Callable[[Match], Any]], Matcher]:
        """Declare a pattern to find in the events for each value of the field `key`, in order of event time.

        For each match, the function returns an event of the class `emits`, several events, or None; the events go to
        the stream `name`. A match spans at most `within` from its first event to its last, with at most `gap` between
        one event and the next. When a match is found, `skip` decides which other matches are kept; with `every=False`,
        each key has only one match. A function declared with `@NAME.timeout` turns partial matches that time out into
        events of the class `timeouts`, which go to `name.timeout`. Events that arrive too late, or exceed `bounds`, go
        to `name.missed`.
        """
        where, names = _where_declared(), _input_names(reads)
        search = Search(pattern, within, skip, every, bounds, gap=gap)
        known = {stream.name: stream for stream in (*self._streams, *self.outputs)}
        streams = [known[source] for source in names if source in known]
        emitted = (emits, Missed) if timeouts is None else (emits, timeouts, Missed)

        def declare(function: Callable[[Match], Any]) -> Matcher:
            late: list[Select] = []
            telling = Telling(function, late if timeouts is not None else ())
            parts = handled(search, [(stream.event, stream.late_after) for stream in streams], telling)
            declared = Matcher(
                name, where, names, key, parts.state, emitted, parts.on_event, {TIMER: parts.on_timer},
                search=search, select=function, timeouts=timeouts, late=late, faults=parts.faults,
            )  # fmt: skip
            self._handlers.append(declared)
            return declared

        return declare

    def window(
        self,
        name: str,
        *,
        reads: Readable | Sequence[Readable],
        key: str | Sequence[str],
        over: Shape,
        aggregate: Mapping[str, Aggregate],
        where: str | None = None,
        keep: timedelta | None = None,
        trigger: Trigger = on_change,
        latest: bool = False,
        late_after: timedelta | None = None,
        top: int | None = None,
        by: str | None = None,
    ) -> ViewHandler:
        """Declare a view of aggregates, with one row per window for each value of the field `key`.

        The key can consist of several fields; each becomes a column. `where` is a SQL condition on an event's fields:
        events that do not meet it are ignored. `over` defines the windows, and `trigger` decides when a row is emitted:
        `windows.on_change`, `windows.on_close` or `windows.every(interval)`. A row is removed when `keep` has passed
        since its window ended. With `latest`, the view has one row for each key, which shows the key's newest window.
        An event that is more than `late_after` behind the newest event of its key may be too late for its windows; it
        then goes to `name.late`. The default is the `late_after` of the streams.
        """
        names = _input_names(reads)
        known = {stream.name: stream for stream in (*self._streams, *self.outputs)}
        streams = [(known[source].event, known[source].late_after) for source in names if source in known]
        fields = given_key(key)
        windowing = Windowing(name, fields, over, _copied_option(aggregate), trigger, keep, latest, late_after)
        parts = windowed(windowing, streams, where)
        view = View(name, _where_declared(), names, parts.key, keep=keep, top=top, by=by)
        declared = ViewHandler(
            name, view.where, names, fields, parts.state, parts.emits, parts.on_event, {TIMER: parts.on_timer},
            view=view, beside=("late",), faults=parts.faults, compiled=True, condition=where,
            aggregates=windowing.aggregate,
        )  # fmt: skip
        self._handlers.append(declared)
        return declared

    def rollup(
        self,
        name: str,
        *,
        reads: Readable | Sequence[Readable],
        key: str | Sequence[str],
        by: Sequence[str],
        aggregate: Mapping[str, Aggregate],
        where: str | None = None,
        keep: Mapping[str, timedelta] | None = None,
        zone: str = "UTC",
    ) -> Rollup:
        """Declare aggregates of the events for each value of the field `key`, in each unit of time that `by` names:
        `second`, `minute`, `hour`, `day`, `month`, `year`.

        The view `name` has a row for each combination of unit, start and key. Its columns are `per`, `start`, `end`,
        the key, and one for each aggregate. The key can consist of several fields; each becomes a column. `where` is a
        SQL condition on an event's fields: events that do not meet it are ignored. `keep` sets how long the rows for
        each unit are kept. A late event corrects all of its rows that are still kept, however late it is; if no such
        row is left, the event goes to `name.missed`. Days, months and years follow the time zone `zone`.
        """
        names, units = _input_names(reads), tuple(by) if isinstance(by, Iterable) and not isinstance(by, str) else (by,)
        fields = given_key(key)
        declared = rollups.RollupDeclaration(
            name, fields, units, _copied_option(aggregate), _copied_option(keep), zone, where
        )
        known = {stream.name: stream.event for stream in (*self._streams, *self.outputs)}
        parts = rollups.rolled(declared, [known[source] for source in names if source in known])
        place, row_key = _where_declared(), declared.row_key
        rollup = Rollup(
            name, place, names, fields, parts.state, (rollups.Missed, *kept(parts.row, row_key)), parts.on_event,
            {rollups.TIMER: parts.on_timer}, view=View(name, place, names, row_key), beside=("missed",),
            faults=parts.faults, settle=parts.settle, compiled=True, declared=declared, condition=where,
            aggregates=declared.aggregates,
        )  # fmt: skip
        self._handlers.append(rollup)
        return rollup

    def join(
        self,
        name: str,
        *,
        left: Readable,
        right: Readable,
        key: str | list[str] | tuple[str | list[str], str | list[str]],
        emits: type[Event],
        within: Within | None = None,
        where: str | tuple[str | None, str | None] | None = None,
        how: How = "inner",
        bounds: joins.Bounds = JOIN_BOUNDS,
    ) -> Callable[[Pair], Joiner]:
        """Declare a join of two streams. The function takes (left, right) and returns an event of the class `emits`,
        several events, or None. The events go to the stream `name`.

        Two events with the same key are joined if the right event's time is at most `within` before or after the left
        event's time. `within` can also be a tuple of two durations: the limit before and the limit after. The key is a
        field or a list of fields; if the two sides use different names, pass a tuple with one key for each side.
        `where` is a SQL condition on the fields of both sides, or a tuple with one condition for each side: events that
        do not meet it are ignored.

        If `how` is "left" or "right", the function is also called for each event on that side whose partner can no
        longer arrive, with None in place of the partner. If `how` is "full", this applies to events on both sides.
        Events that arrive too late, or exceed `bounds`, go to `name.missed`.
        """
        spec = Interval(within, how, bounds)
        return self._joined(name, _where_declared(), (left, right), key, spec, emits, two_conditions(where))

    def enrich(
        self,
        name: str,
        *,
        reads: Readable,
        table: Readable,
        key: str | list[str] | tuple[str | list[str], str | list[str]],
        emits: type[Event],
        how: Literal["left", "inner"] = "left",
        keep: timedelta | None = None,
        row: type[Event] | None = None,
        per: str | None = None,
        within: timedelta | None = None,
        bounds: joins.Bounds = JOIN_BOUNDS,
    ) -> Callable[[Pair], Joiner]:
        """Declare a lookup. The function takes (event, row) and returns an event of the class `emits`, several events,
        or None.

        If `table` is a stream, the row is the version that is valid at the event's time: the newest row with the same
        key whose event time is not later than the event's. An event waits as long as the table's `late_after` for rows
        that might arrive late. A row is kept for `keep` (default: one hour) after a newer row becomes valid; the newest
        row is always kept. If `table` is a view, the row is the current row when the event arrives, and `row` is a
        class that names the columns needed. If there is no row, the function is called with None or, if `how` is
        "inner", not called. `key` works as in `join`; in a tuple, the events' key comes first.

        If `table` is a rollup, the function takes (event, rows). `rows` is a list, in order of time, of the rows for
        the unit `per` that start at most `within` before the event. The rows have the values that they have when the
        event arrives.
        """
        (source,) = _input_names((table,))
        views = {view.name: view.key for view in self.views}
        spec: Spec = Lookup(how, keep, bounds, row, views.get(source))
        rollup = next(
            (handler for handler in self._handlers if isinstance(handler, Rollup) and handler.name == source), None
        )
        if rollup is not None or per is not None or within is not None:
            declared = None if rollup is None else rollup.declared
            faults = tuple(range_faults(declared, source, per, within, bounds))
            if keep is not None:
                own_keep = "keep applies only if the table is a stream; a rollup has a keep of its own: remove keep"
                faults = (*faults, own_keep)
            spec = Ranged(how, bounds, row, views.get(source, ()), str(per), within or timedelta(0), faults)
        return self._joined(name, _where_declared(), (table, reads), key, spec, emits)

    def _joined(
        self,
        name: str,
        where: Where,
        reads: Sequence[Readable],
        key: Any,
        spec: Spec,
        emits: type[Event],
        conditions: tuple[Any, ...] = (),
    ) -> Callable[[Pair], Joiner]:
        names = _input_names(reads)
        sides = tuple(self._side(source, spec) for source in names)
        turn = 1 if isinstance(spec, Interval) else -1  # the table is the first input, but its key comes second
        keys = two_keys(key, sides[::turn])[::turn]

        def declare(function: Pair) -> Joiner:
            joining, faults = spec.compiled(JoinInputs(names, keys, sides), function)
            joining = joining or Joining(Latest, function, function)
            declared = Joiner(
                name, where, names, keys[-1], joining.state, (emits, joins.Missed), joining.on_event,
                {TIMER: joining.on_timer}, spec=spec, select=function, keys=keys, conditions=conditions, faults=faults,
            )  # fmt: skip
            self._handlers.append(declared)
            return declared

        return declare

    def _side(self, name: str, spec: Spec) -> Side | None:
        """Return what a join needs to know about an input, or None if the input is not declared, or its declaration is
        invalid."""
        known = {stream.name: (stream.event, stream.late_after) for stream in (*self._streams, *self.outputs)}
        if spec.view_row is not None:
            known |= {view.name: (spec.view_row, None) for view in self.views}
        event, late_after = known.get(name, (None, None))
        if not (isinstance(event, type) and issubclass(event, Event)):
            return None
        return Side(name, event, late_after if isinstance(late_after, timedelta) else timedelta(0))

    def source(self, name: str, source: Source, *, into: Stream | str) -> Inlet:
        """Declare a source that fills a stream. The stream still accepts events over HTTP."""
        declared = Inlet(name, source, into if isinstance(into, str) else into.name, _where_declared())
        self._inlets.append(declared)
        return declared

    def feed(
        self, name: str, *, of: Readable, where: str | None = None, select: str | Sequence[str] | None = None
    ) -> Feed:
        """Declare a feed: a part of a stream or view that is served, and can be granted, under its own name.

        `where` is a SQL condition, and `select` lists the columns or expressions to show:
        `app.feed("chicago", of=rsvps, where="group_city = 'Chicago'", select=["event_name", "guests"])`.
        """
        listed = select if select is None or isinstance(select, str) else ", ".join(select)
        declared = Feed(name, of if isinstance(of, str) else of.name, _where_declared(), where, listed)
        self._feeds.append(declared)
        return declared

    def webhook(
        self,
        name: str,
        *,
        of: Readable | Feed,
        url: str,
        secret: str | Path,
        where: str | None = None,
        select: str | Sequence[str] | None = None,
        batch: int = 1,
    ) -> Webhook:
        """Declare a webhook, which sends the new events or changes of a stream, view or feed to an address. Each
        message is signed.

        `secret` is the name of an environment variable, or a file (a `Path`, or a string with a `/`). The variable or
        file holds `whsec_` and 24 to 64 random bytes in base64. During a rotation, it can hold two such secrets,
        separated by a space. `where` and `select` work as in `feed`. With a `batch` above 1, a message carries up to
        that many events.
        """
        listed = select if select is None or isinstance(select, str) else ", ".join(select)
        source = of if isinstance(of, str) else of.name
        declared = Webhook(name, source, url, str(secret), _where_declared(), where, listed, batch)
        self._webhooks.append(declared)
        return declared

    def preview(self, view: View | str, *events: Iterable[Any]) -> DataFrame:
        """Run a view on plain lists of events, one list for each input, and return its rows as a batch DataFrame. For
        tests and notebooks.

        `view` is a view that Spark computes, or its name. A stream's events are instances of its class or plain
        mappings; a view's rows are mappings by column. If several rows have the same key, the last wins, as in the
        view. Raises DeclarationError for a view with a problem that `penstock check` reports.
        """
        return App._previewer(self, self._query(view) if isinstance(view, str) else view, events)

    def _query(self, name: str) -> View:
        view = next((view for view in self._views if view.name == name), None)
        if view is None and any(handler.name == name for handler in self.view_handlers):
            raise DeclarationError(f"the view {name!r} belongs to a handler: use penstock.testing.run and result.rows")
        if view is None:
            raise DeclarationError(unknown("view", name, [view.name for view in self._views]))
        return view

    def __repr__(self) -> str:
        parts = (
            f"{kind} {', '.join(declaration.name for declaration in listed)}"
            for kind, listed in self._parts()
            if listed
        )
        return f"App({'; '.join([repr(self.name), *parts])})"

    def _parts(self) -> tuple[tuple[str, Sequence[Stream | View | Handler | Inlet]], ...]:
        handlers = [handler for handler in self._handlers if not isinstance(handler, ViewHandler)]
        return ("streams", self.streams), ("sources", self.inlets), ("views", self.views), ("handlers", handlers)

    def _repr_html_(self) -> str:
        rows = [
            (
                kind.removesuffix("s"),
                declaration.name,
                ", ".join(getattr(declaration, "reads", ())),
                str(declaration.where),
            )
            for kind, listed in self._parts()
            for declaration in listed
        ]
        return table(f"App {self.name}", ("", "name", "reads", "declared at"), rows)


def _input_names(reads: Readable | Sequence[Readable]) -> tuple[str, ...]:
    several = isinstance(reads, Iterable) and not isinstance(reads, str)
    inputs: tuple[Any, ...] = tuple(reads) if several else (reads,)  # type: ignore[arg-type]
    for readable in inputs:
        if not isinstance(readable, Stream | View | Handler | ChangeStream | str):
            raise TypeError(
                f"{readable!r} cannot be read: pass a stream, a view, a view's changes, a handler, or a name"
            )
    return tuple(readable if isinstance(readable, str) else readable.name for readable in inputs)


def _view_handler(handler: Handler, key: tuple[str, ...], keep: timedelta | None) -> ViewHandler:
    """Return the handler as a `ViewHandler`."""
    row = handler.emits[0] if handler.emits else Event
    several = "a handler with view= emits only one class, the class of its rows: set emits=Class"
    faults = () if len(handler.emits) == 1 else (several,)
    view = View(handler.name, handler.where, handler.reads, key, keep=keep)
    return ViewHandler(**{**vars(handler), "emits": kept(row, key)}, view=view, faults=faults)


def _copied_option(given: Any) -> Any:
    """Return a copy of a mapping, so that later changes do not affect it. Anything else is returned unchanged, and
    reported by `check`."""
    return dict(given) if isinstance(given, Mapping) else {} if given is None else given


def _view_key(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
