"""Pieces of a stream: events of all partitions in one order, read from the log and encoded.

The order is by ingest time, then partition, then offset, as far as the piece can see; inside a partition it is always
by offset, whatever the clock did. So a position is one offset for each partition, and any piece that starts where
another ended continues it without a gap and without a repeat.

Everything here blocks: it is called in a worker thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import LogReader
from penstock.contracts import Position as Place
from penstock.cursor import StreamCursor, decode
from penstock.errors import BadCursor
from penstock.schema import KIND_EVENT
from penstock.serve.channels.lens import Lens

Offsets = dict[int, int]
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Extent:
    """What there is of a stream at one instant: its generation, and the kept offsets [start, end) of each partition."""

    generation: int
    starts: Offsets
    ends: Offsets


@dataclass(frozen=True)
class Piece:
    """A run of events in the order they are served in, and the position after the last of them (and after ticks around
    them)."""

    start: Offsets
    after: Offsets
    events: Sequence[Place]
    batches: Mapping[int, Sequence[pa.RecordBatch]]
    """The events of each partition, and no ticks."""

    @property
    def size(self) -> int:
        return sum(batch.nbytes for batches in self.batches.values() for batch in batches)

    def rows(self, lens: Lens) -> list[bytes | None]:
        """Each event as a JSON object, None for one that is not seen through the lens."""
        encoded = {
            partition: chain.from_iterable(lens.rows(batch) for batch in batches)
            for partition, batches in self.batches.items()
        }
        return [next(encoded[place.partition]) for place in self.events]

    def until(self, count: int) -> Offsets:
        """The position after the first `count` events."""
        return self.start | {place.partition: place.offset + 1 for place in self.events[:count]}


def extent(log: LogReader, stream: str) -> Extent:
    """Starts are read first: a stream that is trimmed meanwhile then looks larger, never smaller, than it is."""
    return Extent(log.generation(stream), dict(log.starts(stream)), dict(log.ends(stream)))


def locate(since: str, now: Extent) -> tuple[Offsets, str | None]:
    """The offsets that `since` names; if they are gone, the first kept ones and the reason.

    What cannot be a position of this stream raises `BadCursor`.
    """
    if since == EARLIEST:
        return dict(now.starts), None
    if since == LATEST:
        return dict(now.ends), None
    cursor = decode(since)
    if not isinstance(cursor, StreamCursor):
        raise BadCursor("this cursor is of a view, not of a stream")
    if cursor.generation != now.generation:
        return dict(now.starts), "the stream was made anew"
    if cursor.offsets.keys() != now.ends.keys():
        raise BadCursor("this cursor is of another stream: its partitions differ")
    if any(offset > now.ends[partition] for partition, offset in cursor.offsets.items()):
        raise BadCursor("this cursor is ahead of the end of the stream")
    if any(offset < now.starts[partition] for partition, offset in cursor.offsets.items()):
        return dict(now.starts), "the events after this cursor are no longer kept"
    return cursor.offsets, None


def read_piece(
    log: LogReader, stream: str, start: Mapping[int, int], end: Mapping[int, int], *, events_max: int, bytes_max: int
) -> Piece:
    """The next events of [start, end): at most `events_max`, and about `bytes_max` of columns.

    At least one row is taken if there is one, so a caller that goes on from `after` reaches `end`. The worst case in
    memory is one stored batch a partition beyond `bytes_max`. Raises `BadCursor` if the range is no longer kept.
    """
    open_partitions = [partition for partition in sorted(start) if start[partition] < end[partition]]
    share = bytes_max // max(1, len(open_partitions))
    runs = {
        partition: _Run.gather(log, stream, partition, (start[partition], end[partition]), events_max, share)
        for partition in open_partitions
    }
    order = _merge(runs, start, events_max)
    after = dict(start) | {partition: start[partition] + run.taken for partition, run in runs.items()}
    return Piece(dict(start), after, order, {partition: run.events() for partition, run in runs.items()})


def look_back(log: LogReader, stream: str, partition: int, kept: tuple[int, int], events: int, *, rows_max: int) -> int:
    """The offset from which on a partition has so many events, or a little more; its first one if it has fewer. It may
    be that nothing but ticks came for long: no more than about `rows_max` rows are looked at."""
    first, end = kept
    look = events
    while True:
        start = max(first, end - look)
        batches = log.read(stream, partition, start, end)
        found = sum(pc.sum(pc.equal(batch.column("_kind"), KIND_EVENT)).as_py() or 0 for batch in batches)
        if found >= events or start == first or look >= rows_max:
            return start
        look *= 4


def _merge(runs: dict[int, _Run], start: Mapping[int, int], events_max: int) -> list[Place]:
    """Take rows from the runs in served order; returns the place of each event taken.

    Ends early where a run is used up but its partition is not: its next row may be due before the others'.
    """
    order: list[Place] = []
    heads = [(run.times[0], partition) for partition, run in runs.items()]
    heapify(heads)
    while heads and len(order) < events_max:
        partition = heads[0][1]
        run = runs[partition]
        if run.kinds[run.taken] == KIND_EVENT:
            order.append(Place(partition, start[partition] + run.taken))
        run.taken += 1
        if run.taken < len(run.times):
            heapreplace(heads, (run.times[run.taken], partition))
        elif run.whole:
            heappop(heads)
        else:
            break
    return order


@dataclass
class _Run:
    """The next rows of one partition; `whole` if they reach the end that was asked for."""

    batches: list[pa.RecordBatch]
    times: list[int]
    kinds: list[int]
    whole: bool
    taken: int = 0

    @classmethod
    def gather(
        cls, log: LogReader, stream: str, partition: int, span: tuple[int, int], rows_max: int, bytes_max: int
    ) -> _Run:
        start, end = span
        run = cls([], [], [], whole=False)
        size = 0
        for batch in log.read(stream, partition, start, min(end, start + rows_max)):
            part = batch.slice(0, max(1, (bytes_max - size) * batch.num_rows // max(1, batch.nbytes)))
            run.batches.append(part)
            run.times += part.column("_ingest_time").cast(pa.int64()).to_pylist()
            run.kinds += part.column("_kind").to_pylist()
            size += part.nbytes
            if part.num_rows < batch.num_rows or size >= bytes_max:
                break
        run.whole = start + len(run.times) >= end
        return run

    def events(self) -> list[pa.RecordBatch]:
        """The events among the rows taken."""
        batches, left = [], self.taken
        for batch in self.batches:
            taken = batch.slice(0, left)
            batches.append(taken.filter(pc.equal(taken.column("_kind"), KIND_EVENT)))
            left -= taken.num_rows
            if left == 0:
                break
        return batches


def join(rows: Sequence[bytes]) -> bytes:
    """JSON objects as a JSON array."""
    return b"[" + b",".join(rows) + b"]"
