"""Which events of a batch came too late, and for which windows: Spark drops them, and only counts. Needs no Spark.

Spark holds the rows of a batch against the watermark that stood at the batch before, and takes a window as over when
its end is not above the watermark (measured: see the tests). What it counts are rows of a partial aggregation, one for
each group, window and task; here it is events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import event_rows, to_batch
from penstock.contracts import LogReader
from penstock.cursor import source_positions
from penstock.rows import from_micros
from penstock.schema import KIND_EVENT, Late, MissedWindow

WINDOWS_MAX = 100
"""Missed windows that are told of one event: the newest ones."""


Sift = Callable[[str, pa.RecordBatch], list[int]]


class Closing(msgspec.Struct, frozen=True):
    """What an operator of a view keeps until the watermark is past it, in microseconds.

    Windows that are `span` long and begin each `step`, at `origin` and so on; with no `step`, what is kept until `span`
    after an event, as in a session; with no `span` either, the event alone.
    """

    span: int
    step: int = 0
    origin: int = 0

    def missed(self, at: int, watermark: int) -> list[tuple[int, int]]:
        """Of the windows that an event of this time is in, those that are over: the newest ones, oldest first."""
        if not self.step:
            return [(at, at + self.span)] if at + self.span <= watermark else []
        newest = at - (at - self.origin) % self.step
        end = newest + self.span
        oldest, over = (end - at - 1) // self.step, max(0, -((watermark - end) // self.step))
        numbers = range(over, min(oldest + 1, over + WINDOWS_MAX))
        return [(newest - number * self.step, end - number * self.step) for number in reversed(numbers)]

    def is_late(self, at: pa.Array, watermark: int) -> pa.Array:
        """Of many times, which miss a window: those that miss the oldest that they are in."""
        if not self.step:
            return pc.less_equal(at, watermark - self.span)
        number = -(-self.span // self.step) - 1
        rest = pc.subtract(at, self.origin)
        begun = pc.subtract(rest, pc.multiply(_floor_divided(rest, self.step), self.step))
        start = pc.subtract(pc.subtract(at, begun), number * self.step)
        first = pc.if_else(pc.greater(pc.add(start, self.span), at), start, pc.add(start, self.step))
        return pc.less_equal(first, watermark - self.span)


def _floor_divided(values: pa.Array, by: int) -> pa.Array:
    """Arrow divides towards zero; times before 1970 are below it."""
    below = pc.less(values, 0)
    return pc.if_else(below, pc.subtract(pc.divide(pc.add(values, 1), by), 1), pc.divide(values, by))


@dataclass(frozen=True)
class Timed:
    """A stream that a view reads by event time: its name, and its column for that."""

    stream: str
    column: str


@dataclass(frozen=True)
class _Row:
    at: int
    offset: int
    id: str | None
    text: str


class Finder:
    """Finds the late events of a view's batches. Which they are depends on nothing but the range of the batch and the
    watermark, so a batch that is run again has the same."""

    def __init__(self, reads: Sequence[Timed], closings: Sequence[Closing], sift: Sift | None = None) -> None:
        """`sift` tells which of some rows of a stream the view takes: all, if it is not given."""
        self.reads, self.closings, self.sift = reads, closings, sift

    def find(self, log: LogReader, start: str, end: str, watermark: int | None) -> Iterator[Late]:
        """The late events between two positions, in the order of the log. The log is read by pieces, and of each first
        the times alone."""
        if watermark is None or not self.closings:
            return
        first, last = source_positions(start), source_positions(end)
        for timed in self.reads:
            for partition, stop in sorted(last[timed.stream].items()):
                offset = first[timed.stream][partition]
                for batch in log.read(timed.stream, partition, offset, stop):
                    for row in self._rows(batch, timed, offset, watermark):
                        yield self._told(timed.stream, partition, row, watermark)
                    offset += batch.num_rows

    def _rows(self, batch: pa.RecordBatch, timed: Timed, first: int, watermark: int) -> Iterator[_Row]:
        times = batch.column(timed.column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        late = pc.equal(batch.column("_kind"), KIND_EVENT)
        missed = [each.is_late(times, watermark) for each in self.closings]
        for each in missed[1:]:
            missed[0] = pc.or_(missed[0], each)
        places = pc.indices_nonzero(pc.fill_null(pc.and_(late, missed[0]), False))
        if len(places) and self.sift is not None:
            places = places.take(pa.array(self.sift(timed.stream, batch.take(places)), pa.int64()))
        if len(places):
            found = batch.take(places)
            texts = (row.decode() for row in event_rows(found))
            numbers, ids = (first + each for each in places.to_pylist()), found.column("_id").to_pylist()
            yield from map(_Row, times.take(places).to_pylist(), numbers, ids, texts)

    def _told(self, stream: str, partition: int, row: _Row, watermark: int) -> Late:
        """Times are exact; a window that two operators have is told once."""
        windowed = [closing for closing in self.closings if closing.span]
        missed = sorted({each for closing in windowed for each in closing.missed(row.at, watermark)})
        over = missed[-1][1] if missed else row.at
        return Late(
            stream=stream, partition=partition, offset=row.offset, id=row.id, at=from_micros(row.at),
            watermark=from_micros(watermark), late_s=(watermark - over) / 1e6,
            windows=[MissedWindow(start=from_micros(a), end=from_micros(b)) for a, b in missed[-WINDOWS_MAX:]],
            event=row.text,
        )  # fmt: skip


def late_batch(view: str, events: Sequence[Late], now: datetime) -> pa.RecordBatch:
    """Late events as a batch of the stream VIEW.late; the id of each says which event it is."""
    ids = [f"{view}/{each.stream}/{each.partition}/{each.offset}" for each in events]
    return to_batch(Late, events, ids=ids, keys=[None] * len(events), now=now)
