"""Reading the remembered ids of a stream back from its newest batches, when a writer starts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.queue.ids import RecentIds
from penstock.queue.layout import key
from penstock.queue.reader import StreamReader

CHUNK_ROWS = 32_768
"""Rows of a partition that are read at a time: more than a stored batch has, so that few batches are decoded twice."""
EVER_US = 2**62
"""Later than every event; the same below 0 is earlier."""
ROWS = pa.schema({"id": pa.string(), "us": pa.int64(), "at": pa.int64()}.items())


def recall(reader: StreamReader, limit: int, lifetime_us: int) -> RecentIds:
    """The index as it stood after the newest event of the log. Blocks: a million ids take about a second.

    Memory beside the index: the ids of a chunk or two of each partition. A damaged batch among those it reads raises
    `Damaged`: without it a duplicate could not be told.
    """
    recent = RecentIds(limit, lifetime_us)
    if limit and reader.extent().ids:
        for rows in _newest_first(reader, lifetime_us):
            _add_older(recent, rows)
            if len(recent) == limit:
                break
    return recent


def _add_older(recent: RecentIds, rows: pa.Table) -> None:
    """What shares a mark must not lie further apart than in an index that grew with its events."""
    ids, places, times = (rows.column(name).to_pylist() for name in ("id", "at", "us"))
    while times:
        begin = bisect_left(times, times[-1] - recent.mark_us)
        recent.add_older(ids[begin:], places[begin:], times[begin], times[-1])
        del ids[begin:], places[begin:], times[begin:]


def _newest_first(reader: StreamReader, lifetime_us: int) -> Iterator[pa.Table]:
    """Ids with their places and ingest times, oldest first in each table, each table older than the one before, until
    all others are too old.

    The partition whose unread rows are the newest is read next; what is newer than all unread rows goes out. Of events
    that came in one moment, and of chunks from before and after a clock was set back, the higher offset is the newer.
    """
    extent = reader.extent()
    spans = zip(extent.starts, extent.nexts, strict=True)
    ends = {partition: end for partition, (start, end) in enumerate(spans) if end > start}
    oldest_us = dict.fromkeys(ends, EVER_US)  # of what is read; no entry if nothing is unread
    held, horizon_us = ROWS.empty_table(), -EVER_US
    while oldest_us and max(oldest_us.values()) >= horizon_us:
        partition = max(oldest_us, key=oldest_us.__getitem__)
        begin = max(extent.starts[partition], ends[partition] - CHUNK_ROWS)
        rows, oldest_us[partition], newest_us = _read(reader, partition, begin, ends[partition])
        held, horizon_us = pa.concat_tables([rows, held]), max(horizon_us, newest_us - lifetime_us)
        ends[partition] = begin
        if begin == extent.starts[partition]:
            del oldest_us[partition]
        unread_us = max(oldest_us.values(), default=-EVER_US)
        if unread_us < EVER_US:
            newer = pc.greater_equal(held["us"], unread_us)
            yield _within(held.filter(newer), horizon_us)
            held = held.filter(pc.invert(newer))
    yield _within(held, horizon_us)


def _within(rows: pa.Table, horizon_us: int) -> pa.Table:
    return rows.filter(pc.greater_equal(rows["us"], horizon_us)).sort_by("us")  # stable


def _read(reader: StreamReader, partition: int, begin: int, end: int) -> tuple[pa.Table, int, int]:
    """The ids of a stretch of a partition, and the oldest and the newest time of its rows."""
    kept, times = [ROWS.empty_table()], []
    for _, batch in reader.versioned(partition, begin, end):  # as stored: the ids are the same in every version
        us = batch.column("_ingest_time").cast(pa.int64())
        places = pa.array(range(at := key(partition, begin), at + batch.num_rows), pa.int64())
        rows = pa.table({"id": batch.column("_id"), "us": us, "at": places})
        kept.append(rows.filter(pc.and_(rows["id"].is_valid(), us.is_valid())))  # a copy: the events can go
        times += [each for each in pc.min_max(us).as_py().values() if each is not None]
        begin += batch.num_rows
    return pa.concat_tables(kept), min(times, default=0), max(times, default=0)
