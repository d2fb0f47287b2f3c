"""The declarations in an app: frozen values, each with its file and line, created by `App`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock import rollups
from penstock.app.shed import Shed
from penstock.cep.handling import Select
from penstock.cep.search import Search
from penstock.core.contracts import Source
from penstock.core.deletes import gone_class
from penstock.core.operators import KeyFields, key_names
from penstock.core.schema import Event, Failed, State
from penstock.joins.declaring import Ranged, Spec
from penstock.joins.output import Pair
from penstock.windows.aggregates import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Emit = Literal["change", "close"]
Time = Literal["event", "ingest"]


@dataclass(frozen=True)
class Where:
    """A position in the user's code."""

    file: str
    line: int

    @classmethod
    def of(cls, file: str, line: int) -> Where:
        """Return a position in a file. The path is relative to the working directory if the file is inside that
        directory."""
        path, here = Path(file), Path.cwd()
        return cls(str(path.relative_to(here) if path.is_relative_to(here) else path), line)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


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
    ahead: timedelta | None = None


CHANGES_SUFFIX, REJECTED_SUFFIX = ".changes", ".rejected"


@dataclass(frozen=True)
class ChangeStream:
    """The changes of a view as a stream, with an event for each row that is set or deleted."""

    view: str

    @property
    def name(self) -> str:
        return f"{self.view}{CHANGES_SUFFIX}"


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
    time: Time = "event"

    def __call__(self, *inputs: DataFrame) -> DataFrame:
        """Run the user's function on DataFrames of any kind, for example in a test."""
        if self.function is None:
            raise TypeError(f"view {self.name} is written in SQL, so it cannot be called; use app.preview")
        return self.function(*inputs)

    @property
    def changes(self) -> ChangeStream:
        """The view's changes as a stream, which other views and handlers can read."""
        return ChangeStream(self.name)

    def placed(self, message: str) -> str:
        """Return a message about the view, prefixed with the view's file:line unless it already has one."""
        return f"{self.where}: {message}" if message.startswith(f"view {self.name}: ") else message


Function = Callable[..., Any]


