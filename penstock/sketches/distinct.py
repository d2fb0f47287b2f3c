"""Distinct counts: `Hll` uses the least memory; `Theta` supports union, intersection and difference of sets."""

from __future__ import annotations

from typing import Any, Self

import datasketches

from penstock.sketches.base import Estimate, Item, Sketch, around, damaged
from penstock.sketches.images import as_hll_8, check_hll, check_theta
from penstock.sketches.items import require_hashable

CONFIDENCES = {1: 0.6827, 2: 0.9545, 3: 0.9973}
"""The probability that the true count is within this many standard deviations."""


class Hll(Sketch):
    """A HyperLogLog sketch with 2^`lg_k` one-byte registers. Its standard error is 0.83/sqrt(2^lg_k), which is 1.3% for
    `lg_k=12`; after a merge, it is 1.04/sqrt(2^lg_k).

    The bytes have the same format as Spark's `hll_sketch_agg`, in its updatable form.
    """

    format = "DataSketches HLL (HLL_8, updatable)"

    def __init__(self, lg_k: int = 12) -> None:
        self._sketch = datasketches.hll_sketch(lg_k, datasketches.HLL_8)

    @property
    def lg_k(self) -> int:
        return int(self._sketch.lg_config_k)

    def add(self, item: Item) -> None:
        """Add an item to the sketch. An empty string is not counted."""
        if type(item) is not str:
            require_hashable(item)
        self._sketch.update(item)

    def count(self, deviations: int = 2) -> Estimate:
        """Return the number of distinct items, with bounds of 1, 2 or 3 standard deviations."""
        low, high = self._sketch.get_lower_bound(deviations), self._sketch.get_upper_bound(deviations)
        return around(self._sketch.get_estimate(), low, high, CONFIDENCES[deviations])

    def merge(self, other: Hll) -> None:
        """Merge another sketch into this one. The result has the precision of the less precise sketch."""
        union = datasketches.hll_union(self.lg_k)
        union.update(self._sketch)
        union.update(other._sketch)
        self._sketch = union.get_result(datasketches.HLL_8)

    @property
    def size_bytes_max(self) -> int:
        return int(datasketches.hll_sketch.get_max_updatable_serialization_bytes(self.lg_k, datasketches.HLL_8))

    def to_bytes(self) -> bytes:
        """Return the updatable image rather than the compact image. The compact image loses the order of the table, so
        a sketch read from it would later produce different bytes."""
        return bytes(self._sketch.serialize_updatable())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read an HLL sketch. Sketches with four-bit or six-bit registers are converted to eight-bit registers."""
        data = as_hll_8(data)
        check_hll(data)
        hll = cls.__new__(cls)
        try:
            hll._sketch = datasketches.hll_sketch.deserialize(data)
        except Exception as error:
            raise damaged("HLL sketch", str(error)) from error
        return hll

    def _details(self) -> dict[str, Any]:
        return {"count": self.count()}


class Theta(Sketch):
    """A theta sketch with 2^`lg_k` hashes, which supports set operations. Its standard error is 1/sqrt(2^lg_k), which
    is 1.6% for `lg_k=12`.

    It keeps the 2^lg_k smallest hashes, which depend only on the set of items, not on their order or on merges. The
    bytes have the same format as Spark's `theta_sketch_agg`.
    """

    format = "DataSketches theta (compact, ordered, compressed)"

    def __init__(self, lg_k: int = 12) -> None:
        self.lg_k = lg_k
        self._fresh = datasketches.update_theta_sketch(lg_k)
        self._kept = self._fresh.compact(True)

    def add(self, item: Item) -> None:
        """Add an item to the sketch. An empty string is not counted."""
        if type(item) is not str:
            require_hashable(item)
        self._fresh.update(item)

    def _set(self) -> datasketches.compact_theta_sketch:
        """Return the whole theta sketch: the union of the stored part and the new items. There are two parts because
        only a compact sketch can be read from bytes, but items can be added only to an updatable sketch."""
        if not self._fresh.is_empty():
            union = datasketches.theta_union(self.lg_k)
            union.update(self._kept)
            union.update(self._fresh)
            self._kept = union.get_result(True)
            self._fresh.reset()
        return self._kept

    def count(self, deviations: int = 2) -> Estimate:
        """Return the number of distinct items, with bounds of 1, 2 or 3 standard deviations."""
        kept = self._set()
        low, high = kept.get_lower_bound(deviations), kept.get_upper_bound(deviations)
        return around(kept.get_estimate(), low, high, CONFIDENCES[deviations] if kept.is_estimation_mode() else 1.0)

    def merge(self, other: Theta) -> None:
        """Replace this sketch with the union of both sketches."""
        union = datasketches.theta_union(self.lg_k)
        union.update(self._set())
        union.update(other._set())
        self._kept = union.get_result(True)

    def union(self, other: Theta) -> Theta:
        """Return a sketch of the items in either sketch."""
        theta = self._of(self._set())
        theta.merge(other)
        return theta

    def intersection(self, other: Theta) -> Theta:
        """Return a sketch of the items in both sketches. Its error is relative to the union, so a small overlap of
        large sets is less precise; the bounds show this."""
        both = datasketches.theta_intersection()
        both.update(self._set())
        both.update(other._set())
        return self._of(both.get_result(True))

    def difference(self, other: Theta) -> Theta:
        """Return a sketch of the items that are in this sketch but not in the other."""
        return self._of(datasketches.theta_a_not_b().compute(self._set(), other._set(), True))

    def _of(self, kept: datasketches.compact_theta_sketch) -> Theta:
        theta = Theta(self.lg_k)
        theta._kept = kept
        return theta

    @property
    def size_bytes_max(self) -> int:
        return 24 + 8 * (1 << self.lg_k)

    def to_bytes(self) -> bytes:
        return bytes(self._set().serialize(compress=True))

    @classmethod
    def from_bytes(cls, data: bytes, lg_k: int = 12) -> Self:
        check_theta(data)
        theta = cls(lg_k)
        try:
            theta._kept = datasketches.compact_theta_sketch.deserialize(data)
        except Exception as error:
            raise damaged("theta sketch", str(error)) from error
        return theta

    def _outside(self) -> dict[str, Any]:
        return {"lg_k": self.lg_k}

    def _details(self) -> dict[str, Any]:
        return {"count": self.count()}
