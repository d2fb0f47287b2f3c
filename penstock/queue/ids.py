"""The event ids that a stream remembers, so that an event that is sent twice is taken once.

The ids are in the stream's batches, as the column `_id`, so they are durable with their events by themselves. The
index here is only memory: a writer that starts reads it back from the newest batches, and nothing on disk can
disagree with the log. An event that retention has dropped is no longer known after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

MARKS = 256
"""Ids that came within this part of the lifetime share one mark: they are forgotten together, with the last of them."""


@dataclass
class _Mark:
    first_us: int
    last_us: int
    count: int


@dataclass
class Sifted:
    """Batches without their duplicates. `kept` leaves out batches that have no other rows."""

    kept: dict[int, pa.RecordBatch]
    duplicates: dict[int, list[int]]
    fresh: list[str]


class RecentIds:
    """The last `limit` ids, none much older than `lifetime_us`. About 150 bytes each. One thread at a time.

    Age is measured by ingest times, from the newest event on: the wall clock has no part in it.
    """

    def __init__(self, limit: int, lifetime_us: int) -> None:
        self.limit = limit
        self.lifetime_us = lifetime_us
        self._known: set[str] = set()
        self._order: deque[str] = deque()
        self._marks: deque[_Mark] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def sift(self, batches: Mapping[int, pa.RecordBatch], newest_us: int) -> Sifted:
        """Part the rows whose id is known, or stands in an earlier row, from the fresh ones. `newest_us` is their
        ingest time, by which others are too old. Remembers nothing yet."""
        self._forget_before(newest_us - self.lifetime_us)
        sifted = Sifted({}, {}, [])
        taken: set[str] = set()
        for partition, batch in batches.items():
            ids = batch.column("_id").to_pylist()
            repeated = self._repeated(ids, taken)
            sifted.duplicates[partition] = repeated
            if len(repeated) == len(ids):
                continue
            out = set(repeated)
            rows = [row for row in range(len(ids)) if row not in out] if out else range(len(ids))
            sifted.kept[partition] = batch.take(pa.array(rows, pa.int64())) if out else batch
            sifted.fresh += [ids[row] for row in rows if ids[row] is not None]
        return sifted

    def _repeated(self, ids: list[str | None], taken: set[str]) -> list[int]:
        """The rows of duplicates; the ids of the others join `taken`. Null is nobody's duplicate."""
        distinct = {each for each in ids if each is not None}
        if (
            len(distinct) + ids.count(None) == len(ids)
            and distinct.isdisjoint(self._known)
            and distinct.isdisjoint(taken)
        ):
            taken |= distinct
            return []
        repeated = []
        for row, each in enumerate(ids):
            if each is None:
                continue
            if each in self._known or each in taken:
                repeated.append(row)
            taken.add(each)
        return repeated

    def add(self, ids: Iterable[str], ingest_us: int) -> None:
        """Remember ids, known ones aside. Called once their events are durable."""
        ids = [each for each in ids if each not in self._known]
        if not ids:
            return
        self._known.update(ids)
        self._order.extend(ids)
        mark = self._marks[-1] if self._marks else None
        if mark is not None and ingest_us - mark.first_us <= self.lifetime_us // MARKS:
            mark.last_us, mark.count = max(mark.last_us, ingest_us), mark.count + len(ids)
        else:
            self._marks.append(_Mark(ingest_us, ingest_us, len(ids)))
        self._drop(len(self._order) - self.limit)

    def _forget_before(self, horizon_us: int) -> None:
        while self._marks and self._marks[0].last_us < horizon_us:
            self._drop(self._marks[0].count)

    def _drop(self, count: int) -> None:
        if count <= 0:
            return
        self._known.difference_update([self._order.popleft() for _ in range(count)])
        while count:
            mark = self._marks[0]
            part = min(count, mark.count)
            mark.count -= part
            count -= part
            if mark.count == 0:
                self._marks.popleft()
