"""A view's or handler's last batches, with the time and end of each batch. They show what happened to an event.

The table is in the ledger's file, and is written in the same transaction as the ledger.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.core import files
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import Damaged
from penstock.core.wakeups import AsyncWatch, file_watch

KEPT = 10_000
TABLE = "CREATE TABLE IF NOT EXISTS batches (batch_id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)"
_PRESENT = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'batches'"


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A committed batch of a view or handler: its time, its end, the end offsets of the streams that it writes, and the
    view's version."""

    at_us: int
    end: str
    outputs: Positions = {}
    version: int = 0

    def end_of(self, stream: str, partition: int) -> int:
        """Return the offset of the first event that has not been read by this batch or an earlier batch."""
        return source_positions(self.end).get(stream, {}).get(partition, 0)

    def is_past(self, stream: str, partition: int, offset: int) -> bool:
        return self.end_of(stream, partition) > offset


class FoundBatch(msgspec.Struct, frozen=True):
    """The view's or handler's batch that contained an event, and the previous batch, if there was one."""

    done: Done
    before: Done | None


def add(connection: sqlite3.Connection, batch_id: int, done: Done) -> None:
    """Record a view's or handler's batch in its history. Call inside the transaction that adds it to the ledger."""
    data = msgspec.msgpack.encode(done)
    connection.execute(
        "INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (batch_id, _history_checksum(batch_id, data), data)
    )
    connection.execute("DELETE FROM batches WHERE batch_id <= ?", (batch_id - KEPT,))


def replace(connection: sqlite3.Connection, source: sqlite3.Connection, path: Path, *, version_max: int) -> None:
    """Replace all batches in a history with the batches of another file, `source`. Call inside a transaction.

    The versions in `source` were counted separately, so they are limited to `version_max` here.
    """
    connection.execute("DELETE FROM batches")
    for batch_id, crc, data in source.execute("SELECT batch_id, crc, data FROM batches ORDER BY batch_id"):
        done = _decoded_batch(batch_id, crc, data, path)
        add(connection, batch_id, msgspec.structs.replace(done, version=min(done.version, version_max)))


def _decoded_batch(batch_id: int, crc: int, data: object, path: Path) -> Done:
    if not isinstance(data, bytes) or _history_checksum(batch_id, data) != crc:
        raise Damaged(f"{path} is damaged: batch {batch_id} is not what was written", file=str(path))
    return msgspec.msgpack.decode(data, type=Done)


def _history_checksum(batch_id: int, data: bytes) -> int:
    return files.checksum(batch_id.to_bytes(8, "little", signed=True), data)


class History:
    """Reads the last batches in a file while its writer runs. Used by one thread at a time.

    Each call takes tens of microseconds. The file might not exist yet, and can be recreated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._seen: int | None = None

    def moved(self) -> bool:
        """Return whether anything has been committed to the history since the last call; on the first call, whether
        there is a file."""
        version = self._version()
        if version in (None, self._seen):
            return False
        self._seen = version
        return True

    def _version(self) -> int | None:
        connection = self._open()
        return None if connection is None else files.data_version(connection, self._path)

    async def wait(self) -> None:
        """Wait until something might have been committed to the history since the last call to `moved`."""
        watch = AsyncWatch(file_watch(self._path))
        try:
            watch.arm()
            if self._version() in (None, self._seen):
                await watch.wait(math.inf)
        finally:
            watch.close()

    def latest(self) -> Done | None:
        """Return the history's last batch, or None if the history is empty."""
        with self._reading() as last:
            return None if last is None else self._get(last[1])

    def find(self, stream: str, partition: int, offset: int) -> FoundBatch | None:
        """Return the history's first batch that read past an event, or None if no batch has done so, or if the batch is
        no longer recorded."""
        with self._reading() as ends:
            if ends is None or not self._get(ends[1]).is_past(stream, partition, offset):
                return None
            low, high = ends
            if low > 0 and self._get(low).is_past(stream, partition, offset):
                return None
            while low < high:
                middle = (low + high) // 2
                if self._get(middle).is_past(stream, partition, offset):
                    high = middle
                else:
                    low = middle + 1
            return FoundBatch(self._get(low), self._get(low - 1) if low > 0 else None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection | None:
        """Return the connection to the history's file, reopened if the file was replaced, or None if there is no
        file."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return self._connection
        if self._connection is None or inode != self._inode:
            self.close()
            self._connection, self._inode, self._seen = files.connect(self._path, read_only=True), inode, None
        return self._connection

    @contextmanager
    def _reading(self) -> Iterator[tuple[int, int] | None]:
        """Read the history's file at one instant. Yields the ids of the first and last batch, or None if there are no
        batches."""
        connection = self._open()
        if connection is None:
            yield None
            return
        with files.reading(connection, self._path):
            if connection.execute(_PRESENT).fetchone() is None:
                yield None
                return
            first, last = connection.execute("SELECT min(batch_id), max(batch_id) FROM batches").fetchone()
            yield None if last is None else (first, last)

    def _get(self, batch_id: int) -> Done:
        assert self._connection is not None
        row = self._connection.execute("SELECT crc, data FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
        crc, data = (0, None) if row is None else row
        return _decoded_batch(batch_id, crc, data, self._path)
