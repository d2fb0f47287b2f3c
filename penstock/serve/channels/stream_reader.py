"""Runs of a stream's events: events of all partitions in one order, read from the log and encoded.

Within a run, events are ordered by ingest time, then partition, then offset. Within a partition they are always in
offset order, even if the clock was set back. A position consists of one offset per partition. A run that starts where
another run ended continues it without gaps or repetitions.

All functions here block, so they are called in a worker thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.contracts import AppendPosition, LogReader
from penstock.core.cursor import StreamCursor, decode
from penstock.core.errors import BadCursor
from penstock.core.reading import rows_start
from penstock.core.schema import KIND_EVENT, OFFSET_COLUMN
from penstock.serve.channels.row_filter import RowFilter

Offsets = dict[int, int]
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class ServedExtent:
    """The state of a stream at one instant: its generation, and the kept offsets [start, end) of each partition."""

    generation: int
    starts: Offsets
    ends: Offsets


@dataclass(frozen=True)
class EventRun:
    """A run of a stream's events in served order. `after` is the position after the last event, and after any ticks
    that were read with the events."""

    start: Offsets
    after: Offsets
    events: Sequence[AppendPosition]
    batches: Mapping[int, Sequence[pa.RecordBatch]]
    """The events of each partition, without ticks."""

    @property
    def size(self) -> int:
        return sum(batch.nbytes for batches in self.batches.values() for batch in batches)

    def rows(self, row_filter: RowFilter) -> Iterator[bytes | None]:
        """Yield each event of the run as a JSON object, or None if the row filter hides the event. Events are encoded
        when they are needed."""
        encoded = {
            partition: chain.from_iterable(row_filter.rows(batch) for batch in batches)
            for partition, batches in self.batches.items()
        }
        return (next(encoded[position.partition]) for position in self.events)

    def until(self, count: int) -> Offsets:
        """Return the position after the first `count` events."""
        return self.start | {position.partition: position.offset + 1 for position in self.events[:count]}


def extent(log: LogReader, stream: str) -> ServedExtent:
    """Return the extent of a stream as it is served to readers.

    Start offsets are read before end offsets: if the stream is trimmed in between, it looks larger than it is, never
    smaller. If the stream is recreated in between, everything is read again; otherwise, cursors for the old stream
    would seem to be ahead of the new stream's end.
    """
    while True:
        now = ServedExtent(log.generation(stream), dict(log.starts(stream)), dict(log.ends(stream)))
        if log.generation(stream) == now.generation:
            return now


def locate(since: str, now: ServedExtent) -> tuple[Offsets, str | None]:
    """Return the stream's offsets for `since`. If they are no longer kept, returns the first kept offsets and the
    reason.

    Raises `BadCursor` if the cursor cannot belong to this stream.
    """
    if since == EARLIEST:
        return dict(now.starts), None
    if since == LATEST:
        return dict(now.ends), None
    cursor = decode(since)
    if not isinstance(cursor, StreamCursor):
        raise BadCursor("this cursor is for a view, not a stream")
    if cursor.generation != now.generation:
        return dict(now.starts), "the stream was recreated"
    if cursor.offsets.keys() != now.ends.keys():
        raise BadCursor("this cursor belongs to a different stream: its partitions differ")
    if any(offset > now.ends[partition] for partition, offset in cursor.offsets.items()):
        raise BadCursor("this cursor is past the end of the stream")
    if any(offset < now.starts[partition] for partition, offset in cursor.offsets.items()):
        return dict(now.starts), "the events after this cursor are no longer kept"
    return cursor.offsets, None


def read_run(
    log: LogReader, stream: str, start: Mapping[int, int], end: Mapping[int, int], *, events_max: int, bytes_max: int
) -> EventRun:
    """Read the stream's next events in [start, end): at most `events_max` events, and about `bytes_max` bytes of
    columns.

    Reads at least one row if there is one, so a caller that keeps continuing from `after` reaches `end`. Memory can
    exceed `bytes_max` by at most one stored batch per partition. Raises `BadCursor` if the range is no longer kept.
    """
    open_partitions = [partition for partition in sorted(start) if start[partition] < end[partition]]
    share = bytes_max // max(1, len(open_partitions))
    runs = {
        partition: _Run.gather(log, stream, partition, (start[partition], end[partition]), events_max, share)
        for partition in open_partitions
    }
    order = _merge_runs(runs, events_max)
    after = dict(start) | {partition: run.next_offset for partition, run in runs.items()}
    return EventRun(dict(start), after, order, {partition: run.events() for partition, run in runs.items()})


def look_back(log: LogReader, stream: str, partition: int, kept: tuple[int, int], events: int, *, rows_max: int) -> int:
    """Return an offset in the partition that is followed by at least `events` events, or the first offset if there are
    fewer events.

    Each attempt looks four times as far back as the last. Gives up once an attempt has read `rows_max` rows, because a
    partition can contain long runs of ticks; fewer events may then follow the offset.
    """
    first, end = kept
    look = events
    while True:
        start = max(first, end - look)
        rows = count = 0
        for batch in log.read(stream, partition, start, end):
            rows += batch.num_rows
            count += pc.sum(pc.equal(batch.column("_kind"), KIND_EVENT)).as_py() or 0
        if count >= events or start == first or rows >= rows_max:
            return start
        look *= 4


def _merge_runs(runs: dict[int, _Run], events_max: int) -> list[AppendPosition]:
    """Take rows from the partitions' runs in served order, and return the position of each event taken.

    Stops at the end of a run if its partition has more rows, because the partition's next row might come before the
    remaining rows of the other partitions.
    """
    order: list[AppendPosition] = []
    if not all(run.times or run.whole for run in runs.values()):
        return order
    heads = [(run.times[0], partition) for partition, run in runs.items() if run.times]
    heapify(heads)
    while heads and len(order) < events_max:
        partition = heads[0][1]
        run = runs[partition]
        if run.kinds[run.taken] == KIND_EVENT:
            order.append(AppendPosition(partition, run.offsets[run.taken]))
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
    """The next rows of one partition, from `start` up to `stop`. `whole` is true if `stop` is the requested end."""

    start: int
    stop: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    whole: bool = False
    taken: int = 0

    @classmethod
    def gather(
        cls, log: LogReader, stream: str, partition: int, span: tuple[int, int], rows_max: int, bytes_max: int
    ) -> _Run:
        start, end = span
        run = cls(start, min(end, start + rows_max))
        run._add_log_batches(log.read(stream, partition, start, run.stop), bytes_max)
        if not run.times and run.stop < end:
            first = rows_start(log, stream, partition, run.stop, end)
            run.stop = min(end, first + rows_max)
            run._add_log_batches(log.read(stream, partition, first, run.stop), bytes_max)
        run.whole = run.stop >= end
        return run

    def _add_log_batches(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> None:
        size = 0
        for batch in batches:
            part = batch.slice(0, max(1, (bytes_max - size) * batch.num_rows // max(1, batch.nbytes)))
            self.batches.append(part)
            self.times += part.column("_ingest_time").cast(pa.int64()).to_pylist()
            self.kinds += part.column("_kind").to_pylist()
            self.offsets += part.column(OFFSET_COLUMN).to_pylist()
            size += part.nbytes
            if part.num_rows < batch.num_rows or size >= bytes_max:
                self.stop = self.offsets[-1] + 1
                break

    @property
    def next_offset(self) -> int:
        """The position in the partition after the rows taken."""
        if self.taken == len(self.offsets):
            return self.stop
        return self.offsets[self.taken - 1] + 1 if self.taken else self.start

    def events(self) -> list[pa.RecordBatch]:
        """Return the partition's events among the rows taken."""
        batches, left = [], self.taken
        for batch in self.batches:
            taken = batch.slice(0, left)
            batches.append(taken.filter(pc.equal(taken.column("_kind"), KIND_EVENT)))
            left -= taken.num_rows
            if left == 0:
                break
        return batches


def join(rows: Sequence[bytes]) -> bytes:
    """Join events as JSON objects into a JSON array."""
    return b"[" + b",".join(rows) + b"]"
