"""A fair sample of a stream: `Reservoir`, and `Stratified`, one for each value of a key.

Each item that ever came is in the sample with the same probability. What is drawn follows from the seed and from how
many came before, so a replay draws the same.
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
"""The two upper bits of the first byte: how a reservoir in Java grows. By eight times, its default."""
SEEN_MAX = (1 << 48) - 1
REST = ""
"""The stratum of the keys that came when there was no more room for strata of their own."""


class Reservoir(Sketch):
    """A sample of `k` items of one type: `str`, `int` or `float`. (Of a record, give its JSON.)"""

    format = "DataSketches reservoir (strings, longs or doubles)"

    def __init__(self, k: int = 100, seed: int = 0, of: Any = str) -> None:
        if k < 1:
            raise ValueError(f"a sample has 1 item or more, not {k}")
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
        """Become a sample of both streams: of each as many as chance would have drawn from it."""
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
        """Of how many of all that came something holds. The bounds are Hoeffding's: true for any data."""
        found = sum(map(bool, map(holds, self.items)))
        if self.n <= self.k:
            return Estimate(found, found, found)
        share, by = found / self.k, math.sqrt(math.log(2 / (1 - confidence)) / (2 * self.k))
        low, high = max(found, self.n * (share - by)), min(self.n - self.k + found, self.n * (share + by))
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
            made = cls(k, seed, of)
            if not flags & _EMPTY:
                (seen,) = struct.unpack_from("<Q", data, 8)
                made.n = seen & SEEN_MAX
                made.items, _ = read_items(data, 16, min(made.n, k), made.of)
        except struct.error as error:
            raise damaged("reservoir", str(error)) from error
        return made

    def _outside(self) -> dict[str, Any]:
        return {"seed": self.seed, "of": self.of.value}

    def _told(self) -> dict[str, Any]:
        return {"n": self.n, "sample": self.items[:10]}


class Stratified(Sketch):
    """A sample of `k` items for each value of a key, so that rare ones are seen too. Of the keys the first `strata_max`
    have a stratum of their own; all others share one, which is called `REST`."""

    format = "Penstock"

    def __init__(self, k: int = 20, strata_max: int = 50, seed: int = 0, of: Any = str) -> None:
        if strata_max < 1:
            raise ValueError(f"there is room for 1 stratum or more, not {strata_max}")
        self.k, self.strata_max, self.seed, self.of = k, strata_max, seed, kind_of(of)
        self.strata: dict[str, Reservoir] = {}
        Reservoir(k, seed, of)  # it refuses what does not make sense

    def add(self, key: str, item: Any) -> None:
        self._stratum(key).add(item)

    def _stratum(self, key: str) -> Reservoir:
        found = self.strata.get(key)
        if found is not None:
            return found
        require_fit(key, Kind.STR)
        if key != REST and len(self.strata.keys() - {REST}) >= self.strata_max:
            return self._stratum(REST)
        own = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
        made = self.strata[key] = Reservoir(self.k, coin(self.seed, own), self.of)
        return made

    def merge(self, other: Stratified) -> None:
        """Strata of the other one find room in the order of their keys."""
        require_same("samples", k=(self.k, other.k), of=(self.of, other.of))
        for key, stratum in sorted(other.strata.items()):
            self._stratum(key).merge(stratum)

    def sample(self, key: str) -> list[Any]:
        """The sample of a key; of one that has none of its own, that of the rest."""
        found = self.strata.get(key) or self.strata.get(REST)
        return list(found.items) if found is not None else []

    @property
    def size_bytes_max(self) -> int:
        each = self.k * self.of.bytes_max + Kind.STR.bytes_max + 64
        return 64 + (self.strata_max + 1) * each

    def to_bytes(self) -> bytes:
        strata = {key: each.to_bytes() for key, each in self.strata.items()}
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
        made = cls(k, strata_max, seed, of)
        for key, image in strata.items():
            own = made._stratum(key)
            made.strata[key] = Reservoir.from_bytes(image, own.seed, own.of)
        return made

    def _told(self) -> dict[str, Any]:
        return {"strata": {key: each.n for key, each in list(self.strata.items())[:10]}}
