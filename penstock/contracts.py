"""The seams between tiers: small Protocols whose docstrings state the guarantee.

A tier never imports another tier. It is handed one of these by `runtime`, the only place that knows two at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from penstock.cursor import Positions
from penstock.schema import Event
from penstock.shard import HASH_BYTES, Changes, Shard

NO_MARKS: Mapping[str, str] = MappingProxyType({})

if TYPE_CHECKING:  # pyarrow takes 100 ms to import, and declaring an app does not need it
    from asyncio import Future

    import pyarrow as pa

    from penstock.event_shape import EventSpec


class Position(NamedTuple):
    """Where an append began: its partition and the offset of its first row."""

    partition: int
    offset: int

    def after(self, rows: int) -> Position:
        return Position(self.partition, self.offset + rows)


@dataclass(frozen=True)
class StreamSpec:
    """What the log must know of a stream before its first append.

    `schema` is the Arrow schema of its batches, system columns included. `event` tells of the class that it belongs to,
    if the stream has one: then events of earlier versions are read as that class. `unique_ids` is how many of the
    latest `_id`s a later `admit` is checked against, 0 for no check; `unique_for` how long each is remembered.
    """

    name: str
    schema: pa.Schema
    partitions: int
    unique_ids: int = 0
    unique_for: timedelta = timedelta(hours=24)
    event: EventSpec | None = None

    @classmethod
    def of(cls, name: str, event: EventSpec, partitions: int) -> StreamSpec:
        """A stream of an event class, whose ids need not be unique."""
        return cls(name, event.schema, partitions, event=event)


@dataclass(frozen=True)
class Admission:
    """What became of the batches of one `admit`: the first offset given in each partition, the rows not taken, and the
    positions of the events that those repeat."""

    first: Mapping[int, int]
    duplicates: Mapping[int, Sequence[int]]
    originals: Mapping[int, Sequence[Position]]


@dataclass(frozen=True)
class Retention:
    """What may go: events older than `age`, and the oldest ones while the stream is over `size_bytes`.

    Nothing at or above `floor` goes, whatever its age: `floor` is the lowest offset, for each partition, that some
    consumer still needs. A partition without an entry has no consumer.
    """

    age: timedelta
    size_bytes: int
    floor: Mapping[int, int]


class LogReader(Protocol):
    """Reads of the log, from any process and any thread, while another process writes."""

    def generation(self, stream: str) -> int:
        """A number that changes when the stream is made anew, so that old cursors are told from new ones."""

    def starts(self, stream: str) -> Mapping[int, int]:
        """The first offset that is kept, for each partition."""

    def ends(self, stream: str) -> Mapping[int, int]:
        """The next offset of each partition: one past the last durable event."""

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows at offsets [start, end), in order, each exactly once, as written; events of an earlier version of
        their class as the class has them now.

        An event that cannot be read so raises `EventUnreadable`, with its position: none is passed over.
        Bytes that are not what was written raise `Damaged` with file and offset, and nothing past them is given.
        A range that is not wholly kept raises `BadCursor`.
        """

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        """`ends`, as soon as it differs from `seen`, or when `timeout_s` has passed. Blocks the calling thread only."""

    def close(self) -> None:
        """Let go of files. Called once, last."""


