"""What a user writes: an app is a named list of frozen declarations, each with the file and line it came from.

Importing an app's file builds these values and does nothing else. Nothing is checked here, so that `penstock check`
can report every problem at once, each with its place (see `graph.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.cep import skip as skips
from penstock.cep.handling import TIMER, Missed, Select, Telling, handled
from penstock.cep.match import Match
from penstock.cep.memory import DEFAULT, Bounds
from penstock.cep.pattern import Pattern
from penstock.cep.search import Search
from penstock.contracts import Source
from penstock.schema import Event, Failed, Raw, State
from penstock.shed import Shed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Emit = Literal["change", "close"]


@dataclass(frozen=True)
class Where:
    """A place in the user's code."""

    file: str
    line: int

    @classmethod
    def of(cls, file: str, line: int) -> Where:
        """A place in a file, which is named as seen from the working directory if it lies there."""
        path, here = Path(file), Path.cwd()
        return cls(str(path.relative_to(here) if path.is_relative_to(here) else path), line)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _caller() -> Where:
    """The place of the statement that called the App method that called us."""
    frame = sys._getframe(2)
    return Where.of(frame.f_code.co_filename, frame.f_lineno)


@dataclass(frozen=True)
class Stream:
    """An append-only, partitioned, durable sequence of events."""

    name: str
    event: type[Event]
    where: Where
    key: str | None = None
    late_after: timedelta | None = None
    keep: timedelta | None = None
    keep_bytes: int | None = None
    partitions: int | None = None
    shed: Shed | None = None


@dataclass(frozen=True)
class View:
    """A keyed table kept up to date by a Spark query: `function` of DataFrames, or `query` in SQL."""

    name: str
    where: Where
    reads: tuple[str, ...]
    key: tuple[str, ...]
    function: Callable[..., DataFrame] | None = field(default=None, compare=False)
    query: str | None = None
    keep: timedelta | None = None
    top: int | None = None
    by: str | None = None
    emit: Emit = "change"

    def __call__(self, *inputs: DataFrame) -> DataFrame:
        """Run the user's function on DataFrames of any kind, as a test would."""
        if self.function is None:
            raise TypeError(f"view {self.name} is written in SQL; use app.preview")
        return self.function(*inputs)


Function = Callable[..., Any]


@dataclass(frozen=True)
class Handler:
    """A function run once for each event, with the state of the event's key; what it yields is emitted.

    `function` takes (state, event, context), a timer's function (state, context).
    """

    name: str
    where: Where
    reads: tuple[str, ...]
    key: str
    state: type[State]
    emits: tuple[type[Event], ...]
    function: Function = field(compare=False)
    timers: dict[str, Function] = field(default_factory=dict, compare=False)

    def timer(self, name: str) -> Callable[[Function], Function]:
        """Declare what happens when a timer of that name, set with `ctx.timer`, is due."""

        def declare(function: Function) -> Function:
            self.timers[name] = function
            return function

        return declare

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that it fills: one for each emitted class, under the handler's name if there is one only; and
        the events that it failed on."""
        names = [f"{self.name}.{each.__name__}" for each in self.emits] if len(self.emits) > 1 else [self.name]
        emitted = (Stream(name, each, self.where) for name, each in zip(names, self.emits, strict=False))
        return (*emitted, Stream(f"{self.name}.failed", Failed, self.where))

    @property
    def written(self) -> tuple[Function, ...]:
        """The functions that the user wrote for it."""
        return (self.function, *self.timers.values())

    def __call__(self, *arguments: Any) -> Any:
        """Run the user's function, as a test would."""
        return self.function(*arguments)


@dataclass(frozen=True)
class Matcher(Handler):
    """A pattern, compiled to a handler. `select` makes an event of each match; `late` the one that `timeout` declares,
    of each partial match whose time is over. `faults` tell why it cannot run; then `function` is never called."""

    search: Search = field(kw_only=True)
    select: Select = field(kw_only=True, compare=False)
    timeouts: type[Event] | None = field(kw_only=True, default=None)
    late: list[Select] = field(kw_only=True, default_factory=list, compare=False)
    faults: tuple[str, ...] = field(kw_only=True, default=())

    def timeout(self, function: Select) -> Select:
        """Declare what is emitted, as `NAME.timeout`, of a partial match whose time is over."""
        self.late.append(function)
        return function

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """`NAME` has what is made of matches, `NAME.timeout` that of partial ones whose time was over, `NAME.missed`
        what was not looked at to the end."""
        names = [self.name, *([f"{self.name}.timeout"] if self.timeouts is not None else []), f"{self.name}.missed"]
        made = (Stream(name, each, self.where) for name, each in zip(names, self.emits, strict=True))
        return (*made, Stream(f"{self.name}.failed", Failed, self.where))

    @property
    def written(self) -> tuple[Function, ...]:
        steps = () if self.faults else self.search.pattern.steps()
        predicates = [step.predicate for step in steps if step.predicate is not None]
        return (self.select, *self.late, *predicates)

    def __call__(self, *arguments: Any) -> Any:
        """Make an event of a match, as a test would."""
        return self.select(*arguments)


