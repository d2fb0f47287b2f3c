"""The interfaces between the tiers: small Protocols with docstrings that state their guarantees.

A tier never imports another tier. `runtime`, the only package that imports more than one tier, passes each tier the
implementations that it needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from penstock.core.cursor import Span
from penstock.core.schema import Event

NO_MARKS: Mapping[str, str] = MappingProxyType({})

if TYPE_CHECKING:  # pyarrow takes 100 ms to import, and declaring an app does not need it
    from asyncio import Future

    import pyarrow as pa

    from penstock.core.event_shape import EventSpec


class AppendPosition(NamedTuple):
    """The position of the first row of an append: its partition and offset."""

    partition: int
    offset: int

    def after(self, rows: int) -> AppendPosition:
        return AppendPosition(self.partition, self.offset + rows)


@dataclass(frozen=True)
class StreamSpec:
    """The properties of a stream that the log needs before the first append.

    `schema` is the Arrow schema of the stream's batches, including system columns. `event` describes the stream's event
    class, if it has one; events from earlier versions are then read as that class. `admit` checks new rows against the
    latest `unique_ids` ids, or does not check them if `unique_ids` is 0. Each id is remembered for `unique_for`.
    """

    name: str
    schema: pa.Schema
    partitions: int
    unique_ids: int = 0
    unique_for: timedelta = timedelta(hours=24)
    event: EventSpec | None = None

    @classmethod
    def of(cls, name: str, event: EventSpec, partitions: int) -> StreamSpec:
        """Return the spec for a stream that has an event class and does not check ids for uniqueness."""
        return cls(name, event.schema, partitions, event=event)


@dataclass(frozen=True)
class Admission:
    """The result of a call to `admit`. Each mapping contains an entry for every partition that received a batch.

    `spans` contains the offsets assigned to the accepted rows, in row order. `ends` contains the next offset.
    `duplicates` contains the row numbers of duplicates, and `originals` contains the positions of the original events.
    """

    spans: Mapping[int, Sequence[Span]]
    ends: Mapping[int, int]
    duplicates: Mapping[int, Sequence[int]]
    originals: Mapping[int, Sequence[AppendPosition]]


@dataclass(frozen=True)
class Retention:
    """The rule for trimming a stream: events older than `age` can be deleted, and so can the oldest events while the
    stream is larger than `size_bytes`.

    Nothing at or above `floor` is deleted, no matter how old it is. For each partition, `floor` contains the lowest
    offset that a consumer still needs. A partition without an entry has no consumer.
    """

    age: timedelta
    size_bytes: int
    floor: Mapping[int, int]


class LogReader(Protocol):
    """Read access to the log from any process and thread, even while another process writes to it. No method waits for
    rows.

    Offsets increase within a partition and can have gaps, including at the end: a range of offsets can contain fewer
    rows than its length, or no rows at all.
    """

    def generation(self, stream: str) -> int:
        """Return a number that changes when the stream is recreated, so that cursors into the old stream can be
        detected."""

    def starts(self, stream: str) -> Mapping[int, int]:
        """Return the first retained offset of each partition."""

    def ends(self, stream: str) -> Mapping[int, int]:
        """Return the next offset of each partition, past its last durable row."""

    def rows_between(self, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        """Return the number of rows between two positions, including ticks but not gaps. Used for lag and progress.
        Never reads the rows, so a log that cannot count rows without reading them can return an estimate. A partition
        that is missing from `start` is counted from its first retained row."""

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows at offsets [start, end) as written, in order and each exactly once. Events from an earlier
        version of their class are converted to the current version. The additional column `_offset` contains the
        offsets.

        Raises `EventUnreadable`, with the position, if an event cannot be converted; events are never skipped. Raises
        `Damaged`, with the file and the offset, if stored bytes differ from what was written; nothing after the damage
        is returned. Raises `BadCursor` if the range is not fully retained.
        """

    def close(self) -> None:
        """Close all files. Called once, after all other calls."""


class ChangeWatch(Protocol):
    """A watch that calls a function when something has changed. Thread-safe."""

    def arm(self) -> bool:
        """Request one call of the function. Arming an armed watch changes nothing. Returns False if changes are not
        reported, in which case the caller must check for changes itself."""

    def close(self) -> None:
        """Disarm the watch. A call of the function that has already started is not interrupted."""