class Log(LogReader, Protocol):
    """The durable log. One process writes a stream; writes of one stream come from one thread at a time."""

    def declare(self, spec: StreamSpec) -> None:
        """Make the stream, or check that the one on disk fits; a changed schema or class becomes a new version of it.

        A change of the number of partitions, or one after which stored events could not be read, raises
        `DeclarationError`, and nothing is changed.
        """

    def append(self, stream: str, partition: int, batch: pa.RecordBatch, *, producer: str, sequence: int) -> Position:
        """Durable on return. A sequence not greater than the producer's last in this partition is a no-op that
        returns that last append's position. Disk full raises `DiskFull`, and nothing of the batch stays."""

    def admit(
        self, stream: str, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str] = NO_MARKS
    ) -> Admission:
        """Append a batch to each of several partitions in one transaction, leaving out rows whose `_id` was seen.

        Durable on return, all or nothing. The ids are durable with the rows: after a crash both are there or neither.
        So are `marks`, which say how far sources have been read, by their names; there may be marks and no rows.
        """

    def last_sequence(self, stream: str, partition: int, producer: str) -> int | None:
        """The sequence of a producer's last append to a partition; None if it made none. Of a stream that this process
        has declared."""

    def marks(self, stream: str) -> Mapping[str, str]:
        """The last mark of each source that has filled the stream. Of a stream that this process has declared."""

    def trim(self, stream: str, retention: Retention) -> Mapping[int, int]:
        """Drop whole batches that may go; returns the new starts. Safe beside readers."""

    def merge(self, stream: str) -> int:
        """Rewrite runs of small batches as larger ones, a bounded piece at a time; returns how many batches went.

        Offsets and rows stay as they are, for readers under way too.
        """


@dataclass(frozen=True)
class Output:
    """What one micro-batch of a query produced: the rows and the identity of the batch.

    `start` and `end` are the query's source positions as canonical JSON text; together with `batch_id` they are the
    batch's identity. `epoch` is that of the owner of the data directory. `gone` has the key columns of rows that are to
    be removed, none of which is among the rows.
    """

    batch_id: int
    start: str
    end: str
    epoch: int
    table: pa.Table
    gone: pa.Table | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """The last batch whose output is durable. `inputs` has the generation and version of each view that a derived view
    was computed from; then `end` is how far those had come in the log."""

    batch_id: int
    start: str
    end: str
    epoch: int
    inputs: dict[str, tuple[int, int]] = field(default_factory=dict)


class HandledShard(msgspec.Struct, frozen=True):
    """A shard of a handler's state as of a committed batch: the batch that last changed it is its `version`."""

    version: int
    digest: bytes
    keys: int
    size: int
    time: int
    due: int | None = None

    @classmethod
    def of(cls, shard: Shard, version: int) -> HandledShard:
        digest = shard.digest.to_bytes(HASH_BYTES, "little")
        return cls(version, digest, len(shard.records), shard.size, shard.time, shard.next_due())


class ShardStore(Protocol):
    """The durable state of one shard. Written by one process at a time."""

    def write_delta(self, version: int, base: int, changes: Changes, digest: int) -> int:
        """Make what a batch changed durable, on top of version `base`; returns the size in bytes. It counts once the
        ledger has the version, and may be written again until then."""

    def write_snapshot(self, version: int, shard: Shard, start: Positions) -> int:
        """Make all of a committed version durable; returns the size in bytes. `start` is where the log goes on from
        there, for the streams and partitions that the shard reads."""

    def origin(self) -> Shard:
        """The shard as it was where the handler began: empty, unless it was carried over from an earlier class."""

    def snapshot_is_due(self, version: int) -> bool:
        """Whether a snapshot at this version would save more than it costs."""

    def drop_before(self, version: int) -> None:
        """Remove what a snapshot at `version` has made needless."""

    def catch_up(self, shard: Shard, held: int, version: int) -> int | None:
        """Bring a shard from one version to a later one: by how many deltas. None, and nothing done, if they do not
        lead there."""

    def outbox(self, version: int) -> Path:
        """Where a batch may leave what it emits, on its way to the log; the file may be there from an earlier try."""

    def load(self, version: int) -> Shard:
        """The shard at a version; empty for `NOTHING`. `Damaged` if what is on the disk is not what was written."""


class Sink(Protocol):
    """Takes the output of one query. Called by that query's thread only, one batch at a time."""

    def last(self) -> LedgerEntry | None:
        """The last committed batch, None before the first."""

    def commit(self, output: Output) -> bool:
        """Write the rows and the ledger entry in one transaction; True if they were written.

        A batch that was committed before, over the same range, changes nothing and gives False. Over another range,
        or out of turn, or from an older epoch, it raises `LedgerMismatch` with both positions, and nothing is written.
        """


