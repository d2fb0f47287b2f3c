"""Reads of one stream's file, by any thread of any process, while another process writes it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock import files
from penstock.errors import BadCursor, Damaged
from penstock.event_shape import EventSpec
from penstock.queue import codec, layout, tail
from penstock.queue.layout import Extent, Stored
from penstock.queue.pool import Pool
from penstock.queue.upcast import Upcaster
from penstock.queue.versions import Version, is_current, next_version

PIECE_BATCHES = 1024
PIECE_ROWS = 65_536
PIECE_BYTES = 4 * 1024 * 1024
"""What one read transaction takes at most (and at least one batch), so that none is long: an open one keeps SQLite's
write-ahead log from being reused."""
PAGE_BYTES = 4096
POLL_MIN_S, POLL_MAX_S, POLL_GROWTH = 0.002, 0.05, 1.2
"""A waiting reader looks this often for commits of another process: the second is reached after some 200 ms of
silence, and costs less than a hundredth of a core."""

_FROM = """SELECT at, rows, version, ingest_us, crc, data FROM batches
WHERE at >= coalesce((SELECT at FROM batches WHERE at BETWEEN ? AND ? ORDER BY at DESC LIMIT 1), ?) AND at < ?
ORDER BY at"""
_HEADERS = """SELECT at, rows, version, ingest_us, length(data) FROM batches
WHERE at >= ? AND at < ? ORDER BY at LIMIT ?"""
_EDGES = """SELECT at, rows FROM (SELECT at, rows FROM batches WHERE at >= ?1 AND at < ?2 ORDER BY at LIMIT 1)
UNION ALL SELECT at, rows FROM (SELECT at, rows FROM batches WHERE at >= ?1 AND at < ?2 ORDER BY at DESC LIMIT 1)"""


class Header(NamedTuple):
    """A stored batch without its data. Not verified by a checksum: good for planning, not for reading."""

    at: int
    rows: int
    version: int
    ingest_us: int
    bytes: int

    @property
    def partition(self) -> int:
        return self.at >> layout.OFFSET_BITS

    @property
    def first(self) -> int:
        return self.at & layout.OFFSET_MASK

    @property
    def end(self) -> int:
        return self.first + self.rows


class StreamReader:
    """One stream's file, opened and verified. Never changes the file, damaged or not."""

    def __init__(self, path: Path, spec: EventSpec | None = None) -> None:
        """`spec` is that of the class to read events as; without it, they are read as the newest that is stored."""
        self.path = path
        self._spec = spec
        self._pool = Pool(path)
        self._versions: list[Version] = []
        self._upcaster: Upcaster | None = None
        self._changed = threading.Condition()
        self._changes = 0
        self._closed = False
        try:
            self.generation = self._verify()
        except BaseException:
            self._pool.close()
            raise

    def extent(self) -> Extent:
        with self._pool.lend() as connection:
            return layout.load_extent(connection, self.path)

    def ends(self) -> dict[int, int]:
        return dict(enumerate(self.extent().nexts))

    def starts(self) -> dict[int, int]:
        return dict(enumerate(self.extent().starts))

    def versions(self, newest: int) -> list[Version]:
        """The versions of its events, up to `newest` at least."""
        if len(self._versions) < newest:
            with self._pool.lend() as connection, files.reading(connection, self.path):
                extent = layout.load_extent(connection, self.path)
                self._versions = layout.load_versions(connection, self.path, extent.version)
        return self._versions

    def read_as(self, spec: EventSpec) -> None:
        """Read events as another class, or another version of it, from the next `read` on."""
        self._spec, self._upcaster = spec, None

    def oldest_version(self) -> int:
        """The oldest version of which events may be kept; one more than there are if there is no event."""
        extent = self.extent()
        if sum(extent.nexts) == extent.ticks:
            return extent.version + 1
        spans = enumerate(zip(extent.starts, extent.nexts, strict=True))
        kept = [self.headers(partition, start, 1) for partition, (start, end) in spans if start < end]
        return min((header.version for headers in kept for header in headers), default=extent.version + 1)

    def is_evolved(self) -> bool:
        """Whether a step on the way to the class that it reads, or to the newest version, changes events."""
        history, spec = self.versions(self.extent().version), self._spec
        if spec is not None and not is_current(history[-1], spec):
            history = [*history, next_version(self.path.stem, history, spec, self.oldest_version())]
        return not all(each.is_plain for each in history)

    def _upcast(self, extent: Extent) -> Upcaster:
        versions, known = self.versions(extent.version), self._upcaster
        if known is None or known.stored != len(versions):
            known = self._upcaster = Upcaster(self.path.stem, versions, self._spec)
        return known

    def size_bytes(self) -> int:
        """Space that the stream takes in its file. Pages that are free for reuse do not count."""
        free, pages = self.free_pages()
        return (pages - free) * PAGE_BYTES

    def free_pages(self) -> tuple[int, int]:
        """How many pages of the file are free for reuse, and how many it has."""
        with self._pool.lend() as connection, files.reading(connection, self.path):
            free, pages = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("freelist_count", "page_count")
            )
        return free, pages

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """As in the contract. Memory: one piece. What the batches are cut into is not what they were appended as."""
        extent = self.extent()
        self._require_kept(extent, partition, start, end)
        return self._upcasted(self._upcast(extent), partition, start, end)

    def _upcasted(self, upcaster: Upcaster, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for version, batch in self.versioned(partition, start, end):
            if version == upcaster.target:
                yield batch
            else:
                yield from upcaster.read(version, batch, partition, start)
            start += batch.num_rows

    def versioned(self, partition: int, start: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The same rows, each with the version of the schema that it was written with, in that schema."""
        while start < end:
            piece = self._piece(partition, start, end)
            for version, group in groupby(piece, lambda batch: batch.version):
                members = list(group)
                batch = codec.decode([each.data for each in members], self.versions(version)[version - 1].schema)
                skipped = max(0, start - members[0].first)
                yield version, batch.slice(skipped, min(end, members[-1].end) - members[0].first - skipped)
            start = piece[-1].end

    def headers(self, partition: int, start: int, limit: int) -> list[Header]:
        """Up to `limit` batches of a partition from the one that begins at `start` on."""
        span = (layout.key(partition, start), layout.key(partition + 1, 0), limit)
        with self._pool.lend() as connection, files.storage_errors(self.path):
            headers = [Header(*row) for row in connection.execute(_HEADERS, span)]
        for header in headers:
            if not all(type(value) is int for value in header):
                raise self._damaged(partition, start, "a batch is not what was written")
        return headers

    def wait(self, seen: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        """As in the contract. A commit of this process wakes it at once, one of another within POLL_MAX_S."""
        deadline = time.monotonic() + timeout_s
        pause, seen = POLL_MIN_S, dict(seen)
        with self._pool.lend() as connection:
            while True:
                changes, version = self._changes, files.data_version(connection, self.path)
                ends = dict(enumerate(layout.load_extent(connection, self.path).nexts))
                while (changes, version) == (self._changes, files.data_version(connection, self.path)):
                    left = deadline - time.monotonic()
                    if ends != seen or left <= 0 or self._closed:
                        return ends
                    self._pause(min(pause, left), changes)
                    pause = min(pause * POLL_GROWTH, POLL_MAX_S)

    def _pause(self, seconds: float, changes: int) -> None:
        with self._changed:
            if self._changes == changes and not self._closed:
                self._changed.wait(seconds)

    def notify(self) -> None:
        """Wake the waiting threads of this process. Called by the writer after a commit."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Readers under way in other threads end with what they have."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.close()

    def _verify(self) -> int:
        """Check what can be checked without reading all data; the generation of the file."""
        with self._pool.lend() as connection:
            with files.reading(connection, self.path):
                mark = files.get_record(connection, self.path, "format")
            generation = files.check_mark(mark, self.path, layout.KIND)
            known = tail.acknowledged(tail.path_of(self.path), generation)  # before the extent: a writer may be at work
            with files.reading(connection, self.path):
                extent = layout.load_extent(connection, self.path)
                self._versions = layout.load_versions(connection, self.path, extent.version)
                self._require_edges(connection, extent)
        if extent.commits < known:
            raise Damaged(
                f"{self.path} has {extent.commits} commits of {known} that were acknowledged: the newest are lost, or "
                f"it is an older copy; to go on with what is there, remove {tail.path_of(self.path).name}",
                file=str(self.path),
            )
        return generation

    def _require_edges(self, connection: sqlite3.Connection, extent: Extent) -> None:
        for partition, (start, end) in enumerate(zip(extent.starts, extent.nexts, strict=True)):
            span = (layout.key(partition, 0), layout.key(partition + 1, 0))
            edges = connection.execute(_EDGES, span).fetchall() or [(span[0] + end, 0)]
            sound = all(type(value) is int for edge in edges for value in edge)
            if not sound or (edges[0][0], sum(edges[-1])) != (span[0] + start, span[0] + end):
                raise self._damaged(partition, start, f"its batches do not span the offsets {start} to {end}")

    def _require_kept(self, extent: Extent, partition: int, start: int, end: int) -> None:
        if not 0 <= partition < len(extent.nexts):
            raise BadCursor(f"{self.path.stem} has partitions 0 to {len(extent.nexts) - 1}, not {partition}")
        first, last = extent.starts[partition], extent.nexts[partition]
        if not first <= start <= end <= last:
            raise BadCursor(
                f"{self.path.stem}: partition {partition} keeps offsets {first} to {last}, not all of {start} to {end}"
            )

    def _piece(self, partition: int, start: int, end: int) -> list[Stored]:
        """The next batches from `start` on, verified: a bounded number, at least one. What stands behind a bad one is
        never given: the piece ends before it, and the next piece raises."""
        with self._pool.lend() as connection, files.reading(connection, self.path):
            piece: list[Stored] = []
            try:
                self._collect(connection, piece, partition, start, end)
            except (Damaged, sqlite3.DatabaseError):
                if not piece:
                    self._require_kept(layout.load_extent(connection, self.path), partition, start, end)
                    raise
            return piece

    def _collect(
        self, connection: sqlite3.Connection, piece: list[Stored], partition: int, start: int, end: int
    ) -> None:
        lowest, at = layout.key(partition, 0), layout.key(partition, start)
        rows, size = 0, 0
        for row in connection.execute(_FROM, (lowest, at, at, layout.key(partition, end))):
            batch = Stored(*row)
            if not batch.intact():
                raise self._damaged(partition, start, "a batch is not what was written")
            if batch.at > at or batch.at + batch.rows <= at or (piece and batch.at != at):
                break
            piece.append(batch)
            at = batch.at + batch.rows
            start = batch.end
            rows, size = rows + batch.rows, size + len(batch.data)
            if len(piece) >= PIECE_BATCHES or rows >= PIECE_ROWS or size >= PIECE_BYTES:
                return
        if start < end:
            raise self._damaged(partition, start, "a batch is missing")

    def _damaged(self, partition: int, offset: int, what: str) -> Damaged:
        return Damaged(
            f"{self.path} is damaged at partition {partition}, offset {offset}: {what}",
            file=str(self.path),
            partition=partition,
            offset=offset,
        )
