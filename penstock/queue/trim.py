"""Retention, which drops a stream's oldest batches."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import msgspec

from penstock.core.contracts import Retention
from penstock.queue import layout
from penstock.queue.committer import Committer
from penstock.queue.layout import Extent
from penstock.queue.reader import Header, StreamFileReader

TRIM_BATCHES = 20_000
"""Maximum number of batches that one call drops, so that appends never have to wait for long."""
SCAN_BATCHES = 1_000
GIVE_BACK_PAGES = 2_048
"""Maximum number of free pages that one call returns to the disk: 8 MiB, about 40 ms."""
FREE_SHARE = 4
"""The file is truncated when more than one page in every `FREE_SHARE` pages is free. Otherwise, the free space is left
for the next appends.
"""


def trim(committer: Committer, reader: StreamFileReader, retention: Retention) -> dict[int, int]:
    """Drop a limited number of a stream's expired batches, and return the new starts. Only one maintenance call per
    stream can run at a time."""
    starts = _new_starts(committer, reader, retention)
    with committer.turn():
        if starts != committer.extent.starts:
            after = msgspec.structs.replace(committer.extent.grown({}), starts=starts)
            committer.transact(after, lambda connection: _delete_batches_below(connection, starts))
        free, pages = reader.free_pages()
        if free * FREE_SHARE > pages:
            committer.give_back(GIVE_BACK_PAGES)
    return dict(enumerate(starts))


def _delete_batches_below(connection: sqlite3.Connection, starts: list[int]) -> None:
    for partition, start in enumerate(starts):
        span = (layout.key(partition, 0), layout.key(partition, start))
        connection.execute("DELETE FROM batches WHERE at >= ? AND at < ?", span)


def _new_starts(committer: Committer, reader: StreamFileReader, retention: Retention) -> list[int]:
    """Return the new start of each partition. The oldest batch across all partitions is examined first."""
    extent = committer.extent
    starts = list(extent.starts)
    cutoff_us = committer.terms.now_us() - retention.age // timedelta(microseconds=1)
    excess = reader.size_bytes() - retention.size_bytes
    queues = [_oldest_batches_first(reader, extent, partition) for partition in range(len(starts))]
    heap = [(header.ingest_us, header) for queue in queues if (header := next(queue, None))]
    heapq.heapify(heap)
    for _ in range(TRIM_BATCHES):
        if not heap:
            break
        ingest_us, header = heapq.heappop(heap)
        needed = header.end > retention.floor.get(header.partition, header.end)
        if needed or (ingest_us >= cutoff_us and excess <= 0):
            continue
        starts[header.partition] = header.end
        excess -= header.bytes
        following = next(queues[header.partition], None)
        if following is not None:
            heapq.heappush(heap, (following.ingest_us, following))
    return starts


def _oldest_batches_first(reader: StreamFileReader, extent: Extent, partition: int) -> Iterator[Header]:
    """Yield the stored batches of a partition. A batch is yielded when the next batch or the extent has confirmed its
    end."""
    start, end = extent.starts[partition], extent.nexts[partition]
    while start < end:
        headers = reader.headers(partition, start, SCAN_BATCHES)
        for header, following in pairwise(headers):
            if header.first != start or header.end != following.first:
                return
            yield header
            start = header.end
        if len(headers) < SCAN_BATCHES:
            if headers and headers[-1].end == end:
                yield headers[-1]
            return
