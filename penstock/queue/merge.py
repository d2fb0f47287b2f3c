"""Merging of one stream: runs of small batches become larger, compressed ones.

A stream of one event a second would else keep 86,400 batches a day, each with its own checksum and its own message
around a few dozen bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.queue import codec, layout
from penstock.queue.committer import Committer
from penstock.queue.layout import Stored
from penstock.queue.reader import PIECE_BATCHES, Header, StreamReader

ROWS_MAX = 10_000
BYTES_MAX = 1024 * 1024
RUN_MIN = 4
"""Fewer adjacent batches than this are large enough as they are."""
TAIL_MIN = 128
"""At the end of a partition, where a run can still grow, it is merged when it has this many batches. So an event that
came alone is rewritten 80 times at most until its batch is full, each time together with 127 new ones."""


class Merger:
    """Merges a stream, one run for each call. One call at a time."""

    def __init__(self, committer: Committer, reader: StreamReader) -> None:
        self._committer = committer
        self._reader = reader
        self._done = [0] * len(committer.extent.nexts)
        self._next = 0

    def merge(self) -> int:
        """Merge one run, of the partition whose turn it is, or of the next that has one. Returns how many batches
        fewer there are; 0 if there was nothing to do in any partition."""
        for _ in self._done:
            partition, self._next = self._next, (self._next + 1) % len(self._done)
            run = self._find(partition)
            if run:
                return self._rewrite(partition, run)
        return 0

    def _find(self, partition: int) -> list[Header]:
        """The next run that is worth merging. Looks at a bounded number of batches, from where it last ended."""
        begin = max(self._done[partition], self._committer.extent.starts[partition])
        run: list[Header] = []
        rows = size = 0
        for header in self._reader.headers(partition, begin, PIECE_BATCHES):
            while run and not _fits(run, header, rows, size):
                if len(run) >= RUN_MIN:
                    return run
                rows, size = rows - run[0].rows, size - run[0].bytes
                self._done[partition] = run.pop(0).end
            run.append(header)
            rows, size = rows + header.rows, size + header.bytes
        return run if len(run) >= TAIL_MIN else []

    def _rewrite(self, partition: int, run: Sequence[Header]) -> int:
        """Reading and packing happen beside appends; only the exchange of the rows holds them up."""
        first, end, version = run[0].first, run[-1].end, run[0].version
        parts = [batch for _, batch in self._reader.versioned(partition, first, end)]
        whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        newest_us = max(header.ingest_us for header in run)
        rows = list(_pack(layout.key(partition, first), whole, version, newest_us))
        with self._committer.turn():
            after = self._committer.extent.grown({})
            self._committer.replace(run[0].at, layout.key(partition, end), rows, after)
        return len(run) - len(rows)


def _fits(run: Sequence[Header], header: Header, rows: int, size: int) -> bool:
    same = header.version == run[0].version and header.first == run[-1].end
    return same and rows + header.rows <= ROWS_MAX and size + header.bytes <= BYTES_MAX


def _pack(at: int, batch: pa.RecordBatch, version: int, ingest_us: int) -> Iterator[Stored]:
    for rows, data in codec.encode(batch, compressed=True):
        yield layout.stored(at, rows, version, ingest_us, data)
        at += rows
