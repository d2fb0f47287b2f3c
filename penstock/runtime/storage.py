"""The interface between the runtime and all durable data.

Each process of an app has one `Storage`. It provides the log, the views, the state of handlers, Spark's checkpoints and
the messages between processes. In `runtime`, only `runtime/embedded` deals with paths, file names or SQLite.
`runtime/opening.py` opens a storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from penstock.analyze.contracts import QueryCheckpoint
from penstock.app.fingerprints.stored import HandlerPrint, Prints, ViewPrint
from penstock.control import ControlChannel
from penstock.core.access import KeyStore
from penstock.core.contracts import BlockingLogReader, Clock, LedgerEntry, Log
from penstock.core.cursor import Positions
from penstock.core.errors import DeclarationError, PenstockError
from penstock.core.event_shape import EventShape, EventSpec
from penstock.core.shapes import Shape
from penstock.handlers.contracts import (
    Claims,
    HandlerBatch,
    HandlerLedgerEntry,
    OpenShard,
    ShardStore,
    StateReplacement,
)
from penstock.handlers.shard import Shard
from penstock.serve.webhooks.contracts import StoredWebhooks
from penstock.serve.webhooks.model import Hook
from penstock.store import BatchHistory, Rebuilt, StoredLiveView, StoredView, StoredViewReader, ViewSpec

NO_CLASSES: Mapping[str, EventSpec] = MappingProxyType({})


class LogCatalog(Protocol):
    """Facts about the streams of a log, other than their rows. Methods raise `NotFound` if the stream does not exist,
    unless their description says otherwise."""

    def has(self, stream: str) -> bool:
        """Return whether a stream with this name exists."""

    def events_appended(self, stream: str) -> int:
        """Return how many events the stream has ever accepted, not counting ticks."""

    def events_kept(self, stream: str) -> int:
        """Return the number of events currently stored. This is an estimate if events and ticks were trimmed."""

    def event_shape(self, stream: str) -> EventShape | None:
        """Return the shape of the newest events' class, or None if there is no class or no such stream."""

    def is_evolved(self, stream: str) -> bool:
        """Return whether kept events might be read differently from how they were stored; False if there is no such
        stream."""

    def event_problems(self, stream: str, spec: EventSpec) -> Sequence[str]:
        """Return the reasons why stored events cannot be read as a class, each with a fix. The result is empty if there
        is no such stream."""

    def field_origins(self, stream: str, spec: EventSpec) -> Mapping[str, str]:
        """Return, for a class, the original name of each field that has been renamed in this stream."""

    def schemas(self, stream: str) -> Sequence[pa.Schema]:
        """Return every schema of the stored events, oldest first. The result is empty if there is no such stream."""

    def size_bytes(self, stream: str) -> int:
        """Return the approximate size of a stream's events on disk, which retention compares with its limit."""


class StoredLogReader(BlockingLogReader, LogCatalog, Protocol):
    """The log of a storage, opened for reading."""


class StoredLog(Log, LogCatalog, Protocol):
    """The log of a storage, opened by the one process that writes to some of its streams."""


class Owner(msgspec.Struct, frozen=True):
    """The current or last app that uses a storage. Each owner has an epoch, one higher than the previous owner's;
    ledgers reject an older epoch."""

    app: str
    epoch: int
    pid: int
    format: int = 1


@dataclass(frozen=True)
class Ownership:
    """The right to write to a storage, under an epoch. It lasts until the owner, and all children that the owner passed
    it to, have exited for any reason. `inherit` contains the open file descriptors that the owner passes to its
    children for this purpose; it is empty if the storage needs none."""

    epoch: int
    inherit: tuple[int, ...] = ()


@dataclass(frozen=True)
class WorkingFolders:
    """Folders on this machine for files that no other machine needs and that can be lost: process logs and temporary
    files. They are paths because Spark's process and the supervisor's children write to them directly, regardless of
    the kind of storage."""

    logs: Path
    temporary: Path


class PreparedView(msgspec.Struct, frozen=True):
    """A rebuilt view that the engine has not adopted yet. `origin` is the log position where it begins, and `made_with`
    is the fingerprint of the code that computed it."""

    id: str
    origin: str
    made_with: ViewPrint