class BlockingLogReader(LogReader, Protocol):
    """A log reader that can also wait for new rows."""

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        """Return `ends` as soon as it differs from `seen`, or once `timeout_s` has passed. Blocks only the calling
        thread."""

    def watch(self, stream: str, wake: Callable[[], None]) -> ChangeWatch:
        """Return a watch on a stream, which need not exist yet. Each time the watch is armed, it calls `wake` once,
        from any thread, when the stream has changed. It might also call `wake` when nothing has changed."""


class AdmissionLog(LogReader, Protocol):
    """The log's interface for incoming events. It accepts the marks of sources, and events that might be duplicates of
    earlier events. Only one process, and one thread at a time, writes to a stream."""

    def declare(self, spec: StreamSpec) -> None:
        """Create the stream, or check that the stored stream is compatible. A changed schema or class is stored as a
        new version.

        Raises `DeclarationError`, and changes nothing, if the number of partitions has changed or if stored events
        could no longer be read after the change.
        """

    def admit(
        self, stream: str, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str] = NO_MARKS
    ) -> Admission:
        """Append batches to one or more partitions in one transaction, skipping rows whose `_id` is remembered.

        Atomic, and durable on return. The ids and `marks` are stored together with the rows: after a crash, either
        everything is stored or nothing is. `marks` maps the name of each source to the position up to which it has been
        read. Marks can be passed without rows.
        """

    def marks(self, stream: str) -> Mapping[str, str]:
        """Return the last mark of each source that sends to the stream. The stream must have been declared in this
        process."""


class Log(AdmissionLog, BlockingLogReader, Protocol):
    """The complete interface of the durable log, including maintenance and appends to a process's own streams."""

    def append(
        self, stream: str, partition: int, batch: pa.RecordBatch, *, producer: str, sequence: int
    ) -> AppendPosition:
        """Append a batch; durable on return. If `sequence` is not greater than the producer's last sequence in this
        partition, writes nothing and returns the position of that last append. Raises `DiskFull`, without storing any
        part of the batch, if the disk is full."""

    def last_sequence(self, stream: str, partition: int, producer: str) -> int | None:
        """Return the sequence of a producer's last append to a partition, or None if the producer has not appended
        anything. The stream must have been declared in this process."""

    def trim(self, stream: str, retention: Retention) -> Mapping[int, int]:
        """Delete batches as far as the retention rule allows, always whole batches, and return the new starts. Can be
        called while the stream is being read."""

    def merge(self, stream: str) -> int:
        """Rewrite runs of small batches as larger batches, up to a limit per call. Returns the number of batches that
        this saved.

        Offsets and rows do not change, even for reads in progress.
        """


@dataclass(frozen=True)
class Output:
    """The output of one micro-batch of a query: the rows and the identity of the batch.

    `start` and `end` are the query's source positions as canonical JSON; together with `batch_id` they identify the
    batch. `epoch` is the epoch of the data directory's owner. `deletes` contains the key columns of the rows to delete;
    `table` contains none of these rows.
    """

    batch_id: int
    start: str
    end: str
    epoch: int
    table: pa.Table
    deletes: pa.Table | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """The last batch whose output is durable. For a derived view, `inputs` contains the generation and version of each
    input view, and `end` contains the log positions that the input views had reached."""

    batch_id: int
    start: str
    end: str
    epoch: int
    inputs: dict[str, tuple[int, int]] = field(default_factory=dict)


class Sink(Protocol):
    """Writer for the output of one query. Called only by that query's thread, one batch at a time."""

    def last(self) -> LedgerEntry | None:
        """Return the last committed batch, or None before the first commit."""

    def commit(self, output: Output) -> bool:
        """Write the rows and the ledger entry in one transaction. Returns True if they were written.

        If the batch was already committed with the same range, changes nothing and returns False. Writes nothing and
        raises `LedgerMismatch`, with both positions, if the batch has a different range, is out of sequence or comes
        from an older epoch.
        """


@dataclass(frozen=True)
class ViewChange:
    """A view's change from one version to the next. `data` is the JSON object `{"upserts": [...], "deletes": [...]}`.

    `before` contains the previous row for each upsert and then for each delete, or None where no row existed. `before`
    itself is None for an old change whose previous rows are no longer known.
    """

    version: int
    data: bytes
    before: Sequence[bytes | None] | None = None


