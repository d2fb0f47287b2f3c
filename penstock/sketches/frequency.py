"""Frequencies: `CountMin` for any item and for joins, `RangeCounts` for ranges of integers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import datasketches
import msgspec
import numpy
from numpy.typing import NDArray

from penstock.sketches.base import Estimate, Item, Sketch, around, damaged, require_same
from penstock.sketches.images import COUNTERS_MAX, WEIGHT_MAX, check_count_min
from penstock.sketches.items import require_hashable

_TABLE_AT = 24
HASHES_MAX = 127
BITS_MAX = 62
"""Maximum number of bits in the numbers of range counts."""


class CountMin(Sketch):
    """A count-min sketch, which counts items. A count is never too low, and is too high by at most `error` times the
    total. The confidence applies to each query separately. Unlike `TopK`, this sketch has a count for every item and
    can estimate join sizes, but it cannot list items."""

    format = "DataSketches count-min"

    def __init__(self, error: float = 0.01, confidence: float = 0.99) -> None:
        if not 0 < error < 1 or not 0 < confidence < 1:
            raise ValueError(f"error and confidence must be between 0 and 1, not {error} and {confidence}")
        buckets = max(3, datasketches.count_min_sketch.suggest_num_buckets(error))
        hashes = datasketches.count_min_sketch.suggest_num_hashes(confidence)
        self._sketch = datasketches.count_min_sketch(hashes, buckets)

    @property
    def error(self) -> float:
        return float(math.e / self._sketch.num_buckets)

    @property
    def confidence(self) -> float:
        return 1 - math.exp(-self._sketch.num_hashes)

    @property
    def total(self) -> int:
        return int(self._sketch.total_weight)

    def add(self, item: Item, weight: int = 1) -> None:
        """Add an item to the sketch. An empty string is not counted."""
        if weight < 1:
            raise ValueError(f"a weight must be 1 or more, not {weight}")
        if type(item) is not str:
            require_hashable(item)
        self._require_room(weight)
        # With an integer as the weight, the package would read the string "08" as the integer 8.
        self._sketch.update(item, float(weight))

    def count(self, item: Item) -> Estimate:
        """Return how often an item was added to the sketch."""
        if type(item) is not str:
            require_hashable(item)
        return self._bounded(self._sketch.get_estimate(item), self.error * self.total)

    def inner(self, other: CountMin) -> Estimate:
        """Return the inner product of two sketches: the sum over all items of the item's count in this sketch times its
        count in the other. This is the number of rows that a join of the two streams would have."""
        self._require_same(other)
        products = (self._table() * other._table()).sum(axis=1)
        return self._bounded(products.min(), self.error * self.total * other.total)

    def _bounded(self, value: float, error: float) -> Estimate:
        exact = value == 0
        return Estimate(value, max(0.0, math.floor(value - error)), value, 1.0 if exact else self.confidence)

    def _table(self) -> NDArray[numpy.float64]:
        """Return the sketch's counters, with one row for each hash."""
        shape = self._sketch.num_hashes, self._sketch.num_buckets
        if self._sketch.is_empty():
            return numpy.zeros(shape)
        return numpy.frombuffer(self._sketch.serialize(), "<f8", offset=_TABLE_AT).reshape(shape)

    def merge(self, other: CountMin) -> None:
        self._require_same(other)
        self._require_room(other.total)
        self._sketch.merge(other._sketch if other is not self else other.copy()._sketch)

    def _require_room(self, weight: int) -> None:
        """Raise ValueError if the total weight would be too large. The counters are floats: beyond the limit, adding 1
        would change nothing, so counts would be too low."""
        if self.total + weight > WEIGHT_MAX:
            raise ValueError(f"the total weight of a count-min sketch can be at most {WEIGHT_MAX:,}")

    def _require_same(self, other: CountMin) -> None:
        mine, others = self._sketch, other._sketch
        require_same("count-min sketches", error=(mine.num_buckets, others.num_buckets),
                     confidence=(mine.num_hashes, others.num_hashes))  # fmt: skip

    @property
    def size_bytes_max(self) -> int:
        return int(_TABLE_AT + 8 * self._sketch.num_hashes * self._sketch.num_buckets)

    def to_bytes(self) -> bytes:
        return bytes(self._sketch.serialize())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        check_count_min(data)
        count_min = cls.__new__(cls)
        try:
            count_min._sketch = datasketches.count_min_sketch.deserialize(data)
        except Exception as error:
            raise damaged("count-min sketch", str(error)) from error
        return count_min

    def _details(self) -> dict[str, Any]:
        return {"total": self.total, "error": self.error, "confidence": self.confidence}


