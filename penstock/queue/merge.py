"""Merging, which combines a stream's small batches into larger, compressed batches.

Without merging, a stream with one event per second would store 86,400 batches per day, each with its own checksum and
its own Arrow message for a few dozen bytes of data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.queue import codec, layout
from penstock.queue.committer import Committer
from penstock.queue.layout import Stored
from penstock.queue.reader import PIECE_BATCHES, Header, StreamFileReader

ROWS_MAX = 10_000
BYTES_MAX = 1024 * 1024
RUN_MIN = 4
"""Minimum number of adjacent batches that are worth merging."""
TAIL_MIN = 128
"""Minimum number of batches in a run at the end of a partition, where the run can still grow.

An event that arrived alone is therefore rewritten at most 80 times before its batch is full, each time together with
127 new events.
"""


class Merger:
    """Merges the batches of a stream, one run per call. Not thread-safe."""

    def __init__(self, committer: Committer, reader: StreamFileReader) -> None:
        self._committer = committer
        self._reader = reader
        self._done = [0] * len(committer.extent.nexts)
        self._next = 0

    def merge(self) -> int:
        """Merge one run of the stream's batches, in the next partition that has a run worth merging.

        Returns the number of batches that this saved; 0 if there was nothing to merge.
        """
        for _ in self._done:
            partition, self._next = self._next, (self._next + 1) % len(self._done)
            run = self._find(partition)
            if run:
                return self._rewrite(partition, run)
        return 0

    def _find(self, partition: int) -> list[Header]:
        """Return the next run of batches that is worth merging. Continues where the last call ended, and reads a
        limited number of headers."""
        begin = max(self._done[partition], self._committer.extent.starts[partition])
        run: list[Header] = []
        rows = size = 0
        for header in self._reader.headers(partition, begin, PIECE_BATCHES):
            while run and not _fits_merged_run(run, header, rows, size):
                if len(run) >= RUN_MIN:
                    return run
                rows, size = rows - run[0].rows, size - run[0].bytes
                self._done[partition] = run.pop(0).end
            if header.is_gap:
                self._done[partition] = header.end
                continue
            run.append(header)
            rows, size = rows + header.rows, size + header.bytes
        return run if len(run) >= TAIL_MIN else []

    def _rewrite(self, partition: int, run: Sequence[Header]) -> int:
        """Rewrite a run of a stream's batches.

        Reading and packing happen in parallel with appends; only replacing the rows blocks them.
        """
        first, end, version = run[0].first, run[-1].end, run[0].version
        parts = [batch for _, _, batch in self._reader.versioned(partition, first, end)]
        whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        newest_us = max(header.ingest_us for header in run)
        rows = list(_compressed_batches(layout.key(partition, first), whole, version, newest_us))
        with self._committer.turn():
            after = self._committer.extent.grown({})
            self._committer.replace(run[0].at, layout.key(partition, end), rows, after)
        return len(run) - len(rows)


def _fits_merged_run(run: Sequence[Header], header: Header, rows: int, size: int) -> bool:
    adjacent = header.version == run[0].version and header.first == run[-1].end and not header.is_gap
    return adjacent and rows + header.rows <= ROWS_MAX and size + header.bytes <= BYTES_MAX


def _compressed_batches(at: int, batch: pa.RecordBatch, version: int, ingest_us: int) -> Iterator[Stored]:
    for rows, data in codec.encode(batch, compressed=True):
        yield layout.stored(at, rows, version, ingest_us, data)
        at += rows