@dataclass(frozen=True)
class ViewSnapshot:
    """All rows of a view at one version, as JSON objects in rank or key order."""

    version: int
    rows: Sequence[bytes]


class LiveView(Protocol):
    """An in-memory copy of a view, kept up to date from its durable table. Used in only one event loop. No method
    blocks the loop."""

    @property
    def generation(self) -> int:
        """A number that changes when the view is recreated, like a stream's generation."""

    @property
    def version(self) -> int:
        """The version of the latest change, or 0 if the view has never changed and is empty."""

    @property
    def schema(self) -> pa.Schema | None:
        """The view's columns and their types, or None if its query was never built."""

    def snapshot(self) -> ViewSnapshot:
        """Return a consistent snapshot of the rows, with its version."""

    def changes(self, after: int, limit: int) -> Sequence[ViewChange] | None:
        """Return up to `limit` changes with a version above `after`, in order. Returns None if some of these changes
        are no longer retained, or if `after` is ahead of the view."""

    async def wait(self, after: int, timeout_s: float) -> bool:
        """Wait until the view has a version above `after` or has been recreated, and return True. Returns False if
        `timeout_s` passes first."""


@dataclass(frozen=True)
class Delivery:
    """One message to a client. `data` is a JSON object; `cursor` is the client's position after receiving the message.
    `count` is the number of events in a stream's change. `encodings` caches the encoded forms of the message, which are
    shared by all clients that get it; the transport limits the number of entries."""

    kind: Literal["snapshot", "change", "progress", "reset", "stall"]
    data: bytes
    cursor: str
    count: int = 0
    encodings: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)


class PageBody(NamedTuple):
    """The response body for a GET: `body`, which can be shared with other responses, followed by `end`. Pages with the
    same events or rows have the same `tag`, even if their cursors differ."""

    body: bytes
    cursor: str
    tag: str
    end: bytes = b""


@dataclass
class Style:
    """A follower's delivery preferences, which it can change at any time. If `merge` is true, pending changes of a view
    are combined into one change with the latest row of each key. If `take` is set, it can be called while the follower
    waits, and is passed all changes that have arrived together. If it returns True, these changes are not delivered
    again; if it returns False, they are delivered one by one."""

    merge: bool = False
    take: Callable[[Sequence[Delivery]], bool] | None = None


class Channel(Protocol):
    """A stream or view as seen by its readers. It behaves the same way on every transport.

    `since` is a cursor, `earliest`, `latest` or None. A cursor from a different channel raises `BadCursor`. If a
    cursor's position is no longer retained, the reader gets a `reset` (and a snapshot, for a view), never a gap.
    """

    def through(self, where: str | None, select: str | None) -> Channel:
        """Return this channel with a filter applied: a SQL condition and a list of columns. Readers with the same
        filter share the work of filtering. Raises `BadExpression` for an invalid filter."""

    def part(self, where: str | None, select: str | None) -> Channel:
        """Return this channel with a filter that was set by the app rather than by the reader. After the app changes
        the filter, a view's readers get a `reset`, as if their position were no longer retained: their copies contain
        rows that were selected with the old filter."""

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        """Return this channel for a caller who is allowed to see only rows that meet a condition, and must not learn
        anything about other rows. `claim('name')` in the condition stands for one of the reader's claims. As with
        `part`, a view's cursor is valid only for the condition it was issued with. Raises `BadExpression` if the
        condition is invalid or does not fit the columns."""

    def asked_by(self, who: str) -> Channel:
        """Return this channel for a named caller. Some limits apply to all callers together, and the caller can use
        only one caller's share of them."""

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> PageBody:
        """Return the response body for a GET: the JSON object `{"events": [...], "cursor"}` or `{"rows": [...],
        "cursor"}`. If there is nothing after `since`, waits up to `wait_s` for something to arrive. Without a `limit`,
        all rows of a view are returned; a stream requires a limit. `order` sorts the rows of a view."""

    async def last(self, limit: int) -> PageBody:
        """Return the latest events of a stream, in order, or the first rows of a view."""

    def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        """Yield deliveries indefinitely. Nothing is read ahead, so a slow caller does not use additional memory or
        delay other callers."""


