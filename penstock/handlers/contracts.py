"""The interfaces between handlers and the storage of their state and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from penstock.core.contracts import LedgerEntry
from penstock.core.cursor import Positions
from penstock.core.event_shape import EventShape
from penstock.core.shapes import Shape
from penstock.handlers.shard import HASH_BYTES, Shard, ShardChanges

if TYPE_CHECKING:
    import pyarrow as pa


class HandledShard(msgspec.Struct, frozen=True):
    """The state of a handler shard as of a committed batch: `version` is the batch that last changed it."""

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


class HandlerLedgerEntry(msgspec.Struct, frozen=True):
    """The contents of a handler's ledger.

    `origin` is the position where the handler's first batch began, and `count` is the number of shards; `shards`
    contains only shards with state. `shape` is the format of the state. `generation` names the location of the state,
    and increases when all state is replaced at once. `inputs` maps each stream to the shape of the class with which the
    events since `origin` were read; it is None in older ledgers. `padded` means that the Decimals in these events were
    padded to the full scale of their column, as in older ledgers. `intended` is the end of the batch after `entry`, set
    once that batch has begun to have an effect: from then on, the batch must cover exactly that range.
    """

    origin: str
    count: int
    shape: Shape
    entry: LedgerEntry | None = None
    shards: dict[int, HandledShard] = {}
    failed: int = 0
    emitted: int = 0
    intended: str | None = None
    generation: int = 0
    inputs: dict[str, EventShape] | None = None
    padded: bool = True

    @property
    def next_id(self) -> int:
        return 0 if self.entry is None else self.entry.batch_id + 1

    @property
    def end(self) -> str:
        """The position where the handler's next batch begins."""
        return self.origin if self.entry is None else self.entry.end


class StreamOutput(NamedTuple):
    """The events that a batch emits to one stream: for each partition, record batches that are identical whenever the
    batch runs again. They can be read only once, while they are appended."""

    stream: str
    partitions: Iterable[tuple[int, Iterable[pa.RecordBatch]]]


class ChangedRows(NamedTuple):
    """The last row for each key that a batch changes in the handler's view, and the keys of the rows that the batch
    deletes."""

    upserts: pa.Table
    deletes: pa.Table


@dataclass(frozen=True)
class HandlerBatch:
    """Everything that one batch of a handler makes durable.

    `entry` identifies the batch and becomes the ledger entry. `shards` contains the versions of the shards that the
    batch changed; their deltas are already durable (`ShardStore.write_delta`) and take effect with this commit. `rows`
    is None for a handler without a view.
    """

    entry: LedgerEntry
    shards: Mapping[int, HandledShard]
    emitted: Sequence[StreamOutput]
    failed: StreamOutput
    rows: ChangedRows | None = None


@dataclass(frozen=True)
class StateReplacement:
    """New state for a handler, which replaces all of its current state.

    `shards` contains the state of each shard; a shard without records is empty. `shape` is the format of the state,
    `origin` the log position where it begins, and `inputs` the shapes of the event classes with which events are read
    from there, by stream. With `is_origin`, the state cannot be recomputed from the log, so it is kept permanently.
    `rows` contains all rows of the handler's view; None keeps the current rows.
    """

    shape: Shape
    shards: Mapping[int, Shard]
    origin: str
    inputs: dict[str, EventShape]
    is_origin: bool = False
    rows: pa.Table | None = None


class ShardStore(Protocol):
    """The durable state of one handler shard. Only one process writes it at a time."""

    def write_delta(self, version: int, base: int, changes: ShardChanges, digest: int) -> int:
        """Make durable the changes that a batch makes to version `base` of a shard, and return their size in bytes. The
        delta takes effect once the ledger contains `version`; until then it can be rewritten."""

    def write_snapshot(self, version: int, shard: Shard, start: Positions) -> int:
        """Write a full snapshot of a shard at a committed version; it is durable on return. Returns the size in bytes.
        `start` is the log position after this version, for the streams and partitions that the shard reads."""

    def write_origin(self, version: int, shard: Shard, start: Positions) -> int:
        """Write the state that a handler begins with, as a snapshot that is never deleted; it is durable on return.
        Returns the size in bytes."""

    def origin(self) -> Shard:
        """Return the handler's shard as it was when the handler began: empty, unless it was migrated from an earlier
        class."""

    def snapshots(self, version: int) -> Iterator[tuple[Shard, Positions]]:
        """Yield the shard's snapshots up to `version`, newest first, each with the log position after it."""

    def snapshot_is_due(self, version: int) -> bool:
        """Return whether a snapshot of the shard at this version would save more than it costs."""

    def drop_before(self, version: int) -> None:
        """Delete the shard's files that a snapshot at `version` makes unnecessary."""

    def catch_up(self, shard: Shard, held: int, version: int) -> int | None:
        """Bring a shard from version `held` to a later `version`, and return the number of deltas applied. Changes
        nothing and returns None if the deltas do not lead to that version."""

    def load(self, version: int) -> Shard:
        """Load the handler's shard at a version; for `NO_VERSION`, return an empty shard. Raises `Damaged` if the
        file's contents differ from the data that was written."""

    def append_outbox(self, version: int, payloads: Sequence[bytes], *, begin: bool) -> list[tuple[int, int]]:
        """Append payloads to the shard's outbox of a batch whose output is too large to go through Spark, and return
        the start and size of each payload. With `begin`, the payloads replace anything left by an earlier attempt. The
        outbox need not be durable."""

    def read_outbox(self, version: int) -> pa.Buffer:
        """Return the contents of a batch's outbox. Pages are loaded on access."""

    def drop_outbox(self, version: int) -> None:
        """Delete the outbox of a finished batch. Buffers returned by `read_outbox` stay readable."""


OpenShard = Callable[[int, int], ShardStore]
"""Opens a shard of a handler, by generation and number. Can be pickled: Spark sends it to its workers."""


class Claims(Protocol):
    """The shards of one planned batch that tasks have claimed. Can be pickled."""

    def take(self, task: int, shards: Sequence[int], holds: Callable[[int], bool]) -> int:
        """Claim a shard for a task, preferably a shard that its worker `holds` in memory. Each of `len(shards)` tasks
        gets a different shard; a task that is run again gets the same shard as before."""
