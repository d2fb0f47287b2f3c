"""A stream's file: its tables, its records, and its creation.

    head       the format mark, and the record `extent`, which is rewritten in every commit
    schemas    one row for each version of the events: their schema, and the data that `versions.py` adds
    batches    one row for each stored batch; its key is the partition and the offset of its first row. A row without
               data is a gap: offsets that no event uses

Every row has a checksum over all its other columns, including its key, because SQLite does not checksum its pages. A
wrong key or row count is therefore detected in the same way as wrong data.
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

from penstock.core import files
from penstock.core.contracts import AppendPosition
from penstock.core.errors import Damaged, SyncFailed
from penstock.queue.versions import EventVersion

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
    """A row in `batches`: `rows` events, starting at offset `first`. The newest event was ingested at `ingest_us`."""

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

    @property
    def is_gap(self) -> bool:
        return not self.data

    def intact(self) -> bool:
        """Return whether the stored batch is unchanged since it was written. Types are also checked, because damage can
        change them."""
        numbers = self[:5]
        if not (all(type(number) is int for number in numbers) and isinstance(self.data, bytes) and self.rows > 0):
            return False
        return _batch_checksum(*numbers[:4], self.data) == self.crc


def key(partition: int, offset: int) -> int:
    """Return a stored batch's key. The batches of a partition are adjacent and sorted by offset."""
    return partition << OFFSET_BITS | offset


def position(at: int) -> AppendPosition:
    return AppendPosition(at >> OFFSET_BITS, at & OFFSET_MASK)


def stored(at: int, rows: int, version: int, ingest_us: int, data: Any) -> Stored:
    return Stored(at, rows, version, ingest_us, _batch_checksum(at, rows, version, ingest_us, data), data)


def gap(at: int, length: int, version: int, ingest_us: int) -> Stored:
    return stored(at, length, version, ingest_us, b"")


def _batch_checksum(at: int, rows: int, version: int, ingest_us: int, data: Any) -> int:
    return files.checksum(_SEALED.pack(at, rows, version, ingest_us), data)


class Extent(msgspec.Struct, array_like=True):
    """A stream's extent. It is read, changed and written as a single value, so it always matches the batches.

    `commits` counts the transactions since the file was created. `version` is the newest schema. `starts` and `nexts`
    contain the first kept and the next offset of each partition. `producers` contains, by producer and partition, the
    last sequence number and the offset at which its append began. `marks` contains the last mark of each source.
    `ticks` counts all ticks ever appended, and `ids` all rows with an id; `ids` is -1 if that number is unknown. `gaps`
    counts all offsets that were ever skipped.
    """

    commits: int
    version: int
    starts: list[int]
    nexts: list[int]
    producers: dict[str, dict[int, tuple[int, int]]]
    ticks: int = 0
    marks: dict[str, str] = {}
    ids: int = -1
    gaps: int = 0

    def grown(self, ends: Mapping[int, int], ticks: int = 0, ids: int = 0, gaps: int = 0) -> Extent:
        """Return the stream's extent after another commit, with new ends for some partitions and increased counts."""
        nexts = [ends.get(partition, known) for partition, known in enumerate(self.nexts)]
        return msgspec.structs.replace(
            self,
            commits=self.commits + 1,
            nexts=nexts,
            ticks=self.ticks + ticks,
            ids=self.ids if self.ids < 0 else self.ids + ids,
            gaps=self.gaps + gaps,
        )

    def events(self) -> int:
        """Return the number of events ever appended to the stream."""
        return sum(self.nexts) - self.gaps - self.ticks

    def remembering(self, producer: str, partition: int, sequence: int, offset: int) -> Extent:
        """Return the extent with the sequence number of an append to a partition, and the offset of its first row."""
        theirs = {**self.producers.get(producer, {}), partition: (sequence, offset)}
        return msgspec.structs.replace(self, producers={**self.producers, producer: theirs})

    def marked(self, marks: Mapping[str, str]) -> Extent:
        """Return the extent with new marks of the stream's sources."""
        return msgspec.structs.replace(self, marks={**self.marks, **marks}) if marks else self


def load_extent(connection: sqlite3.Connection, path: Path) -> Extent:
    value = files.get_record(connection, path, "extent")
    try:
        return msgspec.convert(value, Extent)
    except msgspec.ValidationError as error:
        raise Damaged(f"{path}: the stream's extent cannot be read: {error}", file=str(path)) from None


def save_extent(connection: sqlite3.Connection, extent: Extent) -> None:
    files.put_record(connection, "extent", extent)


def load_versions(connection: sqlite3.Connection, path: Path, newest: int) -> list[EventVersion]:
    """Load all versions of the stream's events; the first is version 1."""
    with files.storage_errors(path):
        rows = connection.execute("SELECT version, crc, data FROM schemas ORDER BY version").fetchall()
    if [row[0] for row in rows] != list(range(1, newest + 1)):
        raise Damaged(f"{path}: schema versions are missing", file=str(path))
    for version, crc, data in rows:
        if not isinstance(data, bytes) or files.checksum(_VERSION.pack(version), data) != crc:
            raise Damaged(f"{path}: schema version {version} is damaged", file=str(path))
    try:
        return [EventVersion.read(pa.ipc.read_schema(pa.py_buffer(data))) for _, _, data in rows]
    except (msgspec.MsgspecError, pa.ArrowException) as error:
        raise Damaged(
            f"{path}: this version of Penstock cannot read a schema version: {error}", file=str(path)
        ) from None


def save_version(connection: sqlite3.Connection, version: int, event_version: EventVersion) -> None:
    data = event_version.stored().serialize().to_pybytes()
    crc = files.checksum(_VERSION.pack(version), data)
    connection.execute("INSERT INTO schemas VALUES (?, ?, ?)", (version, crc, data))


def create(path: Path, first: EventVersion, partitions: int) -> None:
    """Create an empty stream file, durable on return. After a crash, the file either is complete or does not exist."""
    leftover = path.with_name(f"{path.name}-wal")
    if leftover.exists():
        raise Damaged(
            f"{path} is missing but {leftover.name} exists: either put the file back, or remove the other one too",
            file=str(path),
        )
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    connection = files.connect(temporary)
    try:
        _create_stream_tables(connection, temporary, first, partitions)
    finally:
        connection.close()
    try:
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise SyncFailed(f"{path} could not be written to disk: {error}") from error


def _create_stream_tables(connection: sqlite3.Connection, path: Path, first: EventVersion, partitions: int) -> None:
    with files.storage_errors(path):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that trim can return space to the disk
        connection.execute("VACUUM")  # applies the line above
    with files.transaction(connection, path):
        files.make_head(connection, path, KIND)
        for statement in _TABLES:
            connection.execute(statement)
        save_version(connection, 1, first)
        save_extent(connection, Extent(0, 1, [0] * partitions, [0] * partitions, {}, ids=0))