@dataclass(frozen=True)
class Inlet:
    """A source and the stream it fills."""

    name: str
    source: Source
    into: str
    where: Where


@dataclass(frozen=True)
class Feed:
    """What is served of a stream or view under another name: the rows for which `condition` holds, and of those what
    `select` lists."""

    name: str
    of: str
    where: Where
    condition: str | None = None
    select: str | None = None


@dataclass(frozen=True)
class Webhook:
    """Where a stream, view or feed is sent to. `secret` says where its secret is: an environment variable by its name,
    or a file."""

    name: str
    of: str
    url: str
    secret: str
    where: Where
    condition: str | None = None
    select: str | None = None
    batch: int = 1


Readable = Stream | View | Handler | str


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
        return tuple(self._views)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers)

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that handlers fill."""
        return tuple(output for handler in self._handlers for output in handler.outputs)

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
    ) -> Stream:
        """Declare a stream of events of one class; without a class it carries raw bytes.

        Order holds for events of the same `key`. An event more than `late_after` behind the newest one is late for
        windows. Events older than `keep`, or the oldest past `keep_bytes`, go once every view has read them.
        With `shed`, some events are given up while the stream is overloaded; without it, none ever is.
        """
        declared = Stream(name, event, _caller(), key, late_after, keep, keep_bytes, partitions, shed)
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
    ) -> Callable[[Callable[..., DataFrame]], View]:
        """Declare a view by a function of one DataFrame for each input, in the order of `reads`.

        `key` names the columns that identify a row. `keep` drops rows whose window ended, or that last changed, so
        long ago. `top` and `by` serve only the rows with the highest `by`; if the key has a window, those of the newest
        one. `emit="close"` shows a window's rows once, when it is complete, instead of at every change.
        """
        where = _caller()

        def declare(function: Callable[..., DataFrame]) -> View:
            declared = View(name, where, _read(reads), _names(key), function, None, keep, top, by, emit)
            self._views.append(declared)
            return declared

        return declare

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
    ) -> View:
        """Declare a view by a SQL SELECT over the app's streams and views. What it reads is found in the text."""
        declared = View(name, _caller(), tables(query), _names(key), None, query, keep, top, by, emit)
        self._views.append(declared)
        return declared

    def handler(
        self,
        name: str,
        *,
        reads: Readable | Sequence[Readable],
        key: str,
        state: type[State],
        emits: type[Event] | Sequence[type[Event]] = (),
    ) -> Callable[[Function], Handler]:
        """Declare a handler by a function of (state, event, context) that mutates the state and yields what it emits.

        It is called once for each event of the streams it reads, in log order for each value of the field `key`, with
        the state of that value; a new one starts with `state()`. It must be deterministic: no wall clock, no random
        numbers and no input or output of its own. What it emits is the stream `name`, or `name.Class` if there are
        several classes; events that it fails on go to `name.failed`.
        """
        where = _caller()
        classes = (emits,) if isinstance(emits, type) else tuple(emits)

        def declare(function: Function) -> Handler:
            declared = Handler(name, where, _read(reads), key, state, classes, function)
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
        skip: skips.Skip = skips.none,
        every: bool = True,
        timeouts: type[Event] | None = None,
        bounds: Bounds = DEFAULT,
    ) -> Callable[[Callable[[Match], Any]], Matcher]:
        """Declare a pattern that is looked for in the events of each value of the field `key`, in order of event time.

        The function makes of each match an event of the class `emits`, several of them, or None; they are the stream
        `name`. All of a match is `within` that time, from its first event on. `skip` says what of other matches
        remains when one is found; with `every=False` a key has one match and no more. Partial matches whose time is
        over become events of the class `timeouts`, by a function declared with `@NAME.timeout`, in `name.timeout`.
        What came too late, or found no room in `bounds`, is told in `name.missed`.
        """
        where, names = _caller(), _read(reads)
        search = Search(pattern, within, skip, every, bounds)
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

    def preview(self, view: View, *events: Iterable[Any]) -> DataFrame:
        """Run a view on plain lists of events, one for each of its inputs, as a batch DataFrame: for tests, notebooks.

        A stream's events are instances of its class or plain mappings; a view's are mappings of its columns.
        """
        from penstock.analyze.preview import preview

        return preview(self, view, events)


def _read(reads: Readable | Sequence[Readable]) -> tuple[str, ...]:
    inputs = (reads,) if isinstance(reads, Stream | View | Handler | str) else tuple(reads)
    return tuple(each if isinstance(each, str) else each.name for each in inputs)


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def tables(query: str) -> tuple[str, ...]:
    """The names that a SELECT reads, each once, in order; none if the text is not SQL (which `check` reports)."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(query, dialect="spark")
    except SqlglotError:
        return ()
    local = {each.alias for each in tree.find_all(exp.CTE)}
    return tuple(dict.fromkeys(table.name for table in tree.find_all(exp.Table) if table.name not in local))
