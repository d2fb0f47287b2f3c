"""Transactions of one stream's file, with everything that must happen around each one."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock import files
from penstock.errors import DiskFull, StorageError, SyncFailed
from penstock.failpoints import reach
from penstock.queue import layout, tail
from penstock.queue.layout import Extent, Stored
from penstock.queue.reader import StreamReader

CHECKPOINT_BYTES = 8 * 1024 * 1024
"""About how much SQLite's write-ahead log takes before it is written back to the file."""
WAL_BYTES_KEPT = 64 * 1024 * 1024
"""A write-ahead log that grew past this, by one large transaction, is cut back."""
COMMIT_BYTES = 3 * 4096
"""Pages that a commit writes besides its data."""
_INSERT = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass
class Terms:
    """What all streams of a log share: the space to leave on the disk, the clock, and whether the disk failed.

    After a failed fsync nobody knows what is on the disk, so `failure` is final, for every stream.
    """

    disk_reserve_bytes: int
    clock: Callable[[], datetime]
    failure: SyncFailed | None = None

    def now_us(self) -> int:
        return to_us(self.clock())


class Committer:
    """The write connection of a stream's file and the extent that goes with it. Threads take turns."""

    def __init__(self, reader: StreamReader, terms: Terms) -> None:
        self.path = reader.path
        self.terms = terms
        self._reader = reader
        self._lock = threading.RLock()
        self._connection = files.connect(self.path)
        with files.storage_errors(self.path):
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")  # it would hide a failed fsync; ours does not
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        self._foreign_version = files.data_version(self._connection, self.path)
        self.extent = layout.load_extent(self._connection, self.path)
        self.surprises = 0
        self._in_doubt = False
        self._wal_bytes = CHECKPOINT_BYTES
        self._tail = tail.Tail(tail.path_of(self.path), reader.generation, self.extent.commits)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the file for one call. A call that was interrupted before is cleared up first: if its transaction had
        become durable after all, that is one of the `surprises`."""
        with self._lock:
            if self.terms.failure is not None:
                raise SyncFailed(f"the disk of {self.path} has failed before: {self.terms.failure}; restart to go on")
            if self._in_doubt:
                self._look_again()
            yield

    def _look_again(self) -> None:
        known, self.extent = self.extent.commits, layout.load_extent(self._connection, self.path)
        self._in_doubt = False
        if self.extent.commits != known:
            self.surprises += 1

    def require_space(self) -> None:
        """Refuse new events while the disk is all but full: trim, merge and others need room to end well."""
        free = files.free_bytes(self.path.parent)
        if free < self.terms.disk_reserve_bytes:
            raise DiskFull(
                f"{free} bytes are free on the disk of {self.path}, and {self.terms.disk_reserve_bytes} are kept in "
                "reserve; nothing was written",
                retry_after_s=5,
            )

    def store(self, batches: list[Stored], after: Extent) -> None:
        """Add batches and make `after` the extent, in one transaction. Durable on return, or not there at all."""
        self.transact(after, lambda connection: connection.executemany(_INSERT, batches))
        self._wal_bytes += COMMIT_BYTES + sum(len(batch.data) for batch in batches)
        if self._wal_bytes >= CHECKPOINT_BYTES:
            self._checkpoint()

    def replace(self, first: int, end: int, batches: Iterable[Stored], after: Extent) -> None:
        """The same, in place of the batches whose keys are in [first, end)."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM batches WHERE at >= ? AND at < ?", (first, end))
            connection.executemany(_INSERT, batches)

        self.transact(after, change)

    def transact(self, after: Extent, change: Callable[[sqlite3.Connection], object]) -> None:
        """One transaction, which makes `after` the extent. The caller has the turn."""
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
        self._reader.notify()

    @contextmanager
    def _failures_noted(self) -> Iterator[None]:
        try:
            with files.storage_errors(self.path):
                yield
        except SyncFailed as error:
            self.terms.failure = error
            raise

    def _require_sole_writer(self) -> None:
        """The extent in memory holds only while nobody else writes. Within a transaction nobody can start to."""
        if files.data_version(self._connection, self.path) != self._foreign_version:
            raise StorageError(f"another process has written to {self.path}: only one may", file=str(self.path))

    def _checkpoint(self) -> None:
        """Write the write-ahead log back. The commit before is durable without it, so a full disk is for the next."""
        with contextlib.suppress(DiskFull), self._failures_noted():
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._wal_bytes = 0

    def give_back(self, pages: int) -> None:
        """Give up to so many free pages back to the file system."""
        with self._failures_noted():
            self._connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        self._checkpoint()

    def close(self) -> None:
        """SQLite writes its write-ahead log back and removes it, if no reader is left."""
        with self._lock:
            self._tail.close()
            self._connection.close()
