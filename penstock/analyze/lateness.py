"""Finds a batch's late events, and the windows that they missed. Spark drops late rows and only counts them. This
module does not use Spark.

Spark compares a batch's rows with the previous batch's watermark, and considers a window over when its end is not after
the watermark (the tests verify this). Spark counts the rows of a partial aggregation, one for each group, window and
task; this module counts events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import event_rows, to_batch
from penstock.core.contracts import LogReader
from penstock.core.cursor import source_positions
from penstock.core.schema import KIND_EVENT, OFFSET_COLUMN, Late, MissedWindow
from penstock.core.times import from_micros

WINDOWS_MAX = 100
"""Maximum number of missed windows that are listed for one event; the newest windows are listed."""


Sift = Callable[[str, pa.RecordBatch], list[int]]


class Closing(msgspec.Struct, frozen=True):
    """A rule for how long a view's operator keeps an event: until the watermark has passed a range of event time. All
    values are in microseconds.

    Windows have the length `span`, and one begins every `step`, counted from `origin`. Without `step`, an event is kept
    until `span` after its own time, as in a session. Without `step` and `span`, it is kept until its own time.
    """

    span: int
    step: int = 0
    origin: int = 0

    def missed(self, at: int, watermark: int) -> list[tuple[int, int]]:
        """Return the view's windows that contain this event time and are over, sorted from oldest to newest. If there
        are too many, only the newest are returned."""
        if not self.step:
            return [(at, at + self.span)] if at + self.span <= watermark else []
        newest = at - (at - self.origin) % self.step
        end = newest + self.span
        oldest, over = (end - at - 1) // self.step, max(0, -((watermark - end) // self.step))
        numbers = range(over, min(oldest + 1, over + WINDOWS_MAX))
        return [(newest - number * self.step, end - number * self.step) for number in reversed(numbers)]

    def is_late(self, at: pa.Array, watermark: int) -> pa.Array:
        """Return, for each of these times, whether it is late. A time is late if it misses the oldest window that
        contains it."""
        if not self.step:
            return pc.less_equal(at, watermark - self.span)
        number = -(-self.span // self.step) - 1
        rest = pc.subtract(at, self.origin)
        begun = pc.subtract(rest, pc.multiply(_floor_divided(rest, self.step), self.step))
        start = pc.subtract(pc.subtract(at, begun), number * self.step)
        first = pc.if_else(pc.greater(pc.add(start, self.span), at), start, pc.add(start, self.step))
        return pc.less_equal(first, watermark - self.span)


def _floor_divided(values: pa.Array, by: int) -> pa.Array:
    """Divide a column of times and round down. Arrow rounds toward zero, which is wrong for times before 1970."""
    below = pc.less(values, 0)
    return pc.if_else(below, pc.subtract(pc.divide(pc.add(values, 1), by), 1), pc.divide(values, by))


@dataclass(frozen=True)
class TimedStream:
    """A stream that a view reads by event time: its name, and the column that contains the event time."""

    stream: str
    column: str


@dataclass(frozen=True)
class _Row:
    at: int
    offset: int
    id: str | None
    text: str


class Finder:
    """Finds the late events in a view's batches. The result depends only on the batch's range and the watermark, so a
    batch that runs again has the same late events."""

    def __init__(self, reads: Sequence[TimedStream], closings: Sequence[Closing], sift: Sift | None = None) -> None:
        """Create a finder of late events. `sift` returns the rows of a stream that pass the view's conditions; without
        it, all rows pass."""
        self.reads, self.closings, self.sift = reads, closings, sift

    def find(self, log: LogReader, start: str, end: str, watermark: int | None) -> Iterator[Late]:
        """Yield the late events between two positions, in log order. Reads the log in parts, and first compares only
        the times in each part."""
        if watermark is None or not self.closings:
            return
        first, last = source_positions(start), source_positions(end)
        for timed in self.reads:
            for partition, stop in sorted(last[timed.stream].items()):
                offset = first[timed.stream][partition]
                for batch in log.read(timed.stream, partition, offset, stop):
                    for row in self._late_rows(batch, timed, watermark):
                        yield self._late_event(timed.stream, partition, row, watermark)

    def _late_rows(self, batch: pa.RecordBatch, timed: TimedStream, watermark: int) -> Iterator[_Row]:
        times = batch.column(timed.column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        late = pc.equal(batch.column("_kind"), KIND_EVENT)
        missed = [closing.is_late(times, watermark) for closing in self.closings]
        for mask in missed[1:]:
            missed[0] = pc.or_(missed[0], mask)
        places = pc.indices_nonzero(pc.fill_null(pc.and_(late, missed[0]), False))
        if len(places) and self.sift is not None:
            places = places.take(pa.array(self.sift(timed.stream, batch.take(places)), pa.int64()))
        if len(places):
            late_rows = batch.take(places)
            texts = (row.decode() for row in event_rows(late_rows))
            offsets, ids = late_rows.column(OFFSET_COLUMN).to_pylist(), late_rows.column("_id").to_pylist()
            yield from map(_Row, times.take(places).to_pylist(), offsets, ids, texts)

    def _late_event(self, stream: str, partition: int, row: _Row, watermark: int) -> Late:
        """Create the record of a late event. Times are exact; a window that two operators share is listed once."""
        windowed = [closing for closing in self.closings if closing.span]
        missed = sorted({window for closing in windowed for window in closing.missed(row.at, watermark)})
        over = missed[-1][1] if missed else row.at
        return Late(
            stream=stream, partition=partition, offset=row.offset, id=row.id, at=from_micros(row.at),
            watermark=from_micros(watermark), late_s=(watermark - over) / 1e6,
            windows=[MissedWindow(start=from_micros(a), end=from_micros(b)) for a, b in missed[-WINDOWS_MAX:]],
            event=row.text,
        )  # fmt: skip


def late_batch(view: str, events: Sequence[Late], now: datetime) -> pa.RecordBatch:
    """Convert late events to a batch for the stream VIEW.late. Their ids contain the positions of the original
    events."""
    ids = [f"{view}/{event.stream}/{event.partition}/{event.offset}" for event in events]
    return to_batch(Late, events, ids=ids, keys=[None] * len(events), now=now)
