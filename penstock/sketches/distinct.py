"""How many different items: `Hll` in the least memory, `Theta` with union, intersection and difference of sets."""

from __future__ import annotations

from typing import Any, Self

import datasketches

from penstock.sketches.base import Estimate, Item, Sketch, around, damaged
from penstock.sketches.images import as_hll_8, check_hll, check_theta

CONFIDENCES = {1: 0.6827, 2: 0.9545, 3: 0.9973}
"""That the true count is within so many standard deviations."""


class Hll(Sketch):
    """A HyperLogLog of 2^`lg_k` registers of a byte: a standard error of 0.83/sqrt(2^lg_k), 1.3% for 12; of what was
    merged, 1.04/sqrt(2^lg_k).

    The bytes are those of Spark's `hll_sketch_agg`, in the form that can be added to.
    """

    format = "DataSketches HLL (HLL_8, updatable)"

    def __init__(self, lg_k: int = 12) -> None:
        self._sketch = datasketches.hll_sketch(lg_k, datasketches.HLL_8)

    @property
    def lg_k(self) -> int:
        return int(self._sketch.lg_config_k)

    def add(self, item: Item) -> None:
        """Note an item. The empty text is not counted."""
        self._sketch.update(item)

    def count(self, deviations: int = 2) -> Estimate:
        """How many different items were added, with bounds of 1, 2 or 3 standard deviations."""
        low, high = self._sketch.get_lower_bound(deviations), self._sketch.get_upper_bound(deviations)
        return around(self._sketch.get_estimate(), low, high, CONFIDENCES[deviations])

    def merge(self, other: Hll) -> None:
        """Take in what another one has seen. The result is as fine as the coarser of both."""
        union = datasketches.hll_union(self.lg_k)
        union.update(self._sketch)
        union.update(other._sketch)
        self._sketch = union.get_result(datasketches.HLL_8)

    @property
    def size_bytes_max(self) -> int:
        return int(datasketches.hll_sketch.get_max_updatable_serialization_bytes(self.lg_k, datasketches.HLL_8))

    def to_bytes(self) -> bytes:
        """Updatable, not compact: the compact form forgets where in its table an item stood, and one that was read from
        it would go on with other bytes."""
        return bytes(self._sketch.serialize_updatable())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a sketch of eight bits a register, or of six or four, which becomes one of eight."""
        data = as_hll_8(data)
        check_hll(data)
        made = cls.__new__(cls)
        try:
            made._sketch = datasketches.hll_sketch.deserialize(data)
        except Exception as error:
            raise damaged("HLL sketch", str(error)) from error
        return made

    def _told(self) -> dict[str, Any]:
        return {"count": self.count()}


class Theta(Sketch):
    """A theta sketch of 2^`lg_k` hashes: a standard error of 1/sqrt(2^lg_k), 1.6% for 12, and sets can be combined.

    It keeps the 2^lg_k smallest hashes: that is a function of the set of items alone, whatever their order and however
    they are cut and merged. The bytes are those of Spark's `theta_sketch_agg`.
    """

    format = "DataSketches theta (compact, ordered, compressed)"

    def __init__(self, lg_k: int = 12) -> None:
        self.lg_k = lg_k
        self._fresh = datasketches.update_theta_sketch(lg_k)
        self._kept = self._fresh.compact(True)

    def add(self, item: Item) -> None:
        """Note an item. The empty text is not counted."""
        self._fresh.update(item)

    def _set(self) -> datasketches.compact_theta_sketch:
        """All of it: what was kept, and what came since. Only a compact sketch can be read from bytes, and only the
        other sort can be added to, so there are two, and their union."""
        if not self._fresh.is_empty():
            union = datasketches.theta_union(self.lg_k)
            union.update(self._kept)
            union.update(self._fresh)
            self._kept = union.get_result(True)
            self._fresh.reset()
        return self._kept

    def count(self, deviations: int = 2) -> Estimate:
        """How many different items there are, with bounds of 1, 2 or 3 standard deviations."""
        kept = self._set()
        low, high = kept.get_lower_bound(deviations), kept.get_upper_bound(deviations)
        return around(kept.get_estimate(), low, high, CONFIDENCES[deviations] if kept.is_estimation_mode() else 1.0)

    def merge(self, other: Theta) -> None:
        """Become the union of both."""
        union = datasketches.theta_union(self.lg_k)
        union.update(self._set())
        union.update(other._set())
        self._kept = union.get_result(True)

    def union(self, other: Theta) -> Theta:
        """What is in one of them, or both."""
        made = self._of(self._set())
        made.merge(other)
        return made

    def intersection(self, other: Theta) -> Theta:
        """What is in both. Its error is relative to the union: a small part of large sets is known less well, and the
        bounds say so."""
        both = datasketches.theta_intersection()
        both.update(self._set())
        both.update(other._set())
        return self._of(both.get_result(True))

    def difference(self, other: Theta) -> Theta:
        """What is in this one and not in the other."""
        return self._of(datasketches.theta_a_not_b().compute(self._set(), other._set(), True))

    def _of(self, kept: datasketches.compact_theta_sketch) -> Theta:
        made = Theta(self.lg_k)
        made._kept = kept
        return made

    @property
    def size_bytes_max(self) -> int:
        return 24 + 8 * (1 << self.lg_k)

    def to_bytes(self) -> bytes:
        return bytes(self._set().serialize(compress=True))

    @classmethod
    def from_bytes(cls, data: bytes, lg_k: int = 12) -> Self:
        check_theta(data)
        made = cls(lg_k)
        try:
            made._kept = datasketches.compact_theta_sketch.deserialize(data)
        except Exception as error:
            raise damaged("theta sketch", str(error)) from error
        return made

    def _outside(self) -> dict[str, Any]:
        return {"lg_k": self.lg_k}

    def _told(self) -> dict[str, Any]:
        return {"count": self.count()}
