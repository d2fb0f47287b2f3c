"""Set membership: `Bloom` has no false negatives, and computes its false positive rate."""

from __future__ import annotations

import math
import struct
from typing import Any, Self

from penstock.sketches.base import Estimate, Item, Sketch, damaged, require_same
from penstock.sketches.hashing import MASK64, xxhash64
from penstock.sketches.items import require_hashable

_FAMILY = 21
_EMPTY = 4
_HEAD, _BITS = struct.Struct("<4BHHQ"), struct.Struct("<IIQ")
BITS_MAX = 1 << 32
HASHES_MAX = 64


class Bloom(Sketch):
    """A Bloom filter for about `items` items, with a false positive rate of `rate`. If you add more items than that,
    the filter does not need more memory, but the rate increases. `false_positive_rate` returns the current rate.

    The `datasketches` package has no Bloom filter for Python. This class uses the same image and hashes (XXH64) as the
    filters for Java and C++. Two filters can be merged if they were created with the same parameters.
    """

    format = "DataSketches Bloom filter"

    def __init__(self, items: int = 10_000, rate: float = 0.01, seed: int = 0) -> None:
        if items < 1 or not 0 < rate < 1:
            raise ValueError(f"a filter needs at least 1 item and a rate between 0 and 1, not {items} and {rate}")
        bits = math.ceil(-items * math.log(rate) / math.log(2) ** 2)
        self._start(bits, min(HASHES_MAX, max(1, round(bits / items * math.log(2)))), seed)

    def _start(self, bits: int, hashes: int, seed: int) -> None:
        if bits > BITS_MAX:
            raise ValueError(f"a filter can have at most {BITS_MAX:,} bits, not {bits:,}")
        self.bits, self.hashes, self.seed = -(-bits // 64) * 64, hashes, seed & MASK64
        self._table = bytearray()
        """The bits of the filter, allocated when the first item is added: the image of an empty filter has only a few
        bytes, whatever the size of the filter."""
        self.bits_set = 0

    def _allocated(self) -> bytearray:
        """Return the Bloom filter's table, and allocate it if needed."""
        if not self._table:
            self._table = bytearray(self.bits // 8)
        return self._table

    def add(self, item: Item) -> bool:
        """Add an item to the Bloom filter. Returns whether it had probably already been added. An empty string is not
        added."""
        table, there = self._table or self._allocated(), True
        for place in self._places(item):
            mask = 1 << (place & 7)
            if not table[place >> 3] & mask:
                table[place >> 3] |= mask
                self.bits_set += 1
                there = False
        return there

    def __contains__(self, item: Item) -> bool:
        table = self._table
        places = self._places(item)
        return bool(places) and bool(table) and all(table[place >> 3] >> (place & 7) & 1 for place in places)

    def _places(self, item: Item) -> list[int]:
        if isinstance(item, str):
            data = item.encode()
        else:
            require_hashable(item)
            data = item.to_bytes(8, "little", signed=True)
        if not data:
            return []
        first = xxhash64(data, self.seed)
        second, bits = xxhash64(data, first), self.bits
        return [((first + number * second & MASK64) >> 1) % bits for number in range(1, self.hashes + 1)]

    @property
    def false_positive_rate(self) -> float:
        """The probability that the filter claims to contain an item that was never added, because all of its bits were
        set by other items."""
        return float((self.bits_set / self.bits) ** self.hashes)

    def count(self) -> Estimate:
        """Return the approximate number of distinct items, with bounds of three standard deviations."""
        free = max(self.bits - self.bits_set, 1)
        per = self.bits / self.hashes
        value, load = per * math.log(self.bits / free), self.hashes / self.bits
        spread = 3 * math.sqrt(self.bits * max(0.0, math.expm1(load * value) - load * value)) / self.hashes + 1
        return Estimate(value, max(0.0, value - spread), value + spread, 0.9973)

    def merge(self, other: Bloom) -> None:
        mine, others = (self.bits, self.hashes, self.seed), (other.bits, other.hashes, other.seed)
        require_same("filters", parameters=(mine, others))
        if not other.bits_set:
            return
        both = int.from_bytes(self._table, "little") | int.from_bytes(other._table, "little")
        self._table = bytearray(both.to_bytes(self.bits // 8, "little"))
        self.bits_set = both.bit_count()

    @property
    def size_bytes_max(self) -> int:
        return 32 + self.bits // 8

    def to_bytes(self) -> bytes:
        words = self.bits // 64
        if not self.bits_set:
            return _HEAD.pack(3, 1, _FAMILY, _EMPTY, self.hashes, 0, self.seed) + struct.pack("<II", words, 0)
        head = _HEAD.pack(4, 1, _FAMILY, 0, self.hashes, 0, self.seed)
        return head + _BITS.pack(words, 0, self.bits_set) + bytes(self._table)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        bloom = cls.__new__(cls)
        try:
            _, version, family, flags, hashes, _, seed = _HEAD.unpack_from(data)
            (words,) = struct.unpack_from("<I", data, 16)
        except struct.error as error:
            raise damaged("Bloom filter", str(error)) from error
        if family != _FAMILY or version != 1 or not words or not 1 <= hashes <= HASHES_MAX:
            raise damaged("Bloom filter", f"family {family}, version {version}, {words} words, {hashes} hashes")
        full = not flags & _EMPTY
        if full and len(data) < 32 + 8 * words:
            raise damaged("Bloom filter", f"{len(data)} bytes for {words} words")
        bloom._start(64 * words, hashes, seed)
        if full:
            bloom._table = bytearray(data[32 : 32 + 8 * words])
            bloom.bits_set = int.from_bytes(bloom._table, "little").bit_count()
        return bloom

    def _details(self) -> dict[str, Any]:
        return {"count": self.count(), "false_positive_rate": self.false_positive_rate}
