"""Readers for the sketches that Spark writes in its own formats but cannot query: `count_min_sketch` and Spark's Bloom
filters. The classes are written in plain Python and are read-only."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Self

import numpy
from numpy.typing import NDArray

from penstock.sketches.base import Estimate, Item, damaged, require_same
from penstock.sketches.hashing import murmur32, signed32, signed64

_MERSENNE31 = (1 << 31) - 1
_INT_MAX = (1 << 31) - 1


def _spark_item_bytes(item: Item) -> bytes:
    return item.encode() if isinstance(item, str) else item.to_bytes(8, "little", signed=True)


@dataclass(frozen=True)
class SparkCountMin:
    """The result of `count_min_sketch`: its counts are never too low, and too high by at most `error` times the
    total."""

    total: int
    multipliers: tuple[int, ...]
    table: NDArray[numpy.int64]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            version, total, depth, width = struct.unpack_from(">iqii", data)
            if version != 1 or depth < 1 or width < 1:
                raise damaged("Spark count-min sketch", f"version {version}, {depth} rows of {width}")
            multipliers = struct.unpack_from(f">{depth}q", data, 20)
            table = numpy.frombuffer(data, ">i8", depth * width, 20 + 8 * depth)
        except (struct.error, ValueError) as error:
            raise damaged("Spark count-min sketch", str(error)) from error
        return cls(total, multipliers, table.astype(numpy.int64).reshape(depth, width))

    @property
    def error(self) -> float:
        return float(2 / self.table.shape[1])

    @property
    def confidence(self) -> float:
        return float(1 - 0.5 ** self.table.shape[0])

    def count(self, item: Item) -> Estimate:
        value = int(min(self.table[row, place] for row, place in enumerate(self._places(item))))
        return self._bounded(value, self.error * self.total)

    def inner(self, other: SparkCountMin) -> Estimate:
        """Return the inner product of two sketches: the sum over all items of the item's count in this sketch times its
        count in the other. Both sketches must have the same error, confidence and seed."""
        mine, others = (self.table.shape, self.multipliers), (other.table.shape, other.multipliers)
        require_same("count-min sketches", parameters=(mine, others))
        value = int((self.table * other.table).sum(axis=1).min())
        return self._bounded(value, self.error * self.total * other.total)

    def _bounded(self, value: int, error: float) -> Estimate:
        return Estimate(value, max(0, math.floor(value - error)), value, self.confidence if value else 1.0)

    def _places(self, item: Item) -> list[int]:
        width = self.table.shape[1]
        if isinstance(item, int):
            return [_spark_count_min_hash(item, multiplier) % width for multiplier in self.multipliers]
        first = murmur32(_spark_item_bytes(item), 0)
        second = murmur32(_spark_item_bytes(item), first)
        return [abs(_java_remainder(signed32(first + row * second), width)) for row in range(len(self.multipliers))]


def _spark_count_min_hash(item: int, multiplier: int) -> int:
    product = signed64(item * multiplier)
    return signed64(product + (product >> 32)) & _MERSENNE31


def _java_remainder(value: int, by: int) -> int:
    """Return the remainder as in Java, with the sign of the value."""
    return int(math.fmod(value, by))


@dataclass(frozen=True)
class SparkBloom:
    """A Bloom filter written by Spark, in version 1 or 2 of the format."""

    version: int
    hashes: int
    seed: int
    words: NDArray[numpy.uint64]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            version, hashes = struct.unpack_from(">ii", data)
            if version not in (1, 2) or hashes < 1:
                raise damaged("Spark Bloom filter", f"version {version}, {hashes} hashes")
            seed = struct.unpack_from(">i", data, 8)[0] if version == 2 else 0
            start = 16 if version == 2 else 12
            words = numpy.frombuffer(data, ">u8", struct.unpack_from(">i", data, start - 4)[0], start)
        except (struct.error, ValueError) as error:
            raise damaged("Spark Bloom filter", str(error)) from error
        return cls(version, hashes, seed, words.astype(numpy.uint64))

    @property
    def bits(self) -> int:
        return 64 * len(self.words)

    @property
    def false_positive_rate(self) -> float:
        """The probability that the filter claims to contain an item that was never added."""
        return float((int(numpy.bitwise_count(self.words).sum()) / self.bits) ** self.hashes)

    def __contains__(self, item: Item) -> bool:
        return all(int(self.words[place >> 6]) >> (place & 63) & 1 for place in self._places(item))

    def _places(self, item: Item) -> list[int]:
        first = murmur32(_spark_item_bytes(item), self.seed)
        second = murmur32(_spark_item_bytes(item), first)
        start = first * _INT_MAX if self.version == 2 else first
        hashes = [start + number * second for number in range(1, self.hashes + 1)]
        if self.version == 1:
            hashes = [signed32(number) for number in hashes]
        return [(~number if number < 0 else number) % self.bits for number in hashes]