@dataclass(frozen=True)
class Change:
    """One step of a view: `data` is the JSON object `{"upserts": [...], "deletes": [...]}`.

    `before` has, for each upsert and then each delete, the row that stood there, None if there was none. It is None for
    a change of long ago, of which that is not known any more.
    """

    version: int
    data: bytes
    before: Sequence[bytes | None] | None = None


@dataclass(frozen=True)
class Snapshot:
    """All rows of a view as JSON objects, in rank or key order, at one version."""

    version: int
    rows: Sequence[bytes]


class LiveView(Protocol):
    """A view in memory, kept up to date from its durable table. Belongs to one event loop; nothing here blocks it."""

    @property
    def generation(self) -> int:
        """As for a stream: changes when the view is made anew."""

    @property
    def version(self) -> int:
        """That of the latest change; 0 if there was none, and then the view is empty."""

    @property
    def schema(self) -> pa.Schema | None:
        """The types of its columns; None if its query was never built."""

    def snapshot(self) -> Snapshot:
        """Rows and version of one instant."""

    def changes(self, after: int, limit: int) -> Sequence[Change] | None:
        """Up to `limit` changes with a version above `after`, in order; None if some of them are no longer kept."""

    async def wait(self, after: int, timeout_s: float) -> bool:
        """True as soon as there is a version above `after`; False when `timeout_s` has passed."""


@dataclass(frozen=True)
class Delivery:
    """One message to a client. `data` is a JSON object; `cursor` is where the client stands once it has it. `count` is
    the number of events in a change of a stream. `made` has what a transport has made of it, for all who get the same;
    how many that may be is the transport's to bound."""

    kind: Literal["snapshot", "change", "progress", "reset", "stall"]
    data: bytes
    cursor: str
    count: int = 0
    made: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)


class Page(NamedTuple):
    """What a GET answers: `body`, which others may be answered with as well, and `end` behind it. `tag` is the same for
    pages with the same events or rows, wherever their cursors stand."""

    body: bytes
    cursor: str
    tag: str
    end: bytes = b""


@dataclass
class Style:
    """How a follower wants its deliveries; it may change its mind at any time. With `merge`, the changes of a view that
    wait for it come as one, with the latest row of each key. With `take`, changes may be handed to it the moment they
    come, while it waits for one, all that came together: it returns True if it has taken them, and is then not given
    them again; False if it took none, and is given them one by one."""

    merge: bool = False
    take: Callable[[Sequence[Delivery]], bool] | None = None


class Channel(Protocol):
    """A stream or a view as its readers see it: the one behaviour behind every transport.

    `since` is a cursor, `earliest`, `latest` or None. A cursor that is not of this channel raises `BadCursor`; one
    whose position is no longer kept is answered by a `reset` (and a snapshot, for a view), never by a hole.
    """

    def through(self, where: str | None, select: str | None) -> Channel:
        """The same, seen through a filter: a condition and a list of columns, in SQL. Readers with the same filter
        share its work. A filter that is none raises `BadExpression`."""

    def part(self, where: str | None, select: str | None) -> Channel:
        """The same, by a filter that is the app's and not the reader's. If the app comes to have another one, a view's
        readers are answered as if their position was no longer kept: their copies hold rows of the old one."""

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        """The same for one who may see no rows but those for which a condition holds, and must not hear of others.
        `claim('name')` in it stands for what is known of the reader. As for `part`, a cursor belongs to what was shown.
        A condition that is none, or does not fit, raises `BadExpression`."""

    def asked_by(self, who: str) -> Channel:
        """The same for a caller of that name, which may use up no more than its share of what is bounded for all."""

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> Page:
        """What a GET answers: the JSON object `{"events": [...], "cursor"}` or `{"rows": [...], "cursor"}`. If nothing
        has come after `since`, it comes as soon as something has, or when `wait_s` has passed. Without a `limit` there
        are all rows of a view; a stream needs one. `order` sorts the rows of a view."""

    async def last(self, limit: int) -> Page:
        """The latest events of a stream, in their order, or the first rows of a view."""

    def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        """Deliveries without end. Nothing is read ahead of the caller: a slow one costs no memory, and no one waits."""