@dataclass(frozen=True)
class Handler:
    """A function that runs once for each event, with the state of the event's key, and yields the events to emit.

    `function` takes (state, event, context); a timer's function takes (state, context).
    """

    name: str
    where: Where
    reads: tuple[str, ...]
    key: KeyFields
    state: type[State]
    emits: tuple[type[Event], ...]
    function: Function = field(compare=False)
    timers: dict[str, Function] = field(default_factory=dict, compare=False)

    @property
    def rows(self) -> Mapping[str, type[Event]]:
        """The views that the handler reads, each with a class whose fields are the columns that it needs."""
        return {}

    @property
    def gone(self) -> Mapping[str, type[Event]]:
        """The inputs from which the handler receives deleted rows as events, each with the class of these events. The
        class contains the row's key columns. For any other view, the handler receives None when the row for its own key
        is deleted."""
        return {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the handler's inputs in the log. A view is read through its changes."""
        return tuple(f"{name}{CHANGES_SUFFIX}" if name in self.rows else name for name in self.reads)

    def key_of(self, stream: str) -> tuple[str, ...]:
        """Return the key fields in the events from one input."""
        return key_names(self.key)

    def condition_of(self, stream: str) -> str | None:
        """Return the SQL condition for the events from one input, or None if there is no condition. An event that does
        not meet the condition is not passed to the function; like a tick, it only advances time."""
        return None

    def timer(self, name: str) -> Callable[[Function], Function]:
        """Declare the function of the timer `name`, which `ctx.timer` sets. Raises TypeError if `name` is not a string,
        as when `@NAME.timer` is written without arguments."""
        if not isinstance(name, str):
            raise TypeError(
                f'a timer of handler {self.name} has no name: write @{self.name}.timer("NAME") above the function, and '
                'set the timer with ctx.timer("NAME", at)'
            )

        def declare(function: Function) -> Function:
            self.timers[name] = function
            return function

        return declare

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that the handler writes: one for each emitted class (under the handler's name if there is only
        one class), and one for the events that it failed on."""
        names = [f"{self.name}.{cls.__name__}" for cls in self.emits] if len(self.emits) > 1 else [self.name]
        emitted = (Stream(name, cls, self.where) for name, cls in zip(names, self.emits, strict=False))
        return (*emitted, Stream(f"{self.name}.failed", Failed, self.where))

    @property
    def written(self) -> tuple[Function, ...]:
        """The functions that the user wrote for this handler."""
        return (self.function, *self.timers.values())

    def __call__(self, *arguments: Any) -> Any:
        """Run the user's function, for example in a test."""
        return self.function(*arguments)


@dataclass(frozen=True)
class Matcher(Handler):
    """A pattern, compiled into a handler. `select` turns a match into events; `late`, declared with `timeout`, does the
    same for a partial match that timed out. `faults` lists the reasons why the pattern cannot run; if there are any,
    `function` is never called."""

    search: Search = field(kw_only=True)
    select: Select = field(kw_only=True, compare=False)
    timeouts: type[Event] | None = field(kw_only=True, default=None)
    late: list[Select] = field(kw_only=True, default_factory=list, compare=False)
    faults: tuple[str, ...] = field(kw_only=True, default=())

    def timeout(self, function: Select) -> Select:
        """Declare the function for partial matches that time out; its events go to the stream `NAME.timeout`."""
        self.late.append(function)
        return function

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that the pattern writes: `NAME` with the results of matches, `NAME.timeout` with the results of
        partial matches that timed out, and `NAME.missed` with the events that were not fully processed."""
        names = [self.name, *([f"{self.name}.timeout"] if self.timeouts is not None else []), f"{self.name}.missed"]
        streams = (Stream(name, cls, self.where) for name, cls in zip(names, self.emits, strict=True))
        return (*streams, Stream(f"{self.name}.failed", Failed, self.where))

    @property
    def written(self) -> tuple[Function, ...]:
        steps = () if self.faults else self.search.pattern.steps()
        predicates = [step.predicate for step in steps if step.predicate is not None]
        return (self.select, *self.late, *predicates)

    def __call__(self, *arguments: Any) -> Any:
        """Run the user's function on a match, for example in a test."""
        return self.select(*arguments)


@dataclass(frozen=True)
class ViewHandler(Handler):
    """A handler that produces a view: an emitted event of the row class becomes the row for its key, and a `gone` event
    deletes a row. These two classes come last in `emits`; events of the other classes go to the streams named in
    `beside`.

    `faults` lists the reasons why the handler cannot run; if there are any, `function` is never called. A `compiled`
    handler has no user functions. `settle`, if set, is called at the end of a batch with (state, context) for each key
    that the batch has touched. It returns rows, so a row that many events change is emitted only once. The state after
    `settle` must not depend on batch boundaries. `condition` applies to the events from all inputs. `aggregates`
    contains the columns of windows and rollups.
    """

    view: View = field(kw_only=True)
    beside: tuple[str, ...] = field(kw_only=True, default=())
    faults: tuple[str, ...] = field(kw_only=True, default=())
    compiled: bool = field(kw_only=True, default=False)
    settle: Function | None = field(kw_only=True, default=None, compare=False)
    condition: str | None = field(kw_only=True, default=None)
    aggregates: Mapping[str, Aggregate] = field(kw_only=True, default_factory=dict, compare=False)

    def condition_of(self, stream: str) -> str | None:
        return self.condition

    @property
    def written(self) -> tuple[Function, ...]:
        return () if self.compiled else super().written

    @property
    def row(self) -> type[Event]:
        return self.emits[-2]

    @property
    def changes(self) -> ChangeStream:
        """The changes of the handler's view as a stream, which other views and handlers can read."""
        return self.view.changes

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that the handler writes: `NAME.BESIDE` for each name in `beside`, and the stream of events that
        it failed on. Its rows do not form a stream."""
        streams = (
            Stream(f"{self.name}.{suffix}", cls, self.where)
            for suffix, cls in zip(self.beside, self.emits, strict=False)
        )
        return (*streams, Stream(f"{self.name}.failed", Failed, self.where))


@dataclass(frozen=True)
class Rollup(ViewHandler):
    """Aggregates for each key and calendar unit, compiled into a handler that maintains a view."""

    declared: rollups.RollupDeclaration = field(kw_only=True, hash=False)


@dataclass(frozen=True)
class Recognizer(Matcher):
    """A pattern in SQL, compiled into a handler. Its event class is `emits[0]`, created from the selected columns."""

    text: str = field(kw_only=True)

    @property
    def written(self) -> tuple[Function, ...]:
        """The functions that the user wrote: none, because they are generated from the query."""
        return ()


@dataclass(frozen=True)
class Joiner(Handler):
    """A join, compiled into a handler. `select` turns two joined events into results. `keys` contains the key for each
    input in `reads`, and `conditions` contains the SQL conditions, if any. `faults` lists the reasons why the join
    cannot run; if there are any, `function` is never called."""

    spec: Spec = field(kw_only=True)
    select: Pair = field(kw_only=True, compare=False)
    keys: tuple[KeyFields, ...] = field(kw_only=True)
    conditions: tuple[str | None, ...] = field(kw_only=True, default=())
    faults: tuple[str, ...] = field(kw_only=True, default=())

    @property
    def rows(self) -> Mapping[str, type[Event]]:
        row = self.spec.view_row
        return {self.reads[0]: row} if row is not None else {}

    @property
    def view(self) -> str | None:
        """The view in which the join looks up rows."""
        return self.reads[0] if self.spec.has_view else None

    @property
    def gone(self) -> Mapping[str, type[Event]]:
        if not isinstance(self.spec, Ranged) or self.spec.row is None or self.faults:
            return {}
        return {self.inputs[0]: gone_class(self.spec.row, frozenset(self.spec.view_key))}

    def key_of(self, stream: str) -> tuple[str, ...]:
        return key_names(dict(zip(self.inputs, self.keys, strict=True))[stream])

    def condition_of(self, stream: str) -> str | None:
        return dict(zip(self.inputs, self.conditions, strict=False)).get(stream)

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that the join writes: `NAME` with the results of joined events, and `NAME.missed` with the events
        that were not fully processed."""
        pairs = zip((self.name, f"{self.name}.missed"), self.emits, strict=True)
        return (
            *(Stream(name, cls, self.where) for name, cls in pairs),
            Stream(f"{self.name}.failed", Failed, self.where),
        )

    @property
    def written(self) -> tuple[Function, ...]:
        return (self.select,)

    def __call__(self, *arguments: Any) -> Any:
        """Run the user's function on two events, for example in a test."""
        return self.select(*arguments)


@dataclass(frozen=True)
class Inlet:
    """A source and the stream that it fills."""

    name: str
    source: Source
    into: str
    where: Where


@dataclass(frozen=True)
class Feed:
    """A part of a stream or view that is served under a separate name: the rows that meet `condition`, with the columns
    in `select`."""

    name: str
    of: str
    where: Where
    condition: str | None = None
    select: str | None = None


@dataclass(frozen=True)
class Webhook:
    """A target for a stream, view or feed. `secret` names the environment variable or the file that holds its
    secret."""

    name: str
    of: str
    url: str = field(repr=False)
    secret: str
    where: Where
    condition: str | None = None
    select: str | None = None
    batch: int = 1


Readable = Stream | View | Handler | ChangeStream | str