class NextView(Protocol):
    """A view that is being rebuilt while the old rows are served. It takes effect once `read` returns a value."""

    @property
    def checkpoint(self) -> QueryCheckpoint:
        """The checkpoint of its query."""

    def read(self) -> PreparedView | None:
        """Return the prepared view, or None if nothing is prepared. Raises `Damaged`."""

    def is_taken(self) -> bool:
        """Return whether the view already has the rebuilt rows, so that only the later steps remain."""

    def begin(self) -> None:
        """Delete the remains of an earlier rebuild, and begin a new one. Raises `StorageError` if the earlier rebuild
        is half adopted, because the engine must finish adopting it first."""

    def table(self, spec: ViewSpec, clock: Clock) -> StoredView:
        """Open the view's rows for writing."""

    def late_log(self, disk_reserve_bytes: int) -> StoredLog:
        """Open the log of the view's late events for writing."""

    def late_reader(self) -> StoredLogReader | None:
        """Open the log of the view's late events for reading. Return None if there is no such log."""

    def mark(self, prepared: PreparedView) -> None:
        """Make the rebuilt view durable, then make it take effect. Its files must be closed."""

    def remove(self) -> None:
        """Delete the rebuilt view. Files that remain after a crash have no effect."""


class PreparedHandler(msgspec.Struct, frozen=True):
    """State computed from the log by one version of the code, which the engine has not adopted yet. `origin` is the
    position where the state begins, and `made_with` is the `rebuild_print` of the code that computed it, or None if an
    earlier version of Penstock prepared it."""

    origin: str
    made_with: HandlerPrint | None = None


class NextHandler(Protocol):
    """The state of a handler that is being rebuilt. It takes effect once `read` returns a value."""

    def read(self) -> PreparedHandler | None:
        """Return the prepared state, or None if nothing is prepared. Raises `Damaged`."""

    def shards(self, count: int) -> Mapping[int, tuple[Shard, Positions]]:
        """Load the prepared shards, each with the log position after it. Raises `Damaged` if one is missing."""

    def rows(self) -> pa.Table | None:
        """Return the prepared rows of the handler's view, or None if the handler has no view."""

    def write(
        self, prepared: PreparedHandler, shards: Mapping[int, tuple[Shard, Positions]], rows: pa.Table | None
    ) -> None:
        """Replace the prepared state, durably. Raises `StorageError` if that state is half adopted."""

    def require_free(self) -> None:
        """Raise `StorageError` if the prepared state is half adopted, because the engine must finish adopting it
        first."""

    def take(self) -> None:
        """Record durably that the engine has begun to adopt the prepared state."""

    def is_taken(self) -> bool:
        """Return whether the engine has begun to adopt the prepared state. Until `remove`, only the code that prepared
        the state may run the handler, because the handler may already have that state or its rows."""

    def remove(self) -> None:
        """Delete the prepared state."""


class OpenHandler(Protocol):
    """A handler's ledger and view, opened by `Storage.open_handler` for their only writer."""

    @property
    def name(self) -> str:
        """The name of the handler."""

    @property
    def handled(self) -> HandlerLedgerEntry:
        """The ledger's contents, as last written by this writer."""

    @property
    def table(self) -> StoredView | None:
        """The view that the handler maintains, if any."""

    def note_inputs(self, inputs: dict[str, EventShape]) -> None:
        """Record the classes that the handler reads its events as, if they do not affect its state. Durable on return;
        after a crash, either all of them are recorded or none are."""

    def close(self) -> None:
        """Close the ledger, and the view if there is one."""


