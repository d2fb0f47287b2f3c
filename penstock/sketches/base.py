"""What all sketches have in common, and the answer they give."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import msgspec

from penstock.packed import Packed

Item = str | int
"""What is counted: text, or a whole number of 64 bits. For anything else give its text."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
ITEM_BYTES_MAX = 1_024
"""The longest text that a sketch keeps. A longer one is refused: what it takes in memory is bounded."""


class Estimate(msgspec.Struct, frozen=True):
    """An answer: the value, and the bounds between which the true one lies with at least that confidence. 1 is
    certainty; None means that nothing is proven, and the bounds are those that hold on common data."""

    value: float
    low: float
    high: float
    confidence: float | None = 1.0


class Sketch(Packed):
    """A summary of a stream in bounded memory. Two of the same sort and parameters can be merged.

    `to_bytes` is the bare image, in the format of Apache DataSketches where there is one, and what `from_bytes` reads;
    parameters that the image has no place for (a seed, the type of its items) are given to `from_bytes` again. In the
    state of a handler, `pack` keeps both.
    """

    format: ClassVar[str]
    """Whose format `to_bytes` is."""

    @abstractmethod
    def to_bytes(self) -> bytes: ...

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Self: ...

    @property
    def size_bytes(self) -> int:
        """What it takes as bytes now."""
        return len(self.to_bytes())

    @property
    @abstractmethod
    def size_bytes_max(self) -> int:
        """What it can take at most, however much is added."""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode((self._outside(), self.to_bytes()))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        outside, image = msgspec.msgpack.decode(data, type=tuple[dict[str, Any], bytes])
        return cls.from_bytes(image, **outside)

    def copy(self) -> Self:
        return self.unpack(self.pack())

    def shown(self) -> Any:
        return {"kind": type(self).__name__.lower(), "bytes": self.size_bytes} | self._told()

    def _outside(self) -> dict[str, Any]:
        """The parameters that the image has no place for."""
        return {}

    def _told(self) -> dict[str, Any]:
        return {}


def around(value: float, low: float, high: float, confidence: float | None) -> Estimate:
    """An answer whose bounds were found apart from it: they are made to hold it."""
    return Estimate(value, min(low, value), max(high, value), confidence)


def damaged(kind: str, why: str) -> ValueError:
    return ValueError(f"these are not the bytes of a {kind}: {why}")


def require_same(kind: str, **values: tuple[Any, Any]) -> None:
    """Refuse a merge of two that differ in a parameter."""
    for name, (mine, other) in values.items():
        if mine != other:
            raise ValueError(f"two {kind} are merged only if they have the same {name}; here {mine!r} and {other!r}")
