"""The most frequent items: `TopK`, based on the Misra-Gries algorithm. True counts are always within the bounds.

The implementation in the `datasketches` package writes its items in the order of its hash table. This order changes
when the sketch is read back, so the same counts can produce different bytes. This implementation uses a dict and writes
the items in sorted order.
"""

from __future__ import annotations

import math
import struct
from operator import itemgetter
from typing import Any, Self

from penstock.sketches.base import Estimate, Item, Sketch, damaged
from penstock.sketches.items import Kind, kind_of, read_items, require_fit, write_items

_FAMILY = 10
_EMPTY = 5
_HEAD = struct.Struct("<6BH")
_COUNTS = struct.Struct("<IIqq")
LG_SIZE_MIN, LG_SIZE_MAX = 3, 20
LOAD = 0.75


class TopK(Sketch):
    """The most frequent items of one type, `str` or `int`, out of any number of distinct items.

    It has room for `size` counters, rounded up to three quarters of a power of two. When all counters are in use, their
    median is subtracted from each counter, and counters that reach zero are removed. So a count is too low by at most
    the sum of the subtracted values, which is below 3.5 / (that power of two) of the total. Every item with a larger
    share is included.
    """

    format = "DataSketches frequent items (strings or longs)"

    def __init__(self, size: int = 192, of: type[str] | type[int] | Kind = str) -> None:
        lg_size = max(LG_SIZE_MIN, math.ceil(math.log2(size / LOAD))) if size > 0 else 0
        if not LG_SIZE_MIN <= lg_size <= LG_SIZE_MAX:
            raise ValueError(f"size must be from 1 to {int(LOAD * (1 << LG_SIZE_MAX)):,}, not {size}")
        self._start(lg_size, kind_of(of))

    def _start(self, lg_size: int, of: Kind) -> None:
        self._lg_size, self.of = lg_size, of
        self.size = int(LOAD * (1 << lg_size))
        self.total = 0
        self.error = 0
        """The maximum amount by which a count can be too low."""
        self._counts: dict[Any, int] = {}

    def add(self, item: Item, weight: int = 1) -> None:
        if weight < 1:
            raise ValueError(f"a weight must be 1 or more, not {weight}")
        counts = self._counts
        known = counts.get(item)
        if known is None:
            require_fit(item, self.of)
            known = 0
        counts[item] = known + weight
        self.total += weight
        if len(counts) > self.size:
            self._make_room()

    def _make_room(self) -> None:
        """Remove the sketch's counters at or below the median (at least half of all counters), and subtract the median
        from the others."""
        values = sorted(self._counts.values())
        median = values[len(values) // 2]
        self._counts = {item: count - median for item, count in self._counts.items() if count > median}
        self.error += median

    def merge(self, other: TopK) -> None:
        if self.of != other.of:
            raise ValueError(
                f"one sketch has items of type {self.of}, but the other sketch has items of type {other.of}"
            )
        for item, count in other._counts.items():
            self._counts[item] = self._counts.get(item, 0) + count
        self.total += other.total
        self.error += other.error
        while len(self._counts) > self.size:
            self._make_room()

    def count(self, item: Item) -> Estimate:
        """Return how often an item was added to the sketch."""
        known = self._counts.get(item, 0)
        return Estimate(known + self.error if known else 0, known, known + self.error)

    def top(self, number: int = 10) -> list[tuple[Any, Estimate]]:
        """Return the items with the highest counts. Items with equal counts are sorted by the items themselves."""
        ranked = sorted(sorted(self._counts.items()), key=itemgetter(1), reverse=True)
        return [(item, self.count(item)) for item, _ in ranked[:number]]

    def certain(self, share: float) -> list[Any]:
        """Return the items each of which certainly makes up at least this share of the total."""
        return [item for item, count in self.top(self.size) if count.low >= share * self.total]

    @property
    def size_bytes_max(self) -> int:
        return 32 + self.size * (8 + self.of.bytes_max)

    def to_bytes(self) -> bytes:
        if not self.total:
            return _HEAD.pack(1, 1, _FAMILY, self._lg_size, LG_SIZE_MIN, _EMPTY, 0)
        items = sorted(self._counts)
        room = next(lg for lg in range(LG_SIZE_MIN, LG_SIZE_MAX + 1) if LOAD * (1 << lg) >= len(items))
        return b"".join(
            (
                _HEAD.pack(4, 1, _FAMILY, self._lg_size, room, 0, 0),
                _COUNTS.pack(len(items), 0, self.total, self.error),
                struct.pack(f"<{len(items)}q", *map(self._counts.__getitem__, items)),
                write_items(items, self.of),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, of: type[str] | type[int] | Kind = str) -> Self:
        top_k = cls.__new__(cls)
        try:
            longs, version, family, lg_size, _, _, _ = _HEAD.unpack_from(data)
            if family != _FAMILY or version != 1 or not LG_SIZE_MIN <= lg_size <= LG_SIZE_MAX:
                raise damaged("frequent items sketch", f"family {family}, version {version}, size 2^{lg_size}")
            top_k._start(lg_size, kind_of(of))
            if longs > 1:
                top_k._read(data)
        except struct.error as error:
            raise damaged("frequent items sketch", str(error)) from error
        return top_k

    def _read(self, data: bytes) -> None:
        number, _, self.total, self.error = _COUNTS.unpack_from(data, 8)
        if number > self.size:
            raise damaged("frequent items sketch", f"{number} counters of {self.size}")
        counts = struct.unpack_from(f"<{number}q", data, 32)
        items, _ = read_items(data, 32 + 8 * number, number, self.of)
        self._counts = dict(zip(items, counts, strict=True))
        if len(self._counts) < number or min(counts, default=1) < 1:
            raise damaged("frequent items sketch", "an item has two counters, or a counter below 1")
        if self.error < 0 or self.total < sum(counts):
            raise damaged(
                "frequent items sketch",
                f"its error is {self.error}, and its total is {self.total} for {sum(counts)} items",
            )

    def _outside(self) -> dict[str, Any]:
        return {"of": self.of.value}

    def _details(self) -> dict[str, Any]:
        return {"total": self.total, "top": self.top(3)}
