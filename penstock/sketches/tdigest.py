"""The t-digest: quantiles that are most precise at both ends.

The digest in the `datasketches` package merges its buffer whenever it is queried or written, so its results would
depend on batch boundaries. In this class, the buffer is separate, is merged only when it is full, and is stored with
the digest.
"""

from __future__ import annotations

import math
from typing import Any, Self

import datasketches
import msgspec
import numpy
from numpy.typing import NDArray

from penstock.sketches.base import Estimate, Sketch, around, damaged
from penstock.sketches.images import CENTROID, check_tdigest

K_MIN, K_MAX = 10, 65_535
_SINGLE_BYTES = 16


class TDigest(Sketch):
    """Quantiles of numbers, with small centroids at both ends. `k` is the approximate number of centroids.

    The error has no proven bound: if the data arrive in an unfavourable order, results can be far off. The bounds come
    from the maximum share that a centroid at the rank can have; they have held for all data in our tests. `Kll`
    guarantees more, but is less precise beyond the 99th percentile.
    """

    format = "DataSketches t-digest of doubles"

    def __init__(self, k: int = 200) -> None:
        if not K_MIN <= k <= K_MAX:
            raise ValueError(f"k must be from {K_MIN} to {K_MAX}, not {k}")
        self.k = k
        self._digest = datasketches.tdigest_double(k)
        self._buffer: list[float] = []
        self._buffer_max = 2 * k

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"a t-digest cannot contain {value}")
        self._buffer.append(float(value))
        if len(self._buffer) >= self._buffer_max:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._digest.update(numpy.array(self._buffer))
            self._digest.compress()
            self._buffer.clear()

    @property
    def n(self) -> int:
        return int(self._digest.get_total_weight()) + len(self._buffer)

    def merge(self, other: TDigest) -> None:
        if other.n == 0:
            return
        self._flush()
        self._digest.merge(other._whole())
        self._digest.compress()

    def _whole(self) -> datasketches.tdigest_double:
        """Return a copy of the digest with the buffer merged. Queries use a copy, because a query changes the digest
        that it runs on."""
        digest = datasketches.tdigest_double.deserialize(self._digest.serialize())
        if self._buffer:
            digest.update(numpy.array(self._buffer))
            digest.compress()
        return digest

    def _curve(self) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64]]:
        """Return the digest's values in order, and the approximate number of items below each. (The package's own
        quantile function confuses the nearer of two centroids with the farther one, so its results can be off by a
        whole centroid.)"""
        image = bytes(self._whole().serialize())
        if len(image) == _SINGLE_BYTES:
            return numpy.frombuffer(image, "<f8", 1, 8), numpy.array([1.0])
        low, high = numpy.frombuffer(image, "<f8", 2, 16)
        centroids = numpy.frombuffer(image, CENTROID, offset=32)
        sizes = centroids["weight"].astype(numpy.float64)
        middles = sizes.cumsum() - sizes / 2
        means = numpy.maximum.accumulate(centroids["mean"]).clip(low, high)
        return (
            numpy.concatenate(([low], means, [high])),
            numpy.concatenate(([0.0], middles, [float(self.n)])),
        )

    def tolerance(self, rank: float) -> float:
        """Return the maximum share of all items that one centroid of the digest can have at a rank."""
        spread = 4 * math.log(max(1.0, self.n / self.k)) + 24
        return min(1.0, rank * (1 - rank) * spread / self.k + 1 / self.n)

    def quantile(self, rank: float) -> Estimate:
        """Return the value such that about the share `rank` of all items is less than or equal to it."""
        if not 0 <= rank <= 1:
            raise ValueError(f"a rank must be from 0 to 1, not {rank}")
        if self.n == 0:
            raise ValueError("an empty sketch has no quantiles")
        (values, weights), by = self._curve(), self.tolerance(rank)
        shares = numpy.array([rank, max(0.0, rank - by), min(1.0, rank + by)])
        value, low, high = numpy.interp(shares * self.n, weights, values).tolist()
        return around(value, low, high, None)

    def rank(self, value: float) -> Estimate:
        """Return the approximate share of all items that are less than or equal to a value."""
        if self.n == 0:
            raise ValueError("an empty sketch has no ranks")
        values, weights = self._curve()
        share = float(numpy.interp(value, values, weights)) / self.n
        by = self.tolerance(share)
        return Estimate(share, max(0.0, share - by), min(1.0, share + by), None)

    @property
    def size_bytes_max(self) -> int:
        return 32 + 16 * (2 * self.k + 30) + 8 * self._buffer_max

    def to_bytes(self) -> bytes:
        """Return the whole digest with the buffer merged. (The format can contain a buffer, but Java does not read
        it.)"""
        return bytes(self._whole().serialize())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        check_tdigest(data)
        try:
            digest = datasketches.tdigest_double.deserialize(data)
            tdigest = cls(digest.k)
        except Exception as error:
            raise damaged("t-digest", str(error)) from error
        digest.compress()
        tdigest._digest = digest
        return tdigest

    def pack(self) -> bytes:
        """Serialize the digest and its buffer separately, for state."""
        return msgspec.msgpack.encode((self._buffer, bytes(self._digest.serialize())))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        buffer, image = msgspec.msgpack.decode(data, type=tuple[list[float], bytes])
        tdigest = cls.__new__(cls)
        tdigest._digest = datasketches.tdigest_double.deserialize(image)
        tdigest.k, tdigest._buffer, tdigest._buffer_max = tdigest._digest.k, buffer, 2 * tdigest._digest.k
        return tdigest

    def _details(self) -> dict[str, Any]:
        summary: dict[str, Any] = {"n": self.n}
        return summary | {f"p{round(100 * rank)}": self.quantile(rank) for rank in (0.5, 0.99)} if self.n else summary