class Clock(Protocol):
    """A clock, passed in so that tests and replay control time."""

    def now(self) -> datetime:
        """Return the wall time: aware, in UTC."""

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards."""


class SourceWriter(Protocol):
    """A stream's entry point for events that a source has read."""

    @property
    def event(self) -> type[Event]:
        """The stream's event class; `Raw` if the stream has no event class."""

    @property
    def event_bytes_max(self) -> int:
        """The maximum size of an event in bytes. A larger event becomes a dead letter."""

    @property
    def mark(self) -> str | None:
        """The last durable mark, which survives restarts, or None if no mark was ever stored."""

    async def put(self, raw: bytes, mark: str | None = None) -> Future[None]:
        """Accept one raw event. Returns once the event is in a bounded buffer on its way to the log. If the buffer is
        full, waits for room, which creates back-pressure. Otherwise, does not yield to other tasks, so that consecutive
        events are committed together. The returned future is done when the event is durable or, if the stream allows
        it, has been shed. The future can be shared, so wait for it with `asyncio.wait`, which does not cancel it.

        `mark` is the source's position after this event, as a string in the source's own format. It becomes durable in
        the same transaction as the event, so a source that begins at `mark` after a restart neither misses nor repeats
        an event.
        """

    async def note(self, mark: str) -> Future[None]:
        """Record a mark without an event. Waits, and returns a future, like `put`."""

    async def reject(self, raw: bytes, reason: str, mark: str | None = None) -> Future[None]:
        """Store an invalid event as a dead letter with this reason. Waits, and returns a future, like `put`."""

    async def settle(self) -> None:
        """Wait until everything accepted so far is durable."""


class Replies(Protocol):
    """Access to the results of events, for requests that wait for them."""

    def require_target(self, stream: str, target: str) -> None:
        """Raise `BadParameter` if no event of the stream can have a result in `target`, which is a stream or view.
        Raise `Overloaded` if too many requests are waiting for a reply. Called before the events are accepted."""

    async def reply(
        self, ack: str, target: str, timeout_s: float, may_read: Callable[[str], bool]
    ) -> dict[str, Any] | None:
        """Return the results of the acknowledged events in `target` as soon as the results are known. Returns None when
        `timeout_s` has passed, or immediately if too many requests are waiting. Includes a handler failure on the way
        to `target` only if the caller is allowed to read it. The caller's right to read `target` must already have been
        checked. Does not block a thread while waiting."""


class Source(Protocol):
    """An input that Penstock pulls events from. Immutable: creating a source does not open a connection."""

    @property
    def kind(self) -> str:
        """The kind of source, as a single word that is shown to users, such as websocket."""

    @property
    def address(self) -> str:
        """The address that events are pulled from, without secrets."""

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Pull events until cancelled. Reconnects automatically. Puts each event it reads exactly once, in order.

        If the peer can go back to an earlier position, the source passes each event's position as the event's mark, and
        begins at `source_writer.mark`.
        """


@dataclass
class SourceStatus:
    """The status that a source reports for the API and the dashboard.

    `lost` counts messages that were sent to Penstock but could not be accepted. It stays 0 if the peer retains messages
    until they are acknowledged. If the protocol has no acknowledgements, lost messages can be counted but not
    recovered.
    """

    state: str = "starting"
    received: int = 0
    lost: int = 0
    reconnects: int = 0
    error: str | None = None


class Context(Protocol):
    """A handler's only inputs other than its event and its state. Because there are no other inputs, handlers are
    deterministic."""

    @property
    def key(self) -> str:
        """The key of the state, as a string."""

    @property
    def now(self) -> datetime:
        """The log time: the event's ingest time or, in a timer, the time that the timer was set for. Never the
        wall-clock time."""

    @property
    def random(self) -> Random:
        """A random number generator that is seeded with the event's id or, if it has no id, with its position, so that
        a replay gets the same numbers as the first run."""

    @property
    def cursor(self) -> str:
        """The event's position."""

    @property
    def stream(self) -> str:
        """The name of the event's stream; empty for a timer."""

    def timer(self, name: str, at: datetime | None) -> None:
        """Call the function declared with `@handler.timer(name)` for this key once log time reaches `at`. Setting the
        timer again moves it; None cancels it."""
