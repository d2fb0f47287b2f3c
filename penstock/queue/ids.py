"""The event ids that a stream remembers, so that an event that is sent twice is taken once.

The ids are in the stream's batches, as the column `_id`, so they are durable with their events by themselves. The
index here is only memory: a writer that starts reads it back from the newest batches, and nothing on disk can
disagree with the log. An event that retention has dropped is no longer known after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

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
    """Batches without their duplicates. `kept` leaves out batches that have no other rows. `duplicates` has the rows
    that were left out, `originals` the place of the event that each of them repeats, `fresh` the ids that are new, with
    the places that their events get."""

    kept: dict[int, pa.RecordBatch]
    duplicates: dict[int, list[int]]
    originals: dict[int, list[int]]
    fresh: dict[str, int]


class RecentIds:
    """The last `limit` ids, none much older than `lifetime_us`, each with the place of its event: partition and offset
    in one number, as the file has them. About 150 bytes each. One thread at a time.

    Age is measured by ingest times, from the newest event on: the wall clock has no part in it.
    """

    def __init__(self, limit: int, lifetime_us: int) -> None:
        self.limit = limit
        self.lifetime_us = lifetime_us
        self.mark_us = lifetime_us // MARKS
        self._known: dict[str, int] = {}
        self._order: deque[str] = deque()
        self._marks: deque[_Mark] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def sift(self, batches: Mapping[int, pa.RecordBatch], places: Mapping[int, int], newest_us: int) -> Sifted:
        """Part the rows whose id is known, or stands in an earlier row, from the fresh ones. `places` has, for each
        partition, the place that its next event gets; `newest_us` is the ingest time of the rows, by which others are
        too old. Remembers nothing yet."""
        self._forget_before(newest_us - self.lifetime_us)
        sifted = Sifted({}, {}, {}, {})
        for partition, batch in batches.items():
            ids = batch.column("_id").to_pylist()
            repeated, originals = self._repeated(ids, places[partition], sifted.fresh)
            sifted.duplicates[partition], sifted.originals[partition] = repeated, originals
            if not repeated:
                sifted.kept[partition] = batch
            elif len(repeated) < len(ids):
                rows = sorted(set(range(len(ids))).difference(repeated))
                sifted.kept[partition] = batch.take(pa.array(rows, pa.int64()))
        return sifted

    def _repeated(self, ids: list[str | None], at: int, fresh: dict[str, int]) -> tuple[list[int], list[int]]:
        """The rows of duplicates, and what they repeat; the ids of the others join `fresh`, with their places from `at`
        on. Null is nobody's duplicate."""
        distinct = {each for each in ids if each is not None}
        if not distinct:
            return [], []
        if len(distinct) == len(ids) and self._known.keys().isdisjoint(distinct) and fresh.keys().isdisjoint(distinct):
            fresh.update(zip(ids, range(at, at + len(ids)), strict=True))  # type: ignore[arg-type]
            return [], []
        repeated, originals = [], []
        for row, each in enumerate(ids):
            known = None if each is None else self._known.get(each, fresh.get(each))
            if known is not None:
                repeated.append(row)
                originals.append(known)
                continue
            if each is not None:
                fresh[each] = at
            at += 1
        return repeated, originals

    def add(self, places: Mapping[str, int], ingest_us: int) -> None:
        """Remember ids and their places, known ones aside. Called once their events are durable."""
        if not self._known.keys().isdisjoint(places):
            places = {each: place for each, place in places.items() if each not in self._known}
        if not places:
            return
        self._known.update(places)
        self._order.extend(places)
        mark = self._marks[-1] if self._marks else None
        if mark is not None and ingest_us - mark.first_us <= self.mark_us:
            mark.last_us, mark.count = max(mark.last_us, ingest_us), mark.count + len(places)
        else:
            self._marks.append(_Mark(ingest_us, ingest_us, len(places)))
        self._drop(len(self._order) - self.limit)

    def add_older(self, ids: list[str], places: list[int], first_us: int, last_us: int) -> None:
        """Remember ids that came before all that are known, while there is room for them. They stand oldest first; of
        one that stands twice, or is known, the latest counts."""
        older = dict(zip(reversed(ids), reversed(places), strict=True))
        if len(older) < len(ids) or not self._known.keys().isdisjoint(older):
            older = {each: place for each, place in zip(ids, places, strict=True) if each not in self._known}
            older = {each: older[each] for each in reversed(ids) if each in older}
        if (room := self.limit - len(self)) < len(older):
            older = dict(islice(older.items(), room))
        if not older:
            return
        self._known.update(older)
        self._order.extendleft(older)
        mark = self._marks[0] if self._marks else None
        if mark is not None and mark.last_us - first_us <= self.mark_us:
            mark.first_us, mark.last_us = min(mark.first_us, first_us), max(mark.last_us, last_us)
            mark.count += len(older)
        else:
            self._marks.appendleft(_Mark(first_us, last_us, len(older)))

    def _forget_before(self, horizon_us: int) -> None:
        while self._marks and self._marks[0].last_us < horizon_us:
            self._drop(self._marks[0].count)

    def _drop(self, count: int) -> None:
        if count <= 0:
            return
        oldest = [self._order.popleft() for _ in range(count)]
        deque(map(self._known.pop, oldest), 0)  # half the time of a loop
        while count:
            mark = self._marks[0]
            part = min(count, mark.count)
            mark.count -= part
            count -= part
            if mark.count == 0:
                self._marks.popleft()
