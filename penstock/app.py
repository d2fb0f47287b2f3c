"""What a user writes: an app is a named list of frozen declarations, each with the file and line it came from.

Importing an app's file builds these values and does nothing else. Nothing is checked here, so that `penstock check`
can report every problem at once, each with its place (see `graph.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock import joins, rollups
from penstock.cep import skip as skips
from penstock.cep.handling import TIMER, Missed, Select, Telling, handled
from penstock.cep.match import Match
from penstock.cep.memory import DEFAULT, Bounds
from penstock.cep.pattern import Pattern
from penstock.cep.search import Search
from penstock.contracts import Source
from penstock.declared import (
    ChangeStream,
    Emit,
    Feed,
    Function,
    Handler,
    Inlet,
    Joiner,
    Keeper,
    Matcher,
    Readable,
    Recognizer,
    Rollup,
    Stream,
    Time,
    View,
    Webhook,
    Where,
)
from penstock.errors import DeclarationError
from penstock.joins.bounds import DEFAULT as JOIN_BOUNDS
from penstock.joins.current import Latest
from penstock.joins.spec import (
    Declared,
    How,
    Interval,
    Lookup,
    Ranged,
    Spec,
    Within,
    range_faults,
    two_conditions,
    two_keys,
)
from penstock.joins.telling import Joining, Pair, Side
from penstock.kept import kept
from penstock.making import given_key
from penstock.notebook import table
from penstock.schema import Event, Late, Raw, State
from penstock.shed import Shed
from penstock.sql import is_pattern, tables
from penstock.suggestions import unknown
from penstock.windows.aggregates import Aggregate
from penstock.windows.handling import Windowing
from penstock.windows.handling import handled as windowed
from penstock.windows.shapes import Shape, Trigger, on_change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _caller() -> Where:
    """The place of the statement that called the App method that called us."""
    frame = sys._getframe(2)
    return Where.of(frame.f_code.co_filename, frame.f_lineno)


class App:
    """A named set of declarations.

    app = App("fleet")
    fixes = app.stream("fixes", Fix, key="vehicle")
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = _caller()
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
        """All that is served as a view, whatever computes it."""
        return (*self._views, *(each.view for each in self.keepers))

    @property
    def queries(self) -> tuple[View, ...]:
        """The views that Spark computes."""
        return tuple(self._views)

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """The handlers whose results are views. They are among the handlers, too."""
        return tuple(each for each in self._handlers if isinstance(each, Keeper))

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers)

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that handlers fill, and those of what came too late for views."""
        emitted = (output for handler in self._handlers for output in handler.outputs)
        return (*emitted, *self.late.values())

    @property
    def late(self) -> dict[str, Stream]:
        """The stream `VIEW.late` of each view for which an event can be late: one that goes by event time and reads a
        stream with `late_after`."""
        timed = {stream.name for stream in self._streams if stream.late_after is not None}
        return {
            view.name: Stream(f"{view.name}.late", Late, view.where, partitions=1)
            for view in self._views
            if view.time == "event" and (view.function or view.query) and timed & set(view.reads)
        }

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """The sources, each with the stream it fills."""
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
        """Declare a stream of events of one class; without a class it carries raw bytes.

        Order holds for events of the same `key`. An event more than `late_after` behind the newest one is late for
        windows. Events older than `keep`, or the oldest past `keep_bytes`, go once every view has read them.
        With `shed`, some events are given up while the stream is overloaded; without it, none ever is. An event whose
        time is more than `ahead` of the moment when it comes is rejected; without it, any time is taken.
        """
        declared = Stream(name, event, _caller(), key, late_after, keep, keep_bytes, partitions, shed, ahead)
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
        """Declare a view by a function of one DataFrame for each input, in the order of `reads`.

        What it reads is streams, or the changes of views (`view.changes`), which are streams too; or it is the rows of
        other views and nothing else: then it is *derived*, and always equals its query run on the rows that they have.

        `key` names the columns that identify a row. `keep` drops rows whose window ended, or that last changed, so
        long ago. `top` and `by` serve only the rows with the highest `by`; if the key has a window, those of the newest
        one. `emit="close"` shows a window's rows once, when it is complete, instead of at every change. What comes too
        late for its window goes to the stream `VIEW.late`. With `time="ingest"` the DataFrames have a column
        `ingest_time`, by which windows close, and nothing is late.
        """
        where = _caller()

        def declare(function: Callable[..., DataFrame]) -> View:
            declared = View(name, where, _read(reads), _names(key), function, None, keep, top, by, emit, time)
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
        """Declare a view by a SQL SELECT over the app's streams and views. What it reads is found in the text; the
        changes of a view are written as `` `VIEW.changes` ``, in backticks. As for `view`, it reads streams or views.

        With MATCH_RECOGNIZE after FROM, it is a pattern that is looked for in a stream, and becomes a handler, whose
        stream `name` has the columns that are selected. Then the key is that of PARTITION BY, and of the options there
        is `bounds` alone, as for `match`.
        """
        where = _caller()
        if is_pattern(query):
            given = {"key": key, "keep": keep, "top": top, "by": by, "emit": emit != "change", "time": time != "event"}
            return self._recognize(name, query, where, bounds, [each for each, value in given.items() if value])
        declared = View(name, where, tables(query), _names(key), None, query, keep, top, by, emit, time)
        self._views.append(declared)
        return declared

    def _recognize(self, name: str, text: str, where: Where, bounds: Bounds, surplus: Sequence[str]) -> Recognizer:
        from penstock.cep.recognize import recognized

        known = {stream.name: stream for stream in (*self._streams, *self.outputs)}
        read = recognized(name, text, {each: stream.event for each, stream in known.items()}, bounds)
        told = (
            f"{each} is not for MATCH_RECOGNIZE: PARTITION BY is the key, and what it finds is a stream, not a view"
            for each in surplus
        )
        faults = (*told, *read.faults)
        streams = [(known[each].event, known[each].late_after) for each in read.reads if not faults]
        made = handled(read.search, streams, Telling(read.select, ()), faults)
        declared = Recognizer(
            name, where, read.reads, read.key, made.state, (read.emits, Missed), made.on_event, {TIMER: made.on_timer},
            search=read.search, select=read.select, faults=made.faults, text=text,
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
        """Declare a handler by a function of (state, event, context) that mutates the state and yields what it emits.

        It is called once for each event of the streams it reads, in log order for each value of the field `key`, with
        the state of that value; a new one starts with `state()`. It must be deterministic: no wall clock, no random
        numbers and no input or output of its own. What it emits is the stream `name`, or `name.Class` if there are
        several classes; events that it fails on go to `name.failed`.

        With `view`, which names the columns that identify a row and has `key` among them, the one class that it emits
        is that of the rows of the view `name`: an event that it emits takes the place of the row with the same
        columns, and `gone(Class, ...)` removes one. `keep` is as for a view.
        """
        where = _caller()
        classes = (emits,) if isinstance(emits, type) else tuple(emits)

        def declare(function: Function) -> Handler:
            declared = Handler(name, where, _read(reads), key, state, classes, function)
            if view is not None:
                declared = _keeper(declared, _names(view), keep)
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
        """Declare a pattern that is looked for in the events of each value of the field `key`, in order of event time.

        The function makes of each match an event of the class `emits`, several of them, or None; they are the stream
        `name`. All of a match is `within` that time, from its first event on, and at most `gap` passes from one event
        to the next. `skip` says what of other matches remains when one is found; with `every=False` a key has one match
        and no more. Partial matches whose time is over become events of the class `timeouts`, by a function declared
        with `@NAME.timeout`, in `name.timeout`. What came too late, or found no room in `bounds`, is told in
        `name.missed`.
        """
        where, names = _caller(), _read(reads)
        search = Search(pattern, within, skip, every, bounds, gap=gap)
        known = {stream.name: stream for stream in (*self._streams, *self.outputs)}
        streams = [known[each] for each in names if each in known]
        emitted = (emits, Missed) if timeouts is None else (emits, timeouts, Missed)

        def declare(function: Callable[[Match], Any]) -> Matcher:
            late: list[Select] = []
            telling = Telling(function, late if timeouts is not None else ())
            made = handled(search, [(stream.event, stream.late_after) for stream in streams], telling)
            declared = Matcher(
                name, where, names, key, made.state, emitted, made.on_event, {TIMER: made.on_timer},
                search=search, select=function, timeouts=timeouts, late=late, faults=made.faults,
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
    ) -> Keeper:
        """Declare a view with a row for each window of each value of the field `key`: its aggregates, by column.

        The key may be of several fields; a row has a column for each. With `where`, a condition in SQL over the fields
        of an event, only events for which it is true are taken; the others count for nothing.
        `over` says what a window is, and `trigger` when its row is told: `windows.on_change`, `windows.on_close` or
        `windows.every(interval)`. Rows go when `keep` has passed since their window ended. With `latest` there is one
        row for each key, that of its newest window. An event that is more than `late_after` behind the newest of its
        key may be too late for its windows, and is then told in `name.late`; that is the streams' own unless given.
        """
        names = _read(reads)
        known = {stream.name: stream for stream in (*self._streams, *self.outputs)}
        streams = [(known[each].event, known[each].late_after) for each in names if each in known]
        fields = given_key(key)
        windowing = Windowing(name, fields, over, _mapping(aggregate), trigger, keep, latest, late_after)
        made = windowed(windowing, streams, where)
        view = View(name, _caller(), names, made.key, keep=keep, top=top, by=by)
        declared = Keeper(
            name, view.where, names, fields, made.state, made.emits, made.on_event, {TIMER: made.on_timer},
            view=view, beside=("late",), faults=made.faults, compiled=True, condition=where,
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
        """Declare aggregates of the events of each value of the field `key`, for every unit of time that `by` names:
        `second`, `minute`, `hour`, `day`, `month`, `year`.

        They are the view `name`, with a row for each unit, start and key: `per`, `start`, `end`, the key, and a column
        for each of `aggregate`. The key may be of several fields; a row has a column for each. With `where`, a
        condition in SQL over the fields of an event, only events for which it is true are counted. `keep` says how long
        each unit is kept; an event corrects all that are still kept, however late it is, and goes to `name.missed` if
        none is. Days, months and years are those of `zone`.
        """
        names, units = _read(reads), tuple(by) if isinstance(by, Iterable) and not isinstance(by, str) else (by,)
        fields = given_key(key)
        declared = rollups.Declared(name, fields, units, _mapping(aggregate), _mapping(keep), zone, where)
        known = {stream.name: stream.event for stream in (*self._streams, *self.outputs)}
        made = rollups.rolled(declared, [known[each] for each in names if each in known])
        place, row_key = _caller(), declared.row_key
        rollup = Rollup(
            name, place, names, fields, made.state, (rollups.Missed, *kept(made.row, row_key)), made.on_event,
            {rollups.TIMER: made.on_timer}, view=View(name, place, names, row_key), beside=("missed",),
            faults=made.faults, settle=made.settle, compiled=True, declared=declared, condition=where,
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
        """Declare a join of two streams, by a function of (left, right) that makes an event of the class `emits`,
        several of them, or None. They are the stream `name`.

        Two events of the same key are joined if the right one comes `within` that time of the left one, by event time:
        before or after it, or from the first time before to the second one after. The key is a field, or a list of
        them; or a tuple of two, if the sides have other names for it. With `where`, a condition in SQL over the fields
        of both, or a tuple of two, only events for which it is true are taken; the others count for nothing.

        With `how` as "left", "right" or "full", an event of that side, or of both, whose partner can no longer come is
        given with None in the partner's place. What came too late, or found no room in `bounds`, is told in
        `name.missed`.
        """
        spec = Interval(within, how, bounds)
        return self._joined(name, _caller(), (left, right), key, spec, emits, two_conditions(where))

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
        """Declare a lookup, by a function of (event, row) that makes an event of the class `emits`, several, or None.

        If `table` is a stream, the row is the one that is valid at the event's time: the newest of the same key whose
        event time is not after it. An event waits for rows that may come late, for the table's `late_after`. A row
        stays for `keep` after a newer one, an hour if that is not given; the newest one always stays. If `table` is a
        view, `row` is a class that names the columns it needs, and it is the row as it stands when the event comes.
        Without a row the function gets None; with `how="inner"` it is not called. The key is as for `join`: of the
        events first, if there are two.

        If `table` is a rollup, the function is one of (event, rows): a list of the rows of the unit `per` that begin
        `within` that time before the event, or with it, in order of time, as they stand when the event comes.
        """
        (source,) = _read((table,))
        views = {view.name: view.key for view in self.views}
        spec: Spec = Lookup(how, keep, bounds, row, views.get(source))
        rollup = next((each for each in self._handlers if isinstance(each, Rollup) and each.name == source), None)
        if rollup is not None or per is not None or within is not None:
            declared = None if rollup is None else rollup.declared
            faults = tuple(range_faults(declared, source, per, within, bounds))
            if keep is not None:
                faults = (*faults, "keep is for a table that is a stream; a rollup has its own: leave it out")
            spec = Ranged(how, bounds, row, views.get(source, ()), str(per), within or timedelta(0), faults)
        return self._joined(name, _caller(), (table, reads), key, spec, emits)

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
        names = _read(reads)
        sides = tuple(self._side(each, spec) for each in names)
        turn = 1 if isinstance(spec, Interval) else -1  # the table is read first, and its key is given second
        keys = two_keys(key, sides[::turn])[::turn]

        def declare(function: Pair) -> Joiner:
            made, faults = spec.compiled(Declared(names, keys, sides), function)
            made = made or Joining(Latest, function, function)
            declared = Joiner(
                name, where, names, keys[-1], made.state, (emits, joins.Missed), made.on_event, {TIMER: made.on_timer},
                spec=spec, select=function, keys=keys, conditions=conditions, faults=faults,
            )  # fmt: skip
            self._handlers.append(declared)
            return declared

        return declare

    def _side(self, name: str, spec: Spec) -> Side | None:
        """What a join needs to know of what it reads; None if that is not declared, or not as it must be."""
        known = {stream.name: (stream.event, stream.late_after) for stream in (*self._streams, *self.outputs)}
        if spec.view_row is not None:
            known |= {view.name: (spec.view_row, None) for view in self.views}
        event, late_after = known.get(name, (None, None))
        if not (isinstance(event, type) and issubclass(event, Event)):
            return None
        return Side(name, event, late_after if isinstance(late_after, timedelta) else timedelta(0))

    def source(self, name: str, source: Source, *, into: Stream | str) -> Inlet:
        """Declare a source that fills a stream, beside what is posted to it."""
        declared = Inlet(name, source, into if isinstance(into, str) else into.name, _caller())
        self._inlets.append(declared)
        return declared

    def feed(
        self, name: str, *, of: Readable, where: str | None = None, select: str | Sequence[str] | None = None
    ) -> Feed:
        """Declare a part of a stream or view that is served under a name of its own, and may be granted by it.

        `where` is a condition in SQL, and `select` the columns or expressions that are shown:
        `app.feed("chicago", of=rsvps, where="group_city = 'Chicago'", select=["event_name", "guests"])`.
        """
        listed = select if select is None or isinstance(select, str) else ", ".join(select)
        declared = Feed(name, of if isinstance(of, str) else of.name, _caller(), where, listed)
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
        """Declare that a stream, view or feed is sent to an address, from now on, signed.

        `secret` is the name of an environment variable, or a file (a `Path`, or a text with a `/`), which holds
        `whsec_` and 24 to 64 random bytes in base64; or two of them, with a blank between, while they change. `where`
        and `select` are as for a feed. With a `batch` above 1 a message carries up to so many events.
        """
        listed = select if select is None or isinstance(select, str) else ", ".join(select)
        source = of if isinstance(of, str) else of.name
        declared = Webhook(name, source, url, str(secret), _caller(), where, listed, batch)
        self._webhooks.append(declared)
        return declared

    def preview(self, view: View | str, *events: Iterable[Any]) -> DataFrame:
        """Run a view on plain lists of events, one for each of its inputs, as a batch DataFrame: for tests, notebooks.

        The view is one that Spark computes, or its name. A stream's events are instances of its class or plain
        mappings; a view's are mappings of its columns. Of several rows with one key the last stands, as in the view.
        A view that cannot run is refused, as by `penstock check`.
        """
        from penstock.analyze.preview import preview

        return preview(self, self._query(view) if isinstance(view, str) else view, events)

    def _query(self, name: str) -> View:
        found = next((view for view in self._views if view.name == name), None)
        if found is None and any(each.name == name for each in self.keepers):
            raise DeclarationError(f"the view {name!r} is kept by a handler: use penstock.testing.run and result.rows")
        if found is None:
            raise DeclarationError(unknown("view", name, [view.name for view in self._views]))
        return found

    def __repr__(self) -> str:
        parts = (f"{kind} {', '.join(each.name for each in listed)}" for kind, listed in self._parts() if listed)
        return f"App({'; '.join([repr(self.name), *parts])})"

    def _parts(self) -> tuple[tuple[str, Sequence[Stream | View | Handler | Inlet]], ...]:
        handlers = [each for each in self._handlers if not isinstance(each, Keeper)]
        return ("streams", self.streams), ("sources", self.inlets), ("views", self.views), ("handlers", handlers)

    def _repr_html_(self) -> str:
        rows = [
            (kind.removesuffix("s"), each.name, ", ".join(getattr(each, "reads", ())), str(each.where))
            for kind, listed in self._parts()
            for each in listed
        ]
        return table(f"App {self.name}", ("", "name", "reads", "declared at"), rows)


def _read(reads: Readable | Sequence[Readable]) -> tuple[str, ...]:
    several = isinstance(reads, Iterable) and not isinstance(reads, str)
    inputs: tuple[Any, ...] = tuple(reads) if several else (reads,)  # type: ignore[arg-type]
    for each in inputs:
        if not isinstance(each, Stream | View | Handler | ChangeStream | str):
            raise TypeError(
                f"{each!r} cannot be read: give a stream, a view, a view's changes, a handler, or the name of one"
            )
    return tuple(each if isinstance(each, str) else each.name for each in inputs)


def _keeper(handler: Handler, key: tuple[str, ...], keep: timedelta | None) -> Keeper:
    """A handler as one whose results are a view."""
    row = handler.emits[0] if handler.emits else Event
    faults = () if len(handler.emits) == 1 else ("with view= it emits one class, that of its rows: emits=Class",)
    view = View(handler.name, handler.where, handler.reads, key, keep=keep)
    return Keeper(**{**vars(handler), "emits": kept(row, key)}, view=view, faults=faults)


def _mapping(given: Any) -> Any:
    """A copy of a mapping, which nobody changes any more. What is none is left as it is: `check` tells."""
    return dict(given) if isinstance(given, Mapping) else {} if given is None else given


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
