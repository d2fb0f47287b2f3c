"""Uniform samples from a stream: `Reservoir`, and `Stratified`, which has a reservoir for each value of a key.

Each added item is in the sample with the same probability. The draws are derived from the seed and the number of
previous items, so a replay draws the same sample.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Self

import msgspec

from penstock.sketches.base import Estimate, Sketch, damaged, require_same
from penstock.sketches.hashing import coin
from penstock.sketches.items import Kind, kind_of, read_items, require_fit, write_items

_FAMILY = 11
_EMPTY = 4
_VERSION = 2
_HEAD = struct.Struct("<4BI")
_RESIZE = 3 << 6
"""The two upper bits of the first byte, which give the growth factor of a reservoir in Java: its default, eight."""
SEEN_MAX = (1 << 48) - 1
REST = ""
"""The stratum for keys that were added when all strata were in use."""


class Reservoir(Sketch):
    """A sample of `k` items with the same type: `str`, `int` or `float`. To sample records, add them as JSON."""

    format = "DataSketches reservoir (strings, longs or doubles)"

    def __init__(self, k: int = 100, seed: int = 0, of: Any = str) -> None:
        if k < 1:
            raise ValueError(f"a sample must have at least 1 item, not {k}")
        self.k, self.seed, self.of = k, seed, kind_of(of)
        self.n = 0
        self.items: list[Any] = []

    def add(self, item: Any) -> None:
        require_fit(item, self.of)
        self.n += 1
        if self.n <= self.k:
            self.items.append(item)
            return
        place = coin(self.seed, self.n) % self.n
        if place < self.k:
            self.items[place] = item

    def merge(self, other: Reservoir) -> None:
        """Replace this sample with a sample of both streams. As many items are taken from each stream as a random draw
        from both would have taken."""
        require_same("reservoirs", of=(self.of, other.of))
        self.k = min(self.k, other.k)
        total, left = self.n + other.n, [self.n, other.n]
        pools, drawn = [list(self.items), list(other.items)], []
        for turn in range(min(self.k, total)):
            bits = coin(self.seed, total, turn)
            pick = 0 if bits % sum(left) < left[0] else 1
            left[pick] -= 1
            drawn.append(pools[pick].pop(coin(bits, turn) % len(pools[pick])))
        self.items, self.n = drawn, total

    def count(self, holds: Callable[[Any], bool], confidence: float = 0.95) -> Estimate:
        """Estimate how many of all added items meet a condition. The bounds are Hoeffding bounds, which hold for any
        data."""
        hits = sum(map(bool, map(holds, self.items)))
        if self.n <= self.k:
            return Estimate(hits, hits, hits)
        share, by = hits / self.k, math.sqrt(math.log(2 / (1 - confidence)) / (2 * self.k))
        low, high = max(hits, self.n * (share - by)), min(self.n - self.k + hits, self.n * (share + by))
        return Estimate(self.n * share, low, high, confidence)

    @property
    def size_bytes_max(self) -> int:
        return 16 + self.k * self.of.bytes_max

    def to_bytes(self) -> bytes:
        if not self.n:
            return _HEAD.pack(1 | _RESIZE, _VERSION, _FAMILY, _EMPTY, self.k)
        head = _HEAD.pack(2 | _RESIZE, _VERSION, _FAMILY, 0, self.k)
        return head + struct.pack("<Q", self.n) + write_items(self.items, self.of)

    @classmethod
    def from_bytes(cls, data: bytes, seed: int = 0, of: Any = str) -> Self:
        try:
            _, version, family, flags, k = _HEAD.unpack_from(data)
            if family != _FAMILY or version != _VERSION:
                raise damaged("reservoir", f"family {family}, version {version}")
            reservoir = cls(k, seed, of)
            if not flags & _EMPTY:
                (seen,) = struct.unpack_from("<Q", data, 8)
                reservoir.n = seen & SEEN_MAX
                reservoir.items, _ = read_items(data, 16, min(reservoir.n, k), reservoir.of)
        except struct.error as error:
            raise damaged("reservoir", str(error)) from error
        return reservoir

    def _outside(self) -> dict[str, Any]:
        return {"seed": self.seed, "of": self.of.value}

    def _details(self) -> dict[str, Any]:
        return {"n": self.n, "sample": self.items[:10]}


class Stratified(Sketch):
    """A sample of `k` items for each value of a key, so that rare keys are sampled too. Each of the first `strata_max`
    keys has its own stratum; all other keys share the stratum `REST`."""

    format = "Penstock"

    def __init__(self, k: int = 20, strata_max: int = 50, seed: int = 0, of: Any = str) -> None:
        if strata_max < 1:
            raise ValueError(f"strata_max must be 1 or more, not {strata_max}")
        self.k, self.strata_max, self.seed, self.of = k, strata_max, seed, kind_of(of)
        self.strata: dict[str, Reservoir] = {}
        Reservoir(k, seed, of)  # it validates the parameters

    def add(self, key: str, item: Any) -> None:
        self._stratum(key).add(item)

    def _stratum(self, key: str) -> Reservoir:
        stratum = self.strata.get(key)
        if stratum is not None:
            return stratum
        require_fit(key, Kind.STR)
        if key != REST and len(self.strata.keys() - {REST}) >= self.strata_max:
            return self._stratum(REST)
        own = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
        stratum = self.strata[key] = Reservoir(self.k, coin(self.seed, own), self.of)
        return stratum

    def merge(self, other: Stratified) -> None:
        """Merge another sample into this one. Its strata are added in the order of their keys."""
        require_same("samples", k=(self.k, other.k), of=(self.of, other.of))
        for key, stratum in sorted(other.strata.items()):
            self._stratum(key).merge(stratum)

    def sample(self, key: str) -> list[Any]:
        """Return the sample for a key or, if the key has no stratum of its own, the sample of the shared stratum."""
        stratum = self.strata.get(key) or self.strata.get(REST)
        return list(stratum.items) if stratum is not None else []

    @property
    def size_bytes_max(self) -> int:
        stratum_bytes = self.k * self.of.bytes_max + Kind.STR.bytes_max + 64
        return 64 + (self.strata_max + 1) * stratum_bytes

    def to_bytes(self) -> bytes:
        strata = {key: stratum.to_bytes() for key, stratum in self.strata.items()}
        return msgspec.msgpack.encode((1, self.k, self.strata_max, self.seed, self.of.value, strata))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            decoded = msgspec.msgpack.decode(data, type=tuple[int, int, int, int, str, dict[str, bytes]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise damaged("stratified sample", str(error)) from error
        version, k, strata_max, seed, of, strata = decoded
        if version != 1:
            raise damaged("stratified sample", f"version {version}")
        stratified = cls(k, strata_max, seed, of)
        for key, image in strata.items():
            own = stratified._stratum(key)
            stratified.strata[key] = Reservoir.from_bytes(image, own.seed, own.of)
        return stratified

    def _details(self) -> dict[str, Any]:
        return {"strata": {key: stratum.n for key, stratum in list(self.strata.items())[:10]}}
