"""Transactions on a stream's file, with everything that must happen before and after each transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.core import files
from penstock.core.errors import DiskFull, StorageError, SyncFailed
from penstock.core.failpoints import reach
from penstock.queue import layout, tail
from penstock.queue.gaps import Offsets
from penstock.queue.layout import Extent, Stored
from penstock.queue.reader import StreamFileReader

CHECKPOINT_BYTES = 8 * 1024 * 1024
"""Approximate size of SQLite's write-ahead log at which it is written back to the file."""
WAL_BYTES_KEPT = 64 * 1024 * 1024
"""Size above which the write-ahead log is truncated after a large transaction."""
COMMIT_BYTES = 3 * 4096
"""Size of the pages that a commit writes in addition to its data."""
_INSERT = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime) -> int:
    """Convert a time to microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass
class Terms:
    """State shared by all streams in a log: the disk space to leave free, the clock, the function that assigns offsets,
    and whether the disk has failed.

    After a failed fsync, the contents of the disk are unknown, so `failure` is final for every stream.
    """

    disk_reserve_bytes: int
    clock: Callable[[], datetime]
    offsets: Offsets
    failure: SyncFailed | None = None

    def now_us(self) -> int:
        return to_us(self.clock())


class Committer:
    """The write connection to a stream's file, and the stream's extent. Only one thread uses it at a time."""

    def __init__(self, reader: StreamFileReader, terms: Terms) -> None:
        self.path = reader.path
        self.terms = terms
        self._lock = threading.RLock()
        self._connection = files.connect(self.path)
        with files.storage_errors(self.path):
            # SQLite's automatic checkpoints would hide a failed fsync
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        self._foreign_version = files.data_version(self._connection, self.path)
        self.extent = layout.load_extent(self._connection, self.path)
        self.surprises = 0
        self._in_doubt = False
        self._wal_bytes = CHECKPOINT_BYTES
        self._tail = tail.TailMark(tail.path_of(self.path), reader.generation, self.extent.commits)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Reserve the stream's file for one call. If an earlier call was interrupted, first determine its outcome. If
        its transaction turns out to be durable, increment `surprises`.
        """
        with self._lock:
            if self.terms.failure is not None:
                raise SyncFailed(
                    f"the disk that holds {self.path} has failed: {self.terms.failure}; restart to continue"
                )
            if self._in_doubt:
                self._look_again()
            yield

    def _look_again(self) -> None:
        known, self.extent = self.extent.commits, layout.load_extent(self._connection, self.path)
        self._in_doubt = False
        if self.extent.commits != known:
            self.surprises += 1

    def require_space(self) -> None:
        """Raise DiskFull if the disk is almost full, because trimming, merging and other tasks need room to finish."""
        free = files.free_bytes(self.path.parent)
        if free < self.terms.disk_reserve_bytes:
            raise DiskFull(
                f"only {free} bytes are free on the disk that holds {self.path}, and "
                f"{self.terms.disk_reserve_bytes} are kept in reserve; nothing was written",
                retry_after_s=5,
            )

    def store(self, batches: list[Stored], after: Extent) -> None:
        """Add batches to the stream's file and set its extent to `after`, in one transaction. Durable on return, or not
        applied at all."""
        self.transact(after, lambda connection: connection.executemany(_INSERT, batches))
        self._wal_bytes += COMMIT_BYTES + sum(len(batch.data) for batch in batches)
        if self._wal_bytes >= CHECKPOINT_BYTES:
            self._checkpoint()

    def replace(self, first: int, end: int, batches: Iterable[Stored], after: Extent) -> None:
        """Replace the stream's batches with keys in [first, end), and set the extent to `after`, in one transaction."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM batches WHERE at >= ? AND at < ?", (first, end))
            connection.executemany(_INSERT, batches)

        self.transact(after, change)

    def transact(self, after: Extent, change: Callable[[sqlite3.Connection], object]) -> None:
        """Run one transaction on the stream's file that sets its extent to `after`. Must be called within `turn`."""
        try:
            with self._failures_noted(), files.transaction(self._connection, self.path) as connection:
                self._require_sole_writer()
                change(connection)
                layout.save_extent(connection, after)
                reach("queue.before_commit")
            reach("queue.after_commit")
        except BaseException:
            self._in_doubt = True
            raise
        self.extent = after
        self._tail.put(after.commits)

    @contextmanager
    def _failures_noted(self) -> Iterator[None]:
        try:
            with files.storage_errors(self.path):
                yield
        except SyncFailed as error:
            self.terms.failure = error
            raise

    def _require_sole_writer(self) -> None:
        """Raise StorageError if another process has written to the stream's file, because the extent in memory would be
        wrong.

        Called within a transaction, when no other process can write.
        """
        if files.data_version(self._connection, self.path) != self._foreign_version:
            raise StorageError(
                f"another process has written to {self.path}: only one process can write to it", file=str(self.path)
            )

    def _checkpoint(self) -> None:
        """Write the write-ahead log back to the stream's file.

        The last commit is already durable, so a full disk affects only the next commit.
        """
        with contextlib.suppress(DiskFull), self._failures_noted():
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._wal_bytes = 0

    def give_back(self, pages: int) -> None:
        """Return up to `pages` free pages of the stream's file to the file system."""
        with self._failures_noted():
            self._connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        self._checkpoint()

    def close(self) -> None:
        """Close the stream's file. SQLite writes its write-ahead log back and removes it if no readers are left."""
        with self._lock:
            self._tail.close()
            self._connection.close()
