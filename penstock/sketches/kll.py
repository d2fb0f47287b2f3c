"""Quantiles with bounded rank error, from the KLL algorithm with reproducible coin tosses.

The implementation in the `datasketches` package uses the machine's random numbers, so two runs over the same events
would produce different bytes. This module implements the same algorithm in Python, with coin tosses derived from a seed
and the number of items. Its image has the DataSketches format for doubles, with a byte in the header that marks the
items as doubles. The mark is needed because DataSketches uses the same image for doubles and for integers, and nearly
all positive doubles have the same bits as an integer above 2^52.
"""

from __future__ import annotations

import math
import struct
import sys
from bisect import bisect_left, bisect_right
from itertools import accumulate, islice, pairwise
from typing import Any, Literal, Self

import msgspec

from penstock.sketches.base import Estimate, Sketch, damaged
from penstock.sketches.hashing import coin

K_MIN, K_MAX = 8, 65_535
LEVEL_MIN = 8
CONFIDENCE = 0.99
LEVELS_MAX = 60
_FAMILY = 15
_EMPTY, _SINGLE = 1, 4
_OF_DOUBLES = ord("d")
"""The mark for doubles in the last byte of the header. DataSketches sets this byte to 0 and does not read it."""
_CODES = {"double": "d", "long": "q"}
_LEAST = sys.float_info.min
"""The smallest positive normal double. All integers up to 2^52, when read as doubles, are below it."""
_HEAD, _FULL = struct.Struct("<4BHBB"), struct.Struct("<QHBB")