class Clock(Protocol):
    """Time, passed in so that tests and replay decide what it is."""

    def now(self) -> datetime:
        """Wall time, aware, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class Intake(Protocol):
    """Where a source puts what it has read."""

    @property
    def event(self) -> type[Event]:
        """The class of the stream's events; `Raw` if it has none."""

    @property
    def event_bytes_max(self) -> int:
        """The most bytes of an event; one that has more becomes a dead letter."""

    @property
    def mark(self) -> str | None:
        """The last mark that is durable, across restarts; None if there never was one."""

    async def put(self, raw: bytes, mark: str | None = None) -> Future[None]:
        """Take one raw event. Returns once it is in a bounded buffer on its way to the log, and waits while that is
        full, which is the back-pressure; while there is room, it gives way to no other task, so that events put one
        after the other are committed together. What is returned is done when the event is durable, or was shed, if the
        stream allows that; others may have got the same, so wait for it with `asyncio.wait`, which a cancellation does
        not pass on.

        `mark` says where the source stands after this event: text of its own, that becomes durable with the event, in
        one transaction. So a source that begins at `mark` after a restart misses nothing and repeats nothing.
        """

    async def note(self, mark: str) -> Future[None]:
        """The same for a mark alone, without an event."""

    async def reject(self, raw: bytes, reason: str, mark: str | None = None) -> Future[None]:
        """The same for something that the source knows is no event: it becomes a dead letter with that reason."""

    async def settle(self) -> None:
        """Return when everything taken so far is durable."""


class Replies(Protocol):
    """What events caused, for a request that waits for it."""

    def require_target(self, stream: str, target: str) -> None:
        """Raise `BadParameter` if no event of the stream can cause anything in `target`, a stream or view; `Overloaded`
        if too many wait for a reply. Called before the events are taken."""

    async def reply(
        self, ack: str, target: str, timeout_s: float, may_read: Callable[[str], bool]
    ) -> dict[str, Any] | None:
        """What the acknowledged events caused there, as soon as it is known; None when `timeout_s` has passed, or at
        once if too many wait. Of a handler's failures on the way only those are shown that the caller may read: who
        may read `target` is for the caller to say before. Holds no thread while it waits."""


class Source(Protocol):
    """A feed that Penstock pulls. A frozen value: making one opens nothing."""

    @property
    def kind(self) -> str:
        """One word for people: websocket, ..."""

    @property
    def address(self) -> str:
        """Where it pulls from, without secrets."""

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Pull until cancelled. Reconnects by itself; puts each event it reads, in order, exactly once.

        One whose other side can go back to a position gives it as the mark of each event, and begins at `intake.mark`.
        """


@dataclass
class SourceStatus:
    """What a source says of itself, for the API and the dashboard.

    `lost` counts what was sent to us and could not be taken. It stays 0 for a source whose other side keeps things for
    us; one that nobody answers has nothing better to offer than the number.
    """

    state: str = "starting"
    received: int = 0
    lost: int = 0
    reconnects: int = 0
    error: str | None = None


class Context(Protocol):
    """What a handler may know besides its event and its state. Nothing else: a handler is deterministic."""

    @property
    def key(self) -> str:
        """The key whose state it is, as text."""

    @property
    def now(self) -> datetime:
        """Log time: the ingest time of the event, or the time that a timer was set for; not the wall clock."""

    @property
    def random(self) -> Random:
        """Seeded by the event's id, or else its position, so that a replay draws the same numbers."""

    @property
    def cursor(self) -> str:
        """The event's position."""

    @property
    def stream(self) -> str:
        """The name of the stream that the event came by; empty for a timer."""

    def timer(self, name: str, at: datetime | None) -> None:
        """Call the function declared with `@handler.timer(name)` for this key once log time reaches `at`. Set again, it
        is moved; None takes it back."""
