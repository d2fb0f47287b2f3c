"""What an app is made of: frozen values, each with the file and line it came from. `App` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock import rollups
from penstock.cep.handling import Select
from penstock.cep.search import Search
from penstock.contracts import Source
from penstock.joins.spec import Ranged, Spec
from penstock.joins.telling import Pair
from penstock.kept import gone_class
from penstock.making import KeyFields, key_names
from penstock.schema import Event, Failed, State
from penstock.shed import Shed
from penstock.windows.aggregates import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Emit = Literal["change", "close"]
Time = Literal["event", "ingest"]


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


CHANGES_SUFFIX = ".changes"


@dataclass(frozen=True)
class ChangeStream:
    """The changes of a view as a stream: an event for each row that was set or deleted."""

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
        """Run the user's function on DataFrames of any kind, as a test would."""
        if self.function is None:
            raise TypeError(f"view {self.name} is written in SQL; use app.preview")
        return self.function(*inputs)

    @property
    def changes(self) -> ChangeStream:
        """Its changes as a stream, to be read by another view."""
        return ChangeStream(self.name)

    def placed(self, message: str) -> str:
        """Put the view's file:line in front of a message about it that has none, as those of the store."""
        return f"{self.where}: {message}" if message.startswith(f"view {self.name}: ") else message


Function = Callable[..., Any]


@dataclass(frozen=True)
class Handler:
    """A function run once for each event, with the state of the event's key; what it yields is emitted.

    `function` takes (state, event, context), a timer's function (state, context).
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
        """The views among what it reads, each with the class that names the columns it needs."""
        return {}

    @property
    def gone(self) -> Mapping[str, type[Event]]:
        """The inputs of which it is told what row of a view is gone, each with the class of that: the key of the row.
        Of others it is told that the row of its own key is gone, by None."""
        return {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names in the log of what it reads: a view is read by its changes."""
        return tuple(f"{name}{CHANGES_SUFFIX}" if name in self.rows else name for name in self.reads)

    def key_of(self, stream: str) -> tuple[str, ...]:
        """The fields that have the key, in the events of one of its inputs."""
        return key_names(self.key)

    def condition_of(self, stream: str) -> str | None:
        """The condition in SQL for the events of one of its inputs; None if it takes all of them. To those that do not
        meet it the function is not applied: they are to the handler what a tick is."""
        return None

    def timer(self, name: str) -> Callable[[Function], Function]:
        """Declare what happens when a timer of that name, set with `ctx.timer`, is due. Raises TypeError if `name` is
        not a text, as with `@NAME.timer` directly on a function."""
        if not isinstance(name, str):
            raise TypeError(
                f'a timer of handler {self.name} has no name: write @{self.name}.timer("NAME") above the function, and '
                'set it with ctx.timer("NAME", at)'
            )

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
class Keeper(Handler):
    """A handler whose results are a view: what it emits of its row class is the row with that key from now on, and what
    `gone` makes removes one. Those two classes are the last of `emits`; the others fill the streams that `beside`
    names. `faults` tell why it cannot run; then `function` is never called. One that is `compiled` has no functions
    that the user wrote. `settle`, if there is one, is called with (state, context) for each key that a batch has
    touched, when all else is done, and gives rows: so a row that many events change is made once. It must leave a state
    that does not depend on where batches end. `condition` is for the events of all that it reads. `aggregates` are the
    columns of windows and rollups."""

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
        """The changes of its view as a stream, to be read by another view."""
        return self.view.changes

    @property
    def outputs(self) -> tuple[Stream, ...]:
        """The streams that it fills, as `NAME.BESIDE`, and the events that it failed on. Its rows are none."""
        made = (
            Stream(f"{self.name}.{each}", cls, self.where) for each, cls in zip(self.beside, self.emits, strict=False)
        )
        return (*made, Stream(f"{self.name}.failed", Failed, self.where))


@dataclass(frozen=True)
class Rollup(Keeper):
    """Aggregates of each key by calendar units, compiled to a handler that keeps them as a view."""

    declared: rollups.Declared = field(kw_only=True, hash=False)


@dataclass(frozen=True)
class Recognizer(Matcher):
    """A pattern in SQL, compiled to a handler. Its class of events is `emits[0]`, made from the columns of the text."""

    text: str = field(kw_only=True)

    @property
    def written(self) -> tuple[Function, ...]:
        """None: its functions are made from the text."""
        return ()


@dataclass(frozen=True)
class Joiner(Handler):
    """A join, compiled to a handler. `select` makes an event of two that were joined; `keys` has the key for each of
    `reads`, and `conditions` the condition, if there are any. `faults` tell why it cannot run; then `function` is never
    called."""

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
        """`NAME` has what is made of events that were joined, `NAME.missed` those that were not joined to the end."""
        made = zip((self.name, f"{self.name}.missed"), self.emits, strict=True)
        return (
            *(Stream(name, each, self.where) for name, each in made),
            Stream(f"{self.name}.failed", Failed, self.where),
        )

    @property
    def written(self) -> tuple[Function, ...]:
        return (self.select,)

    def __call__(self, *arguments: Any) -> Any:
        """Make an event of two, as a test would."""
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
    url: str = field(repr=False)
    secret: str
    where: Where
    condition: str | None = None
    select: str | None = None
    batch: int = 1


Readable = Stream | View | Handler | ChangeStream | str
