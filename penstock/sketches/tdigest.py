"""Quantiles that are best at both ends: the t-digest.

The digest of the `datasketches` package merges what it has buffered whenever it is asked or written, so what it comes
to would depend on where batches are cut. Here the buffer stands in front of it, is merged only when it is full, and is
kept with it.
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
    """Quantiles of numbers, with centroids that are small at both ends. `k` is about how many there are.

    Nothing is proven of its error: on data that come in an unlucky order it can be far off. Its bounds are those of the
    share that one centroid may have there, which held on everything that it was tried on. `Kll` promises more, and is
    less exact beyond the 99th percentile.
    """

    format = "DataSketches t-digest of doubles"

    def __init__(self, k: int = 200) -> None:
        if not K_MIN <= k <= K_MAX:
            raise ValueError(f"k is from {K_MIN} to {K_MAX}, not {k}")
        self.k = k
        self._digest = datasketches.tdigest_double(k)
        self._buffer: list[float] = []
        self._buffer_max = 2 * k

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"a t-digest has no place for {value}")
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
        """A digest of everything, to be asked: it is another one, since being asked changes it."""
        made = datasketches.tdigest_double.deserialize(self._digest.serialize())
        if self._buffer:
            made.update(numpy.array(self._buffer))
            made.compress()
        return made

    def _curve(self) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64]]:
        """Values, in order, and how many are about below each. (The package's own quantile takes the nearer of two
        centroids for the farther one: it was off by a whole centroid.)"""
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
        """The largest share of all that one centroid may have at a rank."""
        spread = 4 * math.log(max(1.0, self.n / self.k)) + 24
        return min(1.0, rank * (1 - rank) * spread / self.k + 1 / self.n)

    def quantile(self, rank: float) -> Estimate:
        """The value that about the share `rank` of all are not above."""
        if not 0 <= rank <= 1:
            raise ValueError(f"a rank is from 0 to 1, not {rank}")
        if self.n == 0:
            raise ValueError("there is no quantile of nothing")
        (values, weights), by = self._curve(), self.tolerance(rank)
        shares = numpy.array([rank, max(0.0, rank - by), min(1.0, rank + by)])
        value, low, high = numpy.interp(shares * self.n, weights, values).tolist()
        return around(value, low, high, None)

    def rank(self, value: float) -> Estimate:
        """About which share of all is not above a value."""
        if self.n == 0:
            raise ValueError("there is no rank among nothing")
        values, weights = self._curve()
        share = float(numpy.interp(value, values, weights)) / self.n
        by = self.tolerance(share)
        return Estimate(share, max(0.0, share - by), min(1.0, share + by), None)

    @property
    def size_bytes_max(self) -> int:
        return 32 + 16 * (2 * self.k + 30) + 8 * self._buffer_max

    def to_bytes(self) -> bytes:
        """All of it, merged. (The format has a place for a buffer, which is not read in Java.)"""
        return bytes(self._whole().serialize())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        check_tdigest(data)
        try:
            digest = datasketches.tdigest_double.deserialize(data)
            made = cls(digest.k)
        except Exception as error:
            raise damaged("t-digest", str(error)) from error
        digest.compress()
        made._digest = digest
        return made

    def pack(self) -> bytes:
        """The digest as it is, and what waits in front of it."""
        return msgspec.msgpack.encode((self._buffer, bytes(self._digest.serialize())))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        buffer, image = msgspec.msgpack.decode(data, type=tuple[list[float], bytes])
        made = cls.__new__(cls)
        made._digest = datasketches.tdigest_double.deserialize(image)
        made.k, made._buffer, made._buffer_max = made._digest.k, buffer, 2 * made._digest.k
        return made

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {"n": self.n}
        return told | {f"p{round(100 * rank)}": self.quantile(rank) for rank in (0.5, 0.99)} if self.n else told
