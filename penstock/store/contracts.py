"""The interfaces between `runtime` and the storage of views: small Protocols with docstrings that state their
guarantees.

They do not mention paths or files. `ViewTable`, `ViewReader`, `InMemoryView` and `History` implement them with one
SQLite file per view. `tests/contracts/views.py` contains the tests that every implementation passes.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from penstock.core.contracts import LedgerEntry, LiveView, Sink
from penstock.store.history import Done, FoundBatch
from penstock.store.keyed import KeyedTable, RowChanges
from penstock.store.reader import ChangeBatch, ServedTable


class StoredView(Sink, Protocol):
    """A view's rows, changes and ledger, open for a single writer.

    Each method that writes runs one transaction, which is durable on return. After a crash, or an error such as
    `DiskFull`, either the whole transaction has taken effect or none of it has. If another process wrote to the view
    while a writer was paused, the writer's methods raise `LedgerMismatch` and write nothing. Methods can be called from
    any thread. They run one at a time, and block during disk access.

    Each transaction that changes served rows is one change, with the next version. A transaction that does not change
    any served row has no version. The newest changes are kept, up to the limits in the view's spec. The last change is
    always kept.
    """

    @property
    def generation(self) -> int:
        """A number that changes when readers must start over with a snapshot."""

    @property
    def version(self) -> int:
        """The version of the served rows; 0 before the first change."""

    @property
    def size(self) -> int:
        """The number of stored rows. A ranked view serves only the top rows."""

    def describe(self, schema: pa.Schema) -> None:
        """Store the types of the view's columns, which readers and filters need. Rows that are already stored do not
        change."""

    def served(self, rows: pa.Table) -> pa.Table:
        """Return the view's served rows. `rows` contains all rows, and must be the rows that were assigned last."""

    def keyed(self, rows: pa.Table) -> KeyedTable:
        """Return the view's `rows` with the position of each key."""

    def replace(self, rows: pa.Table) -> None:
        """Replace all rows of the view, as one change. The ledger is not changed."""

    def assign(self, rows: pa.Table, entry: LedgerEntry) -> RowChanges:
        """Replace all rows of a derived view. Writes the difference as one change, together with the ledger entry, and
        returns the difference.

        Unchanged rows are not written. Raises `ViewError` if two rows have the same key, and `LedgerMismatch` if the
        entry has an older epoch. In both cases, nothing is written.
        """

    def amend(self, rows: pa.Table, change: RowChanges, entry: LedgerEntry) -> RowChanges:
        """Apply a change to a derived view, with the same result as `assign`.

        Each row of the view must come from one input row with the same key. `change` is the change to the input rows,
        and `rows` is the output for the rows in `change`.
        """

    def advance(self, entry: LedgerEntry) -> None:
        """Record that a derived view is up to date with its inputs, which have advanced without changing any rows."""

    def expire(self) -> int:
        """Delete the view's rows older than `keep`, up to a limit per call, and return how many rows were deleted.
        Writes nothing if there are no such rows."""

    def close(self) -> None:
        """Close the view. Called once, last."""


class StoredViewReader(Protocol):
    """A view opened for reading, in any process, while its writer runs. Used by one thread at a time.

    Each call sees the view at one instant, between two of the writer's transactions. Raises `Damaged` if stored bytes
    differ from what was written. Damaged rows are never returned.
    """

    def replaced(self) -> bool:
        """Return whether the view has been recreated since this reader was opened. If so, the reader still sees only
        the old view."""

    def moved(self) -> bool:
        """Return whether anything has been committed to the view since the last call; True on the first call. Takes
        about ten microseconds."""

    def columns(self) -> pa.Schema | None:
        """Return the types of the view's columns, or None if the view's columns were never described."""

    def generation(self) -> int:
        """Return the view's current generation."""

    def table(self, before: ServedTable | None = None) -> ServedTable | None:
        """Return the view's served rows as columns, exactly as they were written, with the ledger entry at that
        instant.

        Returns None if the view's columns were never described. If `before` is an earlier result, the new result also
        contains the change since then, provided that the changes in between are still kept. Rows that were written
        with other columns are read by the names of their columns; a column that a row does not have is null. Raises
        `ViewError` if rows do not match the columns, because they were written by a different query.
        """

    def steps(self, generation: int, after: int, *, limit: int, bytes_max: int) -> ChangeBatch:
        """Return the view's changes after a version, in order: at most `limit` changes and about `bytes_max` bytes.

        Raises `Gap` if the first of them is no longer kept, or if the view has a different generation.
        """

    def close(self) -> None:
        """Close the view. Called once, last."""


class StoredLiveView(LiveView, Protocol):
    """A `LiveView` that follows the writer of a stored view. Belongs to the event loop that runs `run`.

    The view does not have to exist yet: until it does, it is empty, at version 0 of generation 0. If it cannot be read
    or is damaged, `error` contains the reason, the rows stay at the last good version, and reading is retried from time
    to time.
    """

    @property
    def error(self) -> str | None:
        """The reason why the view cannot be followed, in one sentence, or None if it can."""

    @property
    def size(self) -> int:
        """The number of rows served."""

    def row(self, key: str) -> bytes | None:
        """Return the view's row with a key, or None if it is not served. A key is a JSON object of the key columns."""

    async def load(self) -> None:
        """Load the view's stored rows. Await this before serving, so that resumed readers do not see an empty view."""

    async def run(self) -> None:
        """Follow the view's writer until cancelled."""

    def close(self) -> None:
        """Close the view. `run` does this when it ends."""


class BatchHistory(Protocol):
    """A view's or handler's last batches, which can be read while the writer runs. Used by one thread at a time.

    Each call takes tens of microseconds. A batch is in the history as soon as it is in the ledger. The history can be
    empty.
    """

    def moved(self) -> bool:
        """Return whether anything has been committed since the last call; on the first call, whether there is a
        history."""

    async def wait(self) -> None:
        """Wait until something might have been committed since the last call to `moved`. Does not block a thread."""

    def latest(self) -> Done | None:
        """Return the last batch, or None if the history is empty."""

    def find(self, stream: str, partition: int, offset: int) -> FoundBatch | None:
        """Return the first batch that read past an event, or None if no batch has done so, or if the batch is no longer
        recorded."""

    def close(self) -> None:
        """Close the history. The next call opens it again."""
