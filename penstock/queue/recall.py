"""Recovery of a stream's remembered ids from its newest batches, when a writer starts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.queue.ids import RecentIds, short_ids
from penstock.queue.layout import key
from penstock.queue.reader import StreamFileReader

CHUNK_ROWS = 32_768
"""Number of rows to read from a partition at a time: more than a stored batch contains, so that few batches are decoded
twice."""
EVER_US = 2**62
"""A time later than any event; its negative is earlier than any event."""
ROWS = pa.schema({"id": pa.string(), "us": pa.int64(), "at": pa.int64()}.items())


def recall(reader: StreamFileReader, limit: int, lifetime_us: int) -> RecentIds:
    """Return a stream's index of ids as of the newest event in the log. Blocks: recovering a million ids takes about a
    second.

    In addition to the index, holds the ids from one or two chunks of each partition in memory. Raises `Damaged` if a
    batch that must be read is damaged, because duplicates could go unnoticed without its ids.
    """
    recent = RecentIds(limit, lifetime_us)
    if limit and reader.extent().ids:
        for rows in _newest_ids_first(reader, lifetime_us):
            _add_older_ids(recent, rows)
            if len(recent) == limit:
                break
    return recent


def _add_older_ids(recent: RecentIds, rows: pa.Table) -> None:
    """Add a stream's older ids. The ids that share a mark are at most as far apart in time as in an index that was
    built while the events arrived."""
    ids, positions, times = (rows.column(name).to_pylist() for name in ("id", "at", "us"))
    ids = list(short_ids(ids))
    while times:
        begin = bisect_left(times, times[-1] - recent.mark_us)
        recent.add_older(ids[begin:], positions[begin:], times[begin], times[-1])
        del ids[begin:], positions[begin:], times[begin:]


def _newest_ids_first(reader: StreamFileReader, lifetime_us: int) -> Iterator[pa.Table]:
    """Yield tables of ids with positions and ingest times, newest table first, until the remaining rows are too old.

    The rows of a table are sorted oldest first. The partition with the newest unread rows is read next. Rows are
    yielded once they are newer than all unread rows. If times are equal, or the clock was set back between chunks, the
    higher offset counts as newer.
    """
    extent = reader.extent()
    spans = zip(extent.starts, extent.nexts, strict=True)
    ends = {partition: end for partition, (start, end) in enumerate(spans) if end > start}
    oldest_us = dict.fromkeys(ends, EVER_US)  # of the rows read so far; a completely read partition has no entry
    held, horizon_us = ROWS.empty_table(), -EVER_US
    while oldest_us and max(oldest_us.values()) >= horizon_us:
        partition = max(oldest_us, key=oldest_us.__getitem__)
        start = extent.starts[partition]
        begin = max(start, reader.rows_end(partition, start, ends[partition]) - CHUNK_ROWS)
        rows, oldest_us[partition], newest_us = _read_ids(reader, partition, begin, ends[partition])
        held, horizon_us = pa.concat_tables([rows, held]), max(horizon_us, newest_us - lifetime_us)
        ends[partition] = begin
        if begin == start:
            del oldest_us[partition]
        unread_us = max(oldest_us.values(), default=-EVER_US)
        if unread_us < EVER_US:
            newer = pc.greater_equal(held["us"], unread_us)
            yield _ids_within(held.filter(newer), horizon_us)
            held = held.filter(pc.invert(newer))
    yield _ids_within(held, horizon_us)


def _ids_within(rows: pa.Table, horizon_us: int) -> pa.Table:
    return rows.filter(pc.greater_equal(rows["us"], horizon_us)).sort_by("us")  # stable


def _read_ids(reader: StreamFileReader, partition: int, begin: int, end: int) -> tuple[pa.Table, int, int]:
    """Return the event ids in a range of a partition, and the oldest and newest time of its rows."""
    kept, times = [ROWS.empty_table()], []
    for _, offsets, batch in reader.versioned(
        partition, begin, end
    ):  # as stored: the ids are the same in every version
        us = batch.column("_ingest_time").cast(pa.int64())
        positions = pc.add(offsets, key(partition, 0))
        rows = pa.table({"id": batch.column("_id"), "us": us, "at": positions})
        # a copy, so that the events can be freed
        kept.append(rows.filter(pc.and_(rows["id"].is_valid(), us.is_valid())))
        times += [time for time in pc.min_max(us).as_py().values() if time is not None]
    return pa.concat_tables(kept), min(times, default=0), max(times, default=0)
