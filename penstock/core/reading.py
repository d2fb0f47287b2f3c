"""Helpers for reading single rows from a log with gaps between offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.core.contracts import LogReader
from penstock.core.schema import OFFSET_COLUMN

GROWTH = 8


def last_row(log: LogReader, stream: str, partition: int, start: int, end: int) -> pa.RecordBatch | None:
    """Return the last row at offsets [start, end), or None if there are no rows. Searches backwards from the end in
    growing steps."""
    step = 1
    while start < end:
        begin = max(start, end - step)
        last = None
        for batch in _nonempty_batches(log.read(stream, partition, begin, end)):
            last = batch
        if last is not None:
            return last.slice(last.num_rows - 1)
        end, step = begin, step * GROWTH
    return None


def rows_end(log: LogReader, stream: str, partition: int, start: int, end: int) -> int:
    """Return the offset after the last row at offsets [start, end); `start` if there are no rows."""
    last = last_row(log, stream, partition, start, end)
    return start if last is None else int(last.column(OFFSET_COLUMN)[0].as_py()) + 1


def first_row(log: LogReader, stream: str, partition: int, start: int, end: int) -> pa.RecordBatch | None:
    """Return the first row at offsets [start, end), or None if there are no rows. Searches forwards from the start in
    growing steps."""
    step = 1
    while start < end:
        stop = min(end, start + step)
        for batch in _nonempty_batches(log.read(stream, partition, start, stop)):
            return batch.slice(0, 1)
        start, step = stop, step * GROWTH
    return None


def rows_start(log: LogReader, stream: str, partition: int, start: int, end: int) -> int:
    """Return the offset of the first row at offsets [start, end); `end` if there are no rows."""
    first = first_row(log, stream, partition, start, end)
    return end if first is None else int(first.column(OFFSET_COLUMN)[0].as_py())


def _nonempty_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


def with_offsets(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the batch as the log would return it, with an additional column of row offsets, which start at `first`."""
    return batch.append_column(OFFSET_COLUMN, pa.array(range(first, first + batch.num_rows), pa.int64()))
