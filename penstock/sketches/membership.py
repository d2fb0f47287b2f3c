"""Whether an item was seen: `Bloom` never denies one that was, and says how often it claims one that was not."""

from __future__ import annotations

import math
import struct
from typing import Any, Self

from penstock.sketches.base import Estimate, Item, Sketch, damaged, require_same
from penstock.sketches.hashing import MASK64, xxhash64

_FAMILY = 21
_EMPTY = 4
_HEAD, _BITS = struct.Struct("<4BHHQ"), struct.Struct("<IIQ")
BITS_MAX = 1 << 32
HASHES_MAX = 64


class Bloom(Sketch):
    """A Bloom filter for about so many `items`, of which it wrongly claims a share of `rate` that never came. More can
    be added: it takes no more memory, and the rate rises. `false_positive_rate` tells what it is now.

    The `datasketches` package has none for Python; this one has the image and the hashes (XXH64) of those for Java and
    C++. Two can be merged if they were made with the same numbers and seed.
    """

    format = "DataSketches Bloom filter"

    def __init__(self, items: int = 10_000, rate: float = 0.01, seed: int = 0) -> None:
        if items < 1 or not 0 < rate < 1:
            raise ValueError(f"a filter is for 1 item or more at a rate between 0 and 1, not {items} at {rate}")
        bits = math.ceil(-items * math.log(rate) / math.log(2) ** 2)
        self._start(bits, min(HASHES_MAX, max(1, round(bits / items * math.log(2)))), seed)

    def _start(self, bits: int, hashes: int, seed: int) -> None:
        if bits > BITS_MAX:
            raise ValueError(f"a filter has at most {BITS_MAX:,} bits, not {bits:,}")
        self.bits, self.hashes, self.seed = -(-bits // 64) * 64, hashes, seed & MASK64
        self._table = bytearray()
        """Made when the first item comes: the image of an empty filter has a few bytes, whatever its size."""
        self.bits_set = 0

    def _made(self) -> bytearray:
        """The table, with its memory."""
        if not self._table:
            self._table = bytearray(self.bits // 8)
        return self._table

    def add(self, item: Item) -> bool:
        """Note an item; returns whether it was there already, for all the filter knows. The empty text is not kept."""
        table, there = self._table or self._made(), True
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
        data = item.encode() if isinstance(item, str) else item.to_bytes(8, "little", signed=True)
        if not data:
            return []
        first = xxhash64(data, self.seed)
        second, bits = xxhash64(data, first), self.bits
        return [((first + number * second & MASK64) >> 1) % bits for number in range(1, self.hashes + 1)]

    @property
    def false_positive_rate(self) -> float:
        """The probability that an item which never came is claimed: that all of its bits are set by others."""
        return float((self.bits_set / self.bits) ** self.hashes)

    def count(self) -> Estimate:
        """About how many different items were added, within three standard deviations."""
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
        made = cls.__new__(cls)
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
        made._start(64 * words, hashes, seed)
        if full:
            made._table = bytearray(data[32 : 32 + 8 * words])
            made.bits_set = int.from_bytes(made._table, "little").bit_count()
        return made

    def _told(self) -> dict[str, Any]:
        return {"count": self.count(), "false_positive_rate": self.false_positive_rate}