class Storage(Protocol):
    """All durable data of one app. Can be pickled. Keeps nothing open, so every process can have its own instance.

    Callers own the objects that they open, and must close them. Only the owner's processes open anything for writing,
    and each stream, view or handler is open for writing in only one process at a time. Any process may read at the same
    time.
    """

    @property
    def location(self) -> str:
        """The location of the storage, for use in messages and commands, and for `open_storage` in another process."""

    @property
    def local(self) -> WorkingFolders:
        """The folders on this machine for logs and temporary files."""

    @property
    def is_default(self) -> bool:
        """True if commands use this storage by default."""

    def exists(self) -> bool:
        """Return whether an app has ever written to this storage."""

    def create(self) -> None:
        """Durably create the missing parts of an empty storage. Raises `StorageError` if other users can write to
        it."""

    def own(self, app: str) -> Ownership:
        """Become the owner, with the next epoch. Creates the storage if it does not exist. Raises `AlreadyRunning` if
        an app is using the storage, or if it belongs to a different app."""

    def await_orphans(self, say: Callable[[str], None]) -> None:
        """Wait for the processes that a killed owner started, which end on their own. Blocks and prints a message;
        returns immediately if there are no such processes. Raises `AlreadyRunning` if they do not end."""

    def owner(self) -> Owner | None:
        """Return the app that is currently using the storage, or None if no app is."""

    def last_owner(self) -> Owner | None:
        """Return the app that is using the storage, or that used it last, or None if no app has ever used it."""

    def hold(self) -> AbstractContextManager[None]:
        """Prevent apps from using the storage for the duration of a block. Raises `AlreadyRunning` if an app is using
        it."""

    def control(self) -> ControlChannel:
        """Return the channel between the processes of the app."""

    # The log

    def log(self, classes: Mapping[str, EventSpec] = NO_CLASSES, *, disk_reserve_bytes: int) -> StoredLog:
        """Open the log for writing. `classes` maps stream names to the event classes that the streams are read with."""

    def log_reader(self, classes: Mapping[str, EventSpec] = NO_CLASSES) -> StoredLogReader:
        """Open the log for reading."""

    def log_opener(self, classes: Mapping[str, EventSpec] = NO_CLASSES) -> Callable[[], BlockingLogReader]:
        """Return a function that opens the log for reading in another process. It can be pickled."""

    # Views

    def view_table(self, spec: ViewSpec, clock: Clock) -> StoredView:
        """Open a view for its only writer."""

    def view_reader(self, spec: ViewSpec) -> StoredViewReader | None:
        """Open a view for reading. Return None if it does not exist yet."""

    def live_view(self, spec: ViewSpec, *, buffered_changes: int) -> StoredLiveView:
        """Return a view in memory, which follows its writer. The view need not exist yet."""

    def view_entry(self, view: str) -> LedgerEntry | None:
        """Return the last batch in a view's ledger, or None if the ledger has no batch."""

    def view_history(self, view: str) -> BatchHistory:
        """Return the history of a view's batches."""

    def rebuilt(self, view: str) -> Rebuilt | None:
        """Return the rebuild that a view's rows come from, or None if the view was never rebuilt."""

    def next_view(self, view: str) -> NextView:
        """Return the place where a view is rebuilt."""

    def adopt_view(self, spec: ViewSpec, prepared: PreparedView, *, epoch: int) -> Rebuilt:
        """Replace a view's rows with the prepared rows, once, in a single transaction. The view must not be open for
        writing. After a crash, either all rows have been replaced or none."""

    def adopt_checkpoint(self, view: str, prepared: PreparedView) -> None:
        """Durably replace a view's checkpoint with the prepared checkpoint. The view's query must not be running. After
        a crash the view may have no checkpoint; in that case, call this again to complete the replacement. Further
        calls have no effect. Raises `Damaged` if the prepared checkpoint belongs to a different rebuild."""

    # Handlers

    def handled(self, handler: str) -> HandlerLedgerEntry | None:
        """Return the contents of a handler's ledger, or None if there is no ledger. Takes about 0.3 ms."""

    def handler_history(self, handler: str) -> BatchHistory:
        """Return the history of a handler's batches."""

    def shard(self, handler: str, generation: int, number: int) -> ShardStore:
        """Return the state of a shard."""

    def shard_opener(self, handler: str) -> OpenShard:
        """Return a function that returns shards of a handler in another process. It can be pickled."""

    def claims(self, handler: str) -> Callable[[], Claims]:
        """Return a function that begins the claims of a new batch of a handler. It can be pickled."""

    def drop_generations(self, handler: str, kept: int) -> None:
        """Delete the state in all generations of a handler except one. The other generations were replaced or left
        incomplete by a crash."""

    def next_handler(self, handler: str) -> NextHandler:
        """Return the place where a handler's state is rebuilt."""

    def open_handler(
        self, handler: str, log: Log, *, count: int, origin: str, shape: Shape, table: StoredView | None = None
    ) -> OpenHandler:
        """Open a handler for its only writer; `table` is the view that it maintains. If the handler has never run,
        `count`, `origin` and `shape` are the number of its shards, the position where it begins, and the format of its
        state. Raises `DeclarationError` if it has run with a different number of shards."""

    def commit(self, handler: OpenHandler, batch: HandlerBatch) -> bool:
        """Commit a handler's batch as one recoverable operation: append the emitted events to the log, change the rows
        of the handler's view, and record the batch, with the versions of its shards, in the handler's ledger.

        Returns True once everything is durable. If the batch was committed before, nothing changes and False is
        returned. A batch that is out of sequence, has a different range, or comes from an older epoch raises
        `LedgerMismatch`, and nothing is written. After a crash or an error during the commit, either the batch has had
        no effect, or it must be committed again over the same range. That completes the batch without repeating
        anything; a different range raises `LedgerMismatch`. Events and rows may become visible before the ledger
        contains the batch, but the ledger never contains the batch before they are visible. Blocks for the disk.
        """

    def replace_state(self, handler: OpenHandler, replacement: StateReplacement) -> None:
        """Replace all state of a handler as one recoverable operation. It writes the new state durably as the next
        generation, next to the old state, replaces the rows of the handler's view, and switches the ledger to the new
        generation.

        Finished batches stay finished, and the next batch begins where the last one ended. While a batch is half done,
        raises `DeclarationError` and writes nothing, because the code that began the batch must complete it. After a
        crash or an error during the operation, either the new state or the old state is in effect. If it is the old
        state, the view may already have the new rows; in that case, the operation must be repeated to complete it.
        State that is not in effect is kept until `drop_generations` is called. Blocks for the disk.
        """

    # Spark checkpoints

    def checkpoint(self, query: str) -> QueryCheckpoint:
        """Return the checkpoint of a query."""

    def begin_queries(self) -> bool:
        """Return whether the checkpoints were durable and complete when the last engine ended. Also deletes the record
        that says so, because it no longer holds from now on."""

    def end_queries(self) -> None:
        """Make the checkpoints durable, and record that they are complete. All queries must have ended."""

    # Fingerprints, keys and webhooks

    def prints(self) -> Prints | None:
        """Return the stored fingerprints, or None if nothing is stored. Raises `Damaged`."""

    def write_prints(self, prints: Prints) -> None:
        """Durably replace the stored fingerprints."""

    def keys(self) -> KeyStore:
        """Return the API keys."""

    def ack_key(self) -> bytes:
        """Return the key that signs acknowledgements, and create it if it does not exist. Called only by the owner."""

    def open_webhooks(self, fatal: Callable[[PenstockError], None]) -> StoredWebhooks:
        """Open the registered webhooks for their only writer, which calls `fatal` if the disk fails. Blocks."""

    def registered_webhooks(self) -> Sequence[Hook]:
        """Return the registered webhooks. The result is empty if they cannot be read."""

    # Rebuilds and purges

    def rebuild_lock(self) -> AbstractContextManager[None]:
        """Hold the rebuild lock for the duration of a block. Raises `AlreadyRunning` if another process holds it."""

    def hold_back_retention(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Keep everything from these positions on while this process holds the rebuild lock. Raises `DiskFull` if that
        cannot be recorded."""

    def held_back(self, stream: str) -> Mapping[int, int]:
        """Return the lowest offset of each partition of a stream that a running rebuild has to read."""

    def stored(self) -> Mapping[str, int]:
        """Return how many bytes are stored for streams, views and handlers, by declaration name."""

    def stored_sort(self, name: str) -> str | None:
        """Return `handler` or `view` if a handler or view with this name has computed data, or None otherwise."""

    def purge(self, names: Sequence[str], removed: Callable[[str], Any]) -> None:
        """Delete all data stored for these names, and for the names in an interrupted purge, and call `removed` after
        each name. Raises `AlreadyRunning` while an app is running. After a crash, the next call completes the purge."""

    def interrupted_purge(self) -> Sequence[str]:
        """Return the names in an interrupted purge. The result is empty if no purge was interrupted."""


def require_app(storage: Storage, app: str) -> None:
    """Raise DeclarationError if a storage belongs to a different app, whose data must not be compared, used or
    deleted."""
    owner = storage.last_owner()
    if owner is not None and owner.app != app:
        raise DeclarationError(
            f"{storage.location} belongs to the app {owner.app!r}, not {app!r}; use a different --data"
        )
