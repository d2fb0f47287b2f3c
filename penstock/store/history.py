"""The last batches of a view or handler: when each was committed, and how far it had come. For those who ask what
became of an event. The table stands in the file that the ledger is in, and is written in the ledger's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock import files
from penstock.cursor import Positions, source_positions
from penstock.errors import Damaged

KEPT = 10_000
TABLE = "CREATE TABLE IF NOT EXISTS batches (batch_id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)"
_PRESENT = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'batches'"


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A committed batch: when; its end, as the ledger has it; how far the streams go that it fills; and the version
    that a view has since."""

    at_us: int
    end: str
    outputs: Positions = {}
    version: int = 0

    def reached(self, stream: str, partition: int) -> int:
        """The offset of the first event that it and the batches before it have not taken."""
        return source_positions(self.end).get(stream, {}).get(partition, 0)

    def is_past(self, stream: str, partition: int, offset: int) -> bool:
        return self.reached(stream, partition) > offset


class Found(msgspec.Struct, frozen=True):
    """The batch that had an event, and the one before it, if there was one."""

    done: Done
    before: Done | None


def add(connection: sqlite3.Connection, batch_id: int, done: Done) -> None:
    """Call inside the transaction that enters the batch in the ledger."""
    data = msgspec.msgpack.encode(done)
    connection.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (batch_id, _sum(batch_id, data), data))
    connection.execute("DELETE FROM batches WHERE batch_id <= ?", (batch_id - KEPT,))


def replace(connection: sqlite3.Connection, made: sqlite3.Connection, path: Path, *, version_max: int) -> None:
    """Put the batches of another file, `made`, in place of all that there are; its versions are those of another
    count, and at most `version_max` here. Call inside a transaction."""
    connection.execute("DELETE FROM batches")
    for batch_id, crc, data in made.execute("SELECT batch_id, crc, data FROM batches ORDER BY batch_id"):
        done = _decoded(batch_id, crc, data, path)
        add(connection, batch_id, msgspec.structs.replace(done, version=min(done.version, version_max)))


def _decoded(batch_id: int, crc: int, data: object, path: Path) -> Done:
    if not isinstance(data, bytes) or _sum(batch_id, data) != crc:
        raise Damaged(f"{path} is damaged: batch {batch_id} is not as written", file=str(path))
    return msgspec.msgpack.decode(data, type=Done)


def _sum(batch_id: int, data: bytes) -> int:
    return files.checksum(batch_id.to_bytes(8, "little", signed=True), data)


class History:
    """Reads a file's last batches, beside its writer. The file may not be there yet, and may be made anew. One thread
    at a time; each call takes some tens of microseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._seen: int | None = None

    def moved(self) -> bool:
        """Whether something was committed since the last call, or this is the first one."""
        connection = self._open()
        if connection is None:
            return False
        version = files.data_version(connection, self._path)
        moved, self._seen = version != self._seen, version
        return moved

    def latest(self) -> Done | None:
        """The last batch."""
        with self._reading() as last:
            return None if last is None else self._get(last[1])

    def find(self, stream: str, partition: int, offset: int) -> Found | None:
        """The first batch that came past an event; None if no batch did, or if that is no longer told."""
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
            return Found(self._get(low), self._get(low - 1) if low > 0 else None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection | None:
        """The file, opened again if another one has taken its place; None if there is none."""
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
        """One instant of the file: the ids of the first and the last batch in it, None if there are none."""
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
        found = self._connection.execute("SELECT crc, data FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
        crc, data = (0, None) if found is None else found
        return _decoded(batch_id, crc, data, self._path)
