"""The base class of all sketches, and the class of their results."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import msgspec

from penstock.core.state_value import StateValue

Item = str | int
"""The type of items: a string or a 64-bit integer. Convert any other value to a string."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
ITEM_BYTES_MAX = 1_024
"""Maximum length of a string that a sketch stores. It bounds the memory of the sketch; longer strings are rejected."""


class Estimate(msgspec.Struct, frozen=True):
    """A sketch's estimated value, with bounds that contain the true value with at least the given `confidence`. A
    confidence of 1 means certainty; None means that the bounds are not proven, but hold for typical data."""

    value: float
    low: float
    high: float
    confidence: float | None = 1.0


class Sketch(StateValue):
    """A summary of a stream in bounded memory. Two sketches of the same kind with the same parameters can be merged.

    `to_bytes` returns the sketch's image, in the format of Apache DataSketches if it has one, and `from_bytes` reads an
    image. Parameters that the image does not contain, such as a seed or the type of the items, must also be passed to
    `from_bytes`. In a handler's state, `pack` stores both the image and these parameters.
    """

    format: ClassVar[str]
    """The format of `to_bytes`."""

    @abstractmethod
    def to_bytes(self) -> bytes: ...

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Self: ...

    @property
    def size_bytes(self) -> int:
        """The current size in bytes."""
        return len(self.to_bytes())

    @property
    @abstractmethod
    def size_bytes_max(self) -> int:
        """The maximum size in bytes, however many items are added."""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode((self._outside(), self.to_bytes()))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        outside, image = msgspec.msgpack.decode(data, type=tuple[dict[str, Any], bytes])
        return cls.from_bytes(image, **outside)

    def copy(self) -> Self:
        return self.unpack(self.pack())

    def shown(self) -> Any:
        return {"kind": type(self).__name__.lower(), "bytes": self.size_bytes} | self._details()

    def _outside(self) -> dict[str, Any]:
        """Return the sketch parameters that the image does not contain."""
        return {}

    def _details(self) -> dict[str, Any]:
        return {}


def around(value: float, low: float, high: float, confidence: float | None) -> Estimate:
    """Return a sketch's estimate whose bounds were computed separately from its value. The bounds are widened to
    include the value."""
    return Estimate(value, min(low, value), max(high, value), confidence)


def damaged(kind: str, why: str) -> ValueError:
    return ValueError(f"the bytes are not a valid {kind}: {why}")


def require_same(kind: str, **values: tuple[Any, Any]) -> None:
    """Raise ValueError if two sketches that are to be merged differ in a parameter."""
    for name, (mine, other) in values.items():
        if mine != other:
            raise ValueError(f"two {kind} can be merged only if they have the same {name}; got {mine!r} and {other!r}")