def level_room(k: int, levels: int, level: int) -> int:
    """Return the capacity of a level of a KLL sketch: k for the top level and, for each lower level, two thirds of the
    capacity of the level above."""
    depth = levels - level - 1
    return max(LEVEL_MIN, ((2 * k << depth) // int(3**depth) + 1) // 2)


def room(k: int, levels: int) -> int:
    return sum(level_room(k, levels, level) for level in range(levels))


def rank_error(k: int) -> float:
    """Return the maximum difference between the requested rank and the rank of the result, as a share of all items,
    with a confidence of 99%. This is the formula that DataSketches publishes for this algorithm."""
    return float(2.296 / k**0.9723)


class Kll(Sketch):
    """Quantiles of numbers. `k` determines the error of the rank: about 1/k for any data, or 1.3% for `k=200`. `seed`
    determines the coin tosses; the error bound holds unless the data were chosen with the seed in mind.

    An item at level i represents 2^i added items. All levels except the first are sorted.
    """

    format = "DataSketches KLL of doubles"

    def __init__(self, k: int = 200, seed: int = 0) -> None:
        if not K_MIN <= k <= K_MAX:
            raise ValueError(f"k must be from {K_MIN} to {K_MAX}, not {k}")
        self.k, self.seed = k, seed
        self.n = 0
        self._least_k = k
        self._low, self._high = math.inf, -math.inf
        self._levels: list[list[float]] = [[]]
        self._room = room(k, 1)
        self._kept = 0

    def add(self, value: float) -> None:
        value = float(value)
        if value != value:
            raise ValueError("NaN cannot be added, because it has no rank")
        if self._kept >= self._room:
            self._compress()
        self.n += 1
        self._kept += 1
        self._levels[0].append(value)
        if value < self._low:
            self._low = value
        if value > self._high:
            self._high = value

    def _compress(self) -> None:
        """Move half of the items in the sketch's lowest full level to the level above, and drop the other half."""
        levels = self._levels
        level = next(i for i, items in enumerate(levels) if len(items) >= level_room(self.k, len(levels), i))
        if level == len(levels) - 1:
            levels.append([])
            self._room = room(self.k, len(levels))
        full = sorted(levels[level])
        rest = full[: len(full) % 2]
        half = full[len(rest) + (coin(self.seed, self.n, level, self._kept) & 1) :: 2]
        levels[level] = rest
        levels[level + 1] = sorted(levels[level + 1] + half)
        self._kept -= len(half)

    def merge(self, other: Kll) -> None:
        if other.n == 0:
            return
        levels, others = self._levels, [list(level) for level in other._levels]
        levels += [[] for _ in range(len(others) - len(levels))]
        levels[0] = levels[0] + others[0]
        for level, items in islice(enumerate(others), 1, None):
            levels[level] = sorted(levels[level] + items)
        self.n += other.n
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)
        if len(others) > 1 or other._least_k < other.k:
            self._least_k = min(self._least_k, other._least_k)
        self._kept = sum(map(len, levels))
        self._room = room(self.k, len(levels))
        while self._kept > self._room:
            self._compress()

    @property
    def error(self) -> float:
        """The current error of ranks. It is 0 while all items are stored."""
        return rank_error(self._least_k) if len(self._levels) > 1 else 0.0

    def quantile(self, rank: float) -> Estimate:
        """Return the smallest value such that at least the share `rank` of all items is less than or equal to it."""
        if not 0 <= rank <= 1:
            raise ValueError(f"a rank must be from 0 to 1, not {rank}")
        if self.n == 0:
            raise ValueError("an empty sketch has no quantiles")
        items, weights = self._sorted()
        below, above = max(0.0, rank - self.error), min(1.0, rank + self.error)
        low = self._low if rank < self.error else self._at(items, weights, below)
        high = self._high if above >= 1 else self._at(items, weights, above)
        return Estimate(self._at(items, weights, rank), low, high, self._confidence())

    def rank(self, value: float) -> Estimate:
        """Return the share of all items that are less than or equal to a value."""
        if self.n == 0:
            raise ValueError("an empty sketch has no ranks")
        items, weights = self._sorted()
        at = bisect_right(items, value)
        share = weights[at - 1] / self.n if at else 0.0
        return Estimate(share, max(0.0, share - self.error), min(1.0, share + self.error), self._confidence())

    def _confidence(self) -> float:
        return CONFIDENCE if self.error else 1.0

    def _at(self, items: list[float], weights: list[int], rank: float) -> float:
        return items[min(bisect_left(weights, rank * self.n), len(items) - 1)]

    def _sorted(self) -> tuple[list[float], list[int]]:
        """Return all items stored in the sketch, in order, and for each of them the number of added items that it and
        the items before it represent."""
        pairs = sorted((item, 1 << level) for level, items in enumerate(self._levels) for item in items)
        return [item for item, _ in pairs], list(accumulate(weight for _, weight in pairs))

    @property
    def size_bytes_max(self) -> int:
        """The size for the largest number of items that 64 bits can count."""
        return 20 + 4 * LEVELS_MAX + 8 * (2 + room(self.k, LEVELS_MAX))

    def to_bytes(self) -> bytes:
        return self._image(_OF_DOUBLES)

    def _image(self, mark: int) -> bytes:
        if self.n == 0:
            return _HEAD.pack(2, 1, _FAMILY, _EMPTY, self.k, LEVEL_MIN, mark)
        if self.n == 1:
            return _HEAD.pack(2, 2, _FAMILY, _SINGLE, self.k, LEVEL_MIN, mark) + struct.pack("<d", self._low)
        items = [item for level in self._levels for item in level]
        sizes = [0, *map(len, self._levels[:-1])]
        starts = accumulate(sizes, initial=self._room - self._kept)
        return b"".join(
            (
                _HEAD.pack(5, 1, _FAMILY, 0, self.k, LEVEL_MIN, mark),
                _FULL.pack(self.n, self._least_k, len(self._levels), 0),
                struct.pack(f"<{len(self._levels)}I", *islice(starts, 1, None)),
                struct.pack(f"<{len(items) + 2}d", self._low, self._high, *items),
            )
        )

    def pack(self) -> bytes:
        """Serialize the KLL sketch for state, without the mark, because state always contains doubles and its bytes
        must not change."""
        return msgspec.msgpack.encode((self._outside(), self._image(0)))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        outside, image = msgspec.msgpack.decode(data, type=tuple[dict[str, Any], bytes])
        return cls._of(image, "double", **outside)

    @classmethod
    def from_bytes(cls, data: bytes, seed: int = 0, items: Literal["double", "long"] | None = None) -> Self:
        """Read a KLL sketch. `items` is the type of its items. It can be omitted for bytes that can only be doubles:
        the bytes from `to_bytes`, and bytes that are not a valid sketch of integers. For other bytes, omitting it
        raises ValueError."""
        if items is not None and items not in _CODES:
            raise ValueError(f"items must be 'double' or 'long', not {items!r}")
        marked = len(data) >= _HEAD.size and data[_HEAD.size - 1] == _OF_DOUBLES
        if marked and items == "long":
            raise damaged("KLL sketch of integers", "they are marked as doubles; pass items='double'")
        kll = cls._of(data, items or "double", seed) if items or marked else cls._of_doubles(data, seed)
        if items == "double" and not marked and kll._is_tiny():
            raise damaged("KLL sketch of doubles", "all values are nearly zero; integers need items='long'")
        return kll

    @classmethod
    def _of_doubles(cls, data: bytes, seed: int) -> Self:
        """Read a KLL sketch's bytes whose item type is not marked. Raises ValueError if the items could be integers."""
        try:
            longs = cls._of(data, "long", seed)
        except ValueError:
            return cls._of(data, "double", seed)
        if longs.n == 0:
            return longs
        raise damaged(
            "KLL sketch with a known item type",
            "the items could be doubles (pass items='double') or integers, as from kll_sketch_agg_bigint (pass "
            "items='long')",
        )

    @classmethod
    def _of(cls, data: bytes, items: Literal["double", "long"], seed: int = 0) -> Self:
        code = _CODES[items]
        try:
            _, version, family, flags, k, least, _ = _HEAD.unpack_from(data)
            if family != _FAMILY or version not in (1, 2) or least != LEVEL_MIN:
                raise damaged("KLL sketch", f"family {family}, version {version}, least level {least}")
            kll = cls(k, seed)
            if flags & _SINGLE:
                kll.add(*_kll_numbers(data, 8, 1, code))
            elif not flags & _EMPTY:
                kll._read(data, code)
        except struct.error as error:
            raise damaged("KLL sketch", str(error)) from error
        return kll

    def _is_tiny(self) -> bool:
        """Return whether integers below 2^52 were probably read as doubles."""
        numbers = [number for level in self._levels for number in level if number]
        return bool(numbers) and all(abs(number) < _LEAST for number in numbers)

    def _read(self, data: bytes, code: str) -> None:
        self.n, self._least_k, count, _ = _FULL.unpack_from(data, 8)
        if not 1 <= count <= LEVELS_MAX or not K_MIN <= self._least_k <= self.k:
            raise damaged("KLL sketch", f"{count} levels, k was {self._least_k} and is {self.k}")
        self._room = room(self.k, count)
        bounds = [*struct.unpack_from(f"<{count}I", data, 20), self._room]
        if sorted(bounds) != bounds:
            raise damaged("KLL sketch", f"levels at {bounds}")
        self._kept = self._room - bounds[0]
        self._low, self._high, *items = _kll_numbers(data, 20 + 4 * count, 2 + self._kept, code)
        ends = [bound - bounds[0] for bound in bounds]
        self._levels = [items[start:end] for start, end in pairwise(ends)]
        self._levels[1:] = [sorted(numbers) for numbers in self._levels[1:]]
        if sum(len(numbers) << level for level, numbers in enumerate(self._levels)) != self.n:
            raise damaged("KLL sketch", "its weights do not add up")
        if not all(self._low <= item <= self._high for item in items):
            raise damaged("KLL sketch", f"an item is not between {self._low} and {self._high}")

    def _outside(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def _details(self) -> dict[str, Any]:
        summary: dict[str, Any] = {"n": self.n}
        return summary | {f"p{round(100 * rank)}": self.quantile(rank) for rank in (0.5, 0.99)} if self.n else summary


def _kll_numbers(data: bytes, start: int, count: int, code: str) -> list[float]:
    """Read numbers from a sketch's bytes. Integers above 2^53 are rounded to the nearest double."""
    numbers = list(map(float, struct.unpack_from(f"<{count}{code}", data, start)))
    if any(number != number for number in numbers):
        raise damaged("KLL sketch of doubles", "a value is NaN; if the items are integers, pass items='long'")
    return numbers
