"""Reader for one stream's file, usable in any thread of any process while another process writes to the file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core import files
from penstock.core.errors import BadCursor, Damaged
from penstock.core.event_shape import EventSpec
from penstock.core.schema import OFFSET_COLUMN
from penstock.core.wakeups import BlockingWatch, file_watch
from penstock.queue import codec, layout, tail
from penstock.queue.layout import Extent, Stored
from penstock.queue.pool import ConnectionPool
from penstock.queue.upcast import Upcaster
from penstock.queue.versions import EventVersion, is_current, next_version

PIECE_BATCHES = 1024
PIECE_ROWS = 65_536
PIECE_BYTES = 4 * 1024 * 1024
"""Maximum size of one read transaction, which always reads at least one batch. The limit keeps transactions short.

An open transaction prevents SQLite from reusing its write-ahead log.
"""
PAGE_BYTES = 4096

_FROM = """SELECT at, rows, version, ingest_us, crc, data FROM batches
WHERE at >= coalesce((SELECT at FROM batches WHERE at BETWEEN ? AND ? ORDER BY at DESC LIMIT 1), ?) AND at < ?
ORDER BY at"""
_HEADERS = """SELECT at, rows, version, ingest_us, length(data) FROM batches
WHERE at >= ? AND at < ? ORDER BY at LIMIT ?"""
_GAPS = """SELECT at, rows FROM batches
WHERE at >= coalesce((SELECT at FROM batches WHERE at BETWEEN ? AND ? ORDER BY at DESC LIMIT 1), ?) AND at < ?
AND length(data) = 0"""
_LAST = "SELECT at, rows FROM batches WHERE at >= ? AND at < ? AND length(data) > 0 ORDER BY at DESC LIMIT 1"
_EDGES = """SELECT at, rows FROM (SELECT at, rows FROM batches WHERE at >= ?1 AND at < ?2 ORDER BY at LIMIT 1)
UNION ALL SELECT at, rows FROM (SELECT at, rows FROM batches WHERE at >= ?1 AND at < ?2 ORDER BY at DESC LIMIT 1)"""


class Header(NamedTuple):
    """A stored batch without its data. Not verified by a checksum, so it can be used only for planning, not for
    reading."""

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

    @property
    def is_gap(self) -> bool:
        return self.bytes == 0


class StreamFileReader:
    """One stream's file, opened and verified. Never changes the file, even if it is damaged."""

    def __init__(self, path: Path, spec: EventSpec | None = None) -> None:
        """`spec` is the event class to read events as; without it, they are read as the newest version stored."""
        self.path = path
        self._spec = spec
        self._pool = ConnectionPool(path)
        self._versions: list[EventVersion] = []
        self._upcaster: Upcaster | None = None
        self._waiting: set[BlockingWatch] = set()
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

    def versions(self, newest: int) -> list[EventVersion]:
        """Return the versions of the stream's events, at least up to `newest`."""
        if len(self._versions) < newest:
            with self._pool.lend() as connection, files.reading(connection, self.path):
                extent = layout.load_extent(connection, self.path)
                self._versions = layout.load_versions(connection, self.path, extent.version)
        return self._versions

    def read_as(self, spec: EventSpec) -> None:
        """Read events as a different class, or a different version of the class, starting with the next `read`."""
        self._spec, self._upcaster = spec, None

    def events_kept(self) -> int:
        """Return roughly how many events are kept, on the assumption that ticks are spread evenly among all appended
        rows."""
        extent = self.extent()
        appended = extent.events() + extent.ticks
        kept = self.rows_between({}, dict(enumerate(extent.nexts)))
        return kept * extent.events() // appended if appended else 0

    def oldest_version(self) -> int:
        """Return the oldest version that kept events can have; the newest version plus one if no events are kept."""
        extent = self.extent()
        if not extent.events():
            return extent.version + 1
        spans = enumerate(zip(extent.starts, extent.nexts, strict=True))
        kept = [self.headers(partition, start, 1) for partition, (start, end) in spans if start < end]
        return min((header.version for headers in kept for header in headers), default=extent.version + 1)

    def is_evolved(self) -> bool:
        """Return whether any step on the way to the class being read, or to the newest version, changes events."""
        history, spec = self.versions(self.extent().version), self._spec
        if spec is not None and not is_current(history[-1], spec):
            history = [*history, next_version(self.path.stem, history, spec, self.oldest_version())]
        return not all(version.is_plain for version in history)

    def _upcast(self, extent: Extent) -> Upcaster:
        versions, known = self.versions(extent.version), self._upcaster
        if known is None or known.stored != len(versions):
            known = self._upcaster = Upcaster(self.path.stem, versions, self._spec)
        return known

    def size_bytes(self) -> int:
        """Return the space that the stream takes in its file. Pages free for reuse do not count."""
        free, pages = self.free_pages()
        return (pages - free) * PAGE_BYTES

    def free_pages(self) -> tuple[int, int]:
        """Return the number of pages in the file that are free for reuse, and the total number of pages."""
        with self._pool.lend() as connection, files.reading(connection, self.path):
            free, pages = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("freelist_count", "page_count")
            )
        return free, pages

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Implement `LogReader.read`. Holds one piece in memory. Batches can differ from the appended batches."""
        extent = self.extent()
        self._require_kept(extent, partition, start, end)
        return self._upcasted(self._upcast(extent), partition, start, end)

    def _upcasted(self, upcaster: Upcaster, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for version, offsets, batch in self.versioned(partition, start, end):
            if version == upcaster.target:
                yield batch.append_column(OFFSET_COLUMN, offsets)
                continue
            row = 0
            for part in upcaster.read(version, batch, partition, offsets):
                yield part.append_column(OFFSET_COLUMN, offsets.slice(row, part.num_rows))
                row += part.num_rows

    def versioned(self, partition: int, start: int, end: int) -> Iterator[tuple[int, pa.Array, pa.RecordBatch]]:
        """Yield the rows at offsets [start, end) without converting them, as batches with their version and offsets."""
        while start < end:
            piece = self._piece(partition, start, end)
            for version, group in groupby((batch for batch in piece if not batch.is_gap), lambda batch: batch.version):
                members = list(group)
                batch = codec.decode([member.data for member in members], self.versions(version)[version - 1].schema)
                skipped = max(0, start - members[0].first)
                count = batch.num_rows - skipped - max(0, members[-1].end - end)
                yield version, _row_offsets(members).slice(skipped, count), batch.slice(skipped, count)
            start = piece[-1].end

    def rows_between(self, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        """Implement `LogReader.rows_between`. If the stream has gaps, they are counted from batch headers."""
        extent = self.extent()
        spans = [
            (partition, max(start.get(partition, 0), extent.starts[partition]), stop) for partition, stop in end.items()
        ]
        rows = sum(max(0, stop - first) for _, first, stop in spans)
        return rows - sum(self._gaps(*span) for span in spans) if extent.gaps else rows

    def _gaps(self, partition: int, start: int, end: int) -> int:
        """Return the number of offsets in a range that no row uses."""
        first, stop = layout.key(partition, start), layout.key(partition, end)
        with self._pool.lend() as connection, files.storage_errors(self.path):
            gaps = connection.execute(_GAPS, (layout.key(partition, 0), first, first, stop)).fetchall()
        return sum(max(0, min(at + length, stop) - max(at, first)) for at, length in gaps)

    def rows_end(self, partition: int, start: int, end: int) -> int:
        """Return the offset after the last row in [start, end), based on the headers; `start` if there are no rows.

        A batch must begin at `start`.
        """
        span = layout.key(partition, start), layout.key(partition, end)
        with self._pool.lend() as connection, files.storage_errors(self.path):
            last = connection.execute(_LAST, span).fetchone()
        if last is None:
            return start
        if not all(type(value) is int for value in last):
            raise self._damaged(partition, start, "a batch has the wrong checksum")
        return min(end, layout.position(sum(last)).offset)

    def headers(self, partition: int, start: int, limit: int) -> list[Header]:
        """Return up to `limit` batches of a partition, starting with the batch that begins at `start`."""
        span = (layout.key(partition, start), layout.key(partition + 1, 0), limit)
        with self._pool.lend() as connection, files.storage_errors(self.path):
            headers = [Header(*row) for row in connection.execute(_HEADERS, span)]
        for header in headers:
            if not all(type(value) is int for value in header):
                raise self._damaged(partition, start, "a batch has the wrong checksum")
        return headers

    def wait(self, seen: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        """Implement `BlockingLogReader.wait`. Wakes up immediately after a commit by any process."""
        deadline, seen = time.monotonic() + timeout_s, dict(seen)
        ends, version = seen, -1
        with (
            BlockingWatch(file_watch(self.path)) as watch,
            self._pool.lend() as connection,
            self._wakes_on_close(watch),
        ):
            armed = False
            while True:
                current = files.data_version(connection, self.path)
                if current != version:
                    version, ends = current, dict(enumerate(layout.load_extent(connection, self.path).nexts))
                left = deadline - time.monotonic()
                if ends != seen or left <= 0 or self._closed:
                    return ends
                if armed:
                    watch.wait(left)
                else:
                    watch.arm()
                armed = not armed

    @contextmanager
    def _wakes_on_close(self, watch: BlockingWatch) -> Iterator[None]:
        self._waiting.add(watch)
        try:
            yield
        finally:
            self._waiting.discard(watch)

    def close(self) -> None:
        """Close the file. Reads in progress in other threads end with the rows they already have."""
        self._closed = True
        for watch in tuple(self._waiting):
            watch.wake()
        self._pool.close()

    def _verify(self) -> int:
        """Run the checks that do not require reading all data, and return the generation of the file."""
        with self._pool.lend() as connection:
            with files.reading(connection, self.path):
                mark = files.get_record(connection, self.path, "format")
            generation = files.check_mark(mark, self.path, layout.KIND)
            known = tail.acknowledged(tail.path_of(self.path), generation)  # before the extent: a writer may be active
            with files.reading(connection, self.path):
                extent = layout.load_extent(connection, self.path)
                self._versions = layout.load_versions(connection, self.path, extent.version)
                self._require_edges(connection, extent)
        if extent.commits < known:
            raise Damaged(
                f"{self.path} has only {extent.commits} of {known} acknowledged commits: either the newest commits "
                "are lost, or the file is an older copy; to continue with this file, remove "
                f"{tail.path_of(self.path).name}",
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
            raise BadCursor(
                f"{self.path.stem} has no partition {partition}; it has partitions 0 to {len(extent.nexts) - 1}"
            )
        first, last = extent.starts[partition], extent.nexts[partition]
        if not first <= start <= end <= last:
            raise BadCursor(
                f"{self.path.stem}: partition {partition} holds only offsets {first} to {last}, not all of {start} to "
                f"{end}"
            )

    def _piece(self, partition: int, start: int, end: int) -> list[Stored]:
        """Return the next verified batches from `start`: at least one, and at most a limited number.

        The result ends before a damaged batch. Continuing from there raises an error, so nothing after the damage is
        returned.
        """
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
                raise self._damaged(partition, start, "a batch has the wrong checksum")
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


def _row_offsets(batches: Sequence[Stored]) -> pa.Array:
    """Return the offsets of the rows of stored batches, in order."""
    first, end = batches[0].first, batches[-1].end
    if end - first == sum(batch.rows for batch in batches):
        return pa.array(np.arange(first, end, dtype=np.int64))
    return pa.array(np.concatenate([np.arange(batch.first, batch.end, dtype=np.int64) for batch in batches]))
