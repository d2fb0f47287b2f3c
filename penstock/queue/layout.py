"""A stream's file: its tables, its records, and how it is made.

    head       the format mark, and the record `extent`, rewritten in every commit
    schemas    one row for each version of the events: their schema, and what `versions.py` has to say of it
    batches    one row for each stored batch; its key is the partition and the offset of its first row

Every row of ours carries a checksum over all its other columns, its key included, since SQLite does not checksum its
pages: a row that moved, or whose count changed, is as damaged as one whose data did.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock import files
from penstock.contracts import Position
from penstock.errors import Damaged, SyncFailed
from penstock.queue.versions import Version

KIND = "stream"
OFFSET_BITS = 48
OFFSET_MASK = (1 << OFFSET_BITS) - 1
_TABLES = (
    "CREATE TABLE schemas (version INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE batches (at INTEGER PRIMARY KEY, rows INTEGER NOT NULL, version INTEGER NOT NULL,"
    " ingest_us INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL)",
)
_SEALED = struct.Struct("<qqqq")
_VERSION = struct.Struct("<q")


class Stored(NamedTuple):
    """A row of `batches`: `rows` events from offset `first` of `partition` on, the newest taken in at `ingest_us`."""

    at: int
    rows: int
    version: int
    ingest_us: int
    crc: int
    data: Any

    @property
    def first(self) -> int:
        return self.at & OFFSET_MASK

    @property
    def end(self) -> int:
        return self.first + self.rows

    def intact(self) -> bool:
        """Whether this is what was written. A flipped type is possible too, so nothing is taken for granted."""
        numbers = self[:5]
        if not (all(type(each) is int for each in numbers) and isinstance(self.data, bytes) and self.rows > 0):
            return False
        return _seal(*numbers[:4], self.data) == self.crc


def key(partition: int, offset: int) -> int:
    """Batches of a partition stand together, in the order of their offsets."""
    return partition << OFFSET_BITS | offset


def position(at: int) -> Position:
    return Position(at >> OFFSET_BITS, at & OFFSET_MASK)


def stored(at: int, rows: int, version: int, ingest_us: int, data: Any) -> Stored:
    return Stored(at, rows, version, ingest_us, _seal(at, rows, version, ingest_us, data), data)


def _seal(at: int, rows: int, version: int, ingest_us: int, data: Any) -> int:
    return files.checksum(_SEALED.pack(at, rows, version, ingest_us), data)


class Extent(msgspec.Struct, array_like=True):
    """How far a stream goes: read, changed and rewritten as one value, so that it always fits the batches.

    `commits` counts the transactions of the file's life. `version` is the newest schema. `starts` and `nexts` hold the
    first kept and the next offset of each partition. `producers` holds, by producer and partition, the last sequence
    and the offset that its append began at. `ticks` counts the rows, of all ever appended, that are no events. `marks`
    holds the last mark of each source. `ids` counts the rows ever appended that have an id, -1 if nobody has counted.
    """

    commits: int
    version: int
    starts: list[int]
    nexts: list[int]
    producers: dict[str, dict[int, tuple[int, int]]]
    ticks: int = 0
    marks: dict[str, str] = {}
    ids: int = -1

    def grown(self, rows: Mapping[int, int], ticks: int = 0, ids: int = 0) -> Extent:
        """The extent after one more commit that adds so many rows to each partition, so many of them ticks, and so many
        with an id."""
        nexts = self.nexts.copy()
        for partition, count in rows.items():
            nexts[partition] += count
        ids = self.ids if self.ids < 0 else self.ids + ids
        return msgspec.structs.replace(self, commits=self.commits + 1, nexts=nexts, ticks=self.ticks + ticks, ids=ids)

    def remembering(self, producer: str, partition: int, sequence: int) -> Extent:
        """The same with the sequence of an append that begins at the present end of the partition."""
        theirs = {**self.producers.get(producer, {}), partition: (sequence, self.nexts[partition])}
        return msgspec.structs.replace(self, producers={**self.producers, producer: theirs})

    def marked(self, marks: Mapping[str, str]) -> Extent:
        """The same with other marks of some sources."""
        return msgspec.structs.replace(self, marks={**self.marks, **marks}) if marks else self


def load_extent(connection: sqlite3.Connection, path: Path) -> Extent:
    value = files.get_record(connection, path, "extent")
    try:
        return msgspec.convert(value, Extent)
    except msgspec.ValidationError as error:
        raise Damaged(f"{path}: the extent of the stream cannot be read: {error}", file=str(path)) from None


def save_extent(connection: sqlite3.Connection, extent: Extent) -> None:
    files.put_record(connection, "extent", extent)


def load_versions(connection: sqlite3.Connection, path: Path, newest: int) -> list[Version]:
    """All versions of the stream's events; the first is version 1."""
    with files.storage_errors(path):
        rows = connection.execute("SELECT version, crc, data FROM schemas ORDER BY version").fetchall()
    if [row[0] for row in rows] != list(range(1, newest + 1)):
        raise Damaged(f"{path}: schema versions are missing", file=str(path))
    for version, crc, data in rows:
        if not isinstance(data, bytes) or files.checksum(_VERSION.pack(version), data) != crc:
            raise Damaged(f"{path}: schema version {version} is damaged", file=str(path))
    try:
        return [Version.read(pa.ipc.read_schema(pa.py_buffer(data))) for _, _, data in rows]
    except (msgspec.MsgspecError, pa.ArrowException) as error:
        raise Damaged(f"{path}: a schema version is not as this Penstock writes it: {error}", file=str(path)) from None


def save_version(connection: sqlite3.Connection, version: int, made: Version) -> None:
    data = made.stored().serialize().to_pybytes()
    crc = files.checksum(_VERSION.pack(version), data)
    connection.execute("INSERT INTO schemas VALUES (?, ?, ?)", (version, crc, data))


def create(path: Path, first: Version, partitions: int) -> None:
    """Make an empty stream file, durable on return. It is there whole or not at all, whenever the process ends."""
    leftover = path.with_name(f"{path.name}-wal")
    if leftover.exists():
        raise Damaged(
            f"{path} is missing but {leftover.name} is there: put the file back, or remove both", file=str(path)
        )
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    connection = files.connect(temporary)
    try:
        _fill(connection, temporary, first, partitions)
    finally:
        connection.close()
    try:
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise SyncFailed(f"the disk did not take {path}: {error}") from error


def _fill(connection: sqlite3.Connection, path: Path, first: Version, partitions: int) -> None:
    with files.storage_errors(path):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that trim can give space back to the disk
        connection.execute("VACUUM")  # which is when the line above takes effect
    with files.transaction(connection, path):
        files.make_head(connection, path, KIND)
        for statement in _TABLES:
            connection.execute(statement)
        save_version(connection, 1, first)
        save_extent(connection, Extent(0, 1, [0] * partitions, [0] * partitions, {}, ids=0))