class RangeCounts(Sketch):
    """A sketch that counts integers from 0 to 2^`bits`-1 by range.

    For each power of two, it has a count-min sketch, which counts numbers by the aligned interval of that size that
    contains them. A range consists of at most two intervals of each size, and each interval can make a result too high
    by at most `error` times the total.
    """

    format = "Penstock (DataSketches count-min for each size)"

    def __init__(self, bits: int = 16, error: float = 0.01, confidence: float = 0.99) -> None:
        if not 1 <= bits <= BITS_MAX:
            raise ValueError(f"bits must be from 1 to {BITS_MAX}, not {bits}")
        self.bits = bits
        self._sizes = [CountMin(error, confidence) for _ in range(bits)]

    @property
    def total(self) -> int:
        return self._sizes[0].total

    def add(self, number: int, weight: int = 1) -> None:
        if not 0 <= number < 1 << self.bits:
            raise ValueError(f"a number must be from 0 to {(1 << self.bits) - 1:,}, not {number}")
        for size, counts in enumerate(self._sizes):
            counts.add(number >> size, weight)

    def count(self, low: int, high: int) -> Estimate:
        """Return how many numbers are from `low` to `high`, inclusive."""
        low, high = max(low, 0), min(high, (1 << self.bits) - 1)
        if low == 0 and high == (1 << self.bits) - 1:
            return Estimate(self.total, self.total, self.total)
        parts = [self._sizes[size].count(piece) for size, piece in self._pieces(low, high + 1)]
        doubt = sum(1 - (part.confidence or 0) for part in parts)
        return around(
            min(self.total, sum(part.value for part in parts)),
            sum(part.low for part in parts),
            min(self.total, sum(part.high for part in parts)),
            max(0.0, 1 - doubt),
        )

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the smallest set of pieces that make up a range of integers, each as the exponent of its size and its
        number."""
        while start < end:
            largest = (end - start).bit_length() - 1
            size = min(largest, (start & -start).bit_length() - 1) if start else largest
            yield min(size, self.bits - 1), start >> min(size, self.bits - 1)
            start += 1 << min(size, self.bits - 1)

    def merge(self, other: RangeCounts) -> None:
        require_same("range counts", bits=(self.bits, other.bits))
        for mine, others in zip(self._sizes, other._sizes, strict=True):
            mine.merge(others)

    @property
    def size_bytes_max(self) -> int:
        return sum(count_min.size_bytes_max + 8 for count_min in self._sizes) + 16

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode((1, [count_min.to_bytes() for count_min in self._sizes]))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            version, images = msgspec.msgpack.decode(data, type=tuple[int, list[bytes]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise damaged("range counts", str(error)) from error
        if version != 1 or not 1 <= len(images) <= BITS_MAX:
            raise damaged("range counts", f"version {version}, {len(images)} sizes")
        if sum(map(check_count_min, images)) > max(COUNTERS_MAX, len(data) // 8):
            raise damaged("range counts", f"more than {COUNTERS_MAX} counters in {len(data)} bytes")
        range_counts = cls.__new__(cls)
        range_counts.bits = len(images)
        range_counts._sizes = [CountMin.from_bytes(image) for image in images]
        if len({(count_min.total, count_min.size_bytes_max) for count_min in range_counts._sizes}) > 1:
            raise damaged("range counts", "its sizes do not contain the same numbers")
        return range_counts

    def _details(self) -> dict[str, Any]:
        return {"total": self.total, "bits": self.bits}
