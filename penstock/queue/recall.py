"""Reading the remembered ids of a stream back from its newest batches, when a writer starts."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.queue.ids import RecentIds
from penstock.queue.layout import key
from penstock.queue.reader import StreamReader

CHUNK_ROWS = 8192


def recall(reader: StreamReader, limit: int, lifetime_us: int) -> RecentIds:
    """The index as it stood after the newest event of the log. Blocks: a million ids take about a second.

    A damaged batch among those it reads raises `Damaged`: without it a duplicate could not be told.
    """
    recent = RecentIds(limit, lifetime_us)
    chunks = list(_newest_first(reader, limit, lifetime_us)) if limit and reader.extent().ids else []
    if not chunks:
        return recent
    rows = pa.concat_tables(reversed(chunks)).drop_null()
    rows = rows.append_column("row", pa.array(range(rows.num_rows)))  # decides between events of the same time
    rows = rows.sort_by([("us", "ascending"), ("row", "ascending")])
    table = rows.group_by("id", use_threads=False).aggregate([("us", "last"), ("row", "last"), ("at", "last")])
    table = table.sort_by([("us_last", "ascending"), ("row_last", "ascending")])
    for batch in table.slice(max(0, table.num_rows - limit)).to_batches(max_chunksize=CHUNK_ROWS):
        places = zip(batch.column("id").to_pylist(), batch.column("at_last").to_pylist(), strict=True)
        recent.add(dict(places), batch.column("us_last")[-1].as_py())
    return recent


def _newest_first(reader: StreamReader, limit: int, lifetime_us: int) -> Iterator[pa.Table]:
    """Chunks of ids and ingest times that hold the newest `limit` rows of the stream, and at most two more chunks of
    each partition.

    The partition whose unread rows are the newest is read next. So whatever was read of a partition before its last
    chunk is newer than all that is unread, and counts.
    """
    extent = reader.extent()
    heap = [(-math.inf, partition, end) for partition, end in enumerate(extent.nexts) if end > extent.starts[partition]]
    last_chunk: Counter[int] = Counter()
    settled, horizon_us = 0, -math.inf
    while heap and settled < limit and -heap[0][0] >= horizon_us:
        _, partition, end = heapq.heappop(heap)
        begin = max(extent.starts[partition], end - CHUNK_ROWS)
        chunk = _columns(reader, partition, begin, end)
        yield chunk
        oldest, newest = pc.min_max(chunk["us"]).as_py().values()
        horizon_us = max(horizon_us, (newest or 0) - lifetime_us)
        settled += last_chunk[partition]
        last_chunk[partition] = chunk.num_rows
        if begin > extent.starts[partition]:
            heapq.heappush(heap, (-(oldest or 0), partition, begin))


def _columns(reader: StreamReader, partition: int, begin: int, end: int) -> pa.Table:
    rows = pa.concat_tables(
        pa.table({"id": batch.column("_id"), "us": batch.column("_ingest_time").cast(pa.int64())})
        for batch in reader.read(partition, begin, end)
    )
    return rows.append_column("at", pa.array(range(key(partition, begin), key(partition, end)), pa.int64()))
