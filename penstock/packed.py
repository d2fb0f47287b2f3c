"""Values that a state class may hold besides the plain ones: each is kept as bytes that it makes itself.

    class Visits(State):
        people: Hll = Hll()

A handler changes such a value in place. It is decoded, encoded and hashed with the rest of the state, so that a digest
covers it, and a replay comes to the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from hashlib import blake2b
from typing import Any, Self

import msgspec


class Packed(ABC):
    """A value that is kept as bytes of its own making.

    `unpack(pack())` must go on exactly as the value itself would: the same changes made to both end in the same bytes.
    Where batches are cut, which is where state is packed and unpacked, differs from run to run, and must make no
    difference. Packing must not change how the value goes on either.
    """

    @abstractmethod
    def pack(self) -> bytes:
        """All of the value, its parameters too."""

    @classmethod
    @abstractmethod
    def unpack(cls, data: bytes) -> Self:
        """The value that was packed. Raises ValueError for bytes that are not one."""

    def shown(self) -> Any:
        """What people and the API see of it; plain values."""
        return {"kind": type(self).__name__.lower(), "bytes": len(self.pack())}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packed) or type(other) is not type(self):
            return NotImplemented
        return self.pack() == other.pack()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        """Two that differ are told apart: the text has a digest of the bytes."""
        told = msgspec.json.encode(self.shown()).decode()
        return f"{type(self).__name__}({told}, digest={blake2b(self.pack(), digest_size=8).hexdigest()})"


def fresh(value: Packed) -> Any:
    """A field whose default is a copy of the value: one for each key, not one for all of them."""
    return msgspec.field(default_factory=partial(type(value).unpack, value.pack()))


def pack(value: Any) -> bytes:
    """For encoders, of values that they do not know."""
    if isinstance(value, Packed):
        return value.pack()
    raise NotImplementedError


def unpack(kind: type, data: Any) -> Any:
    """For decoders, of types that they do not know."""
    if issubclass(kind, Packed) and isinstance(data, bytes):
        return kind.unpack(data)
    raise NotImplementedError


def shown(value: Any) -> Any:
    """For encoders of what people see."""
    if isinstance(value, Packed):
        return value.shown()
    raise NotImplementedError
