"""The event ids that a stream remembers, so that an event sent twice is stored once.

The ids are stored in the column `_id` of the stream's batches, so they become durable with their events. The index in
this module is only in memory. A writer rebuilds it from the newest batches when it starts, so there is no data on disk
that could disagree with the log. The ids of events deleted by retention are then no longer known.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import pyarrow as pa

MARKS = 256
"""Number of equal parts that the lifetime is divided into. The ids in one part share a mark, and are deleted together
when the last of them expires."""

ASCII_CHARS_MAX, OTHER_CHARS_MAX = 96, 16
"""Maximum length in characters of an id that is kept unchanged, for ASCII ids and for other ids. The second limit is
lower because a single character that is not ASCII can make each character of the id take four bytes. Longer ids are
kept as digests."""
_SECRET = secrets.token_bytes(32)
"""Makes digests unpredictable, so that nobody can prepare ids with the same digest. Digests never leave the process."""


def short_ids(ids: Sequence[str | None]) -> Sequence[str | None]:
    """Return event ids in the form in which they are remembered: each long id is replaced by a digest of 128 bits.

    The result depends only on the id, so that a repeated id is always found. The probability that any two of 10^12 ids
    have the same digest, or that an id is equal to the digest of another id, is below 10^-14.
    """
    texts = [text for text in ids if text is not None]
    longest = max(map(len, texts), default=0)
    if longest <= OTHER_CHARS_MAX or (longest <= ASCII_CHARS_MAX and "".join(texts).isascii()):
        return ids
    return [text if text is None or _is_short_id(text) else _id_digest(text) for text in ids]


def _is_short_id(text: str) -> bool:
    return len(text) <= (ASCII_CHARS_MAX if text.isascii() else OTHER_CHARS_MAX)


def _id_digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16, key=_SECRET).hexdigest()


@dataclass
class _Mark:
    first_us: int
    last_us: int
    count: int


@dataclass
class Sifted:
    """A stream's batches with duplicate events removed. `kept` contains only batches that still have rows.

    `duplicates` contains the removed rows, and `originals` contains the position of the original event for each of
    them. `fresh` contains the new ids, as `short_ids` returns them, with the positions of their events.
    """

    kept: dict[int, pa.RecordBatch]
    duplicates: dict[int, list[int]]
    originals: dict[int, list[int]]
    fresh: dict[str, int]


class RecentIds:
    """A stream's last `limit` event ids that are not much older than `lifetime_us`, each with the position of its
    event.

    Not thread-safe. A position is a partition and an offset combined into one number, as in the file. An id takes about
    150 bytes, and at most 250. The age of an id is measured in ingest time relative to the newest event; the wall clock
    is not used.
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

    def sift(
        self, batches: Mapping[int, pa.RecordBatch], positions: Mapping[int, Sequence[int]], newest_us: int
    ) -> Sifted:
        """Separate duplicates, which are events whose id is known or occurs in an earlier row, from new events. Does
        not remember new ids.

        `positions` contains, for each partition, the positions that its next events will get. Known ids that are too
        old compared with `newest_us`, the newest ingest time of the rows, are deleted.
        """
        self._forget_before(newest_us - self.lifetime_us)
        sifted = Sifted({}, {}, {}, {})
        for partition, batch in batches.items():
            ids = short_ids(batch.column("_id").to_pylist())
            repeated, originals = self._repeated(ids, positions[partition], sifted.fresh)
            sifted.duplicates[partition], sifted.originals[partition] = repeated, originals
            if not repeated:
                sifted.kept[partition] = batch
            elif len(repeated) < len(ids):
                rows = sorted(set(range(len(ids))).difference(repeated))
                sifted.kept[partition] = batch.take(pa.array(rows, pa.int64()))
        return sifted

    def _repeated(
        self, ids: Sequence[str | None], positions: Sequence[int], fresh: dict[str, int]
    ) -> tuple[list[int], list[int]]:
        """Return the row numbers of duplicate events, and the positions of the events that they repeat. An event
        without an id is never a duplicate.

        The ids of the other events are added to `fresh` with the events' positions. Each of these events, in order,
        gets the next position from `positions`.
        """
        distinct = {event_id for event_id in ids if event_id is not None}
        if not distinct:
            return [], []
        if len(distinct) == len(ids) and self._known.keys().isdisjoint(distinct) and fresh.keys().isdisjoint(distinct):
            fresh.update(zip(ids, positions, strict=False))  # type: ignore[arg-type]
            return [], []
        repeated, originals, taken = [], [], 0
        for row, event_id in enumerate(ids):
            known = None if event_id is None else self._known.get(event_id, fresh.get(event_id))
            if known is not None:
                repeated.append(row)
                originals.append(known)
                continue
            if event_id is not None:
                fresh[event_id] = positions[taken]
            taken += 1
        return repeated, originals

    def add(self, positions: Mapping[str, int], ingest_us: int) -> None:
        """Remember new event ids, as `short_ids` returns them, and their positions, ignoring known ids. Called once
        their events are durable."""
        if not self._known.keys().isdisjoint(positions):
            positions = {event_id: position for event_id, position in positions.items() if event_id not in self._known}
        if not positions:
            return
        self._known.update(positions)
        self._order.extend(positions)
        mark = self._marks[-1] if self._marks else None
        if mark is not None and ingest_us - mark.first_us <= self.mark_us:
            mark.last_us, mark.count = max(mark.last_us, ingest_us), mark.count + len(positions)
        else:
            self._marks.append(_Mark(ingest_us, ingest_us, len(positions)))
        self._drop(len(self._order) - self.limit)

    def add_older(self, ids: Sequence[str], positions: list[int], first_us: int, last_us: int) -> None:
        """Remember event ids, as `short_ids` returns them, that are older than all known ids, as long as there is room.
        `ids` is sorted oldest first.

        If an id occurs twice, or is already known, its latest position is used.
        """
        older = dict(zip(reversed(ids), reversed(positions), strict=True))
        if len(older) < len(ids) or not self._known.keys().isdisjoint(older):
            older = {
                event_id: position
                for event_id, position in zip(ids, positions, strict=True)
                if event_id not in self._known
            }
            older = {event_id: older[event_id] for event_id in reversed(ids) if event_id in older}
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
        deque(map(self._known.pop, oldest), 0)  # takes half as long as a loop
        while count:
            mark = self._marks[0]
            part = min(count, mark.count)
            mark.count -= part
            count -= part
            if mark.count == 0:
                self._marks.popleft()
