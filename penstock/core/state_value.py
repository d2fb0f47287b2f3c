"""Values in a state class that serialize themselves to bytes.

    class Visits(State):
        people: Hll = Hll()

A handler modifies such a value in place. The value is decoded, encoded and hashed with the rest of the state, so the
state's digest covers it and a replay produces the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from hashlib import blake2b
from typing import Any, Self

import msgspec


class StateValue(ABC):
    """A value that is stored as bytes in its own format.

    `unpack(pack())` must behave exactly like the value itself: the same changes to the value and to the restored value
    must lead to the same bytes. State is packed and unpacked at batch boundaries, which differ from run to run and must
    not affect the result. Packing must not change the value's later behaviour either.
    """

    @abstractmethod
    def pack(self) -> bytes:
        """Serialize the whole state value, including its parameters."""

    @classmethod
    @abstractmethod
    def unpack(cls, data: bytes) -> Self:
        """Restore a packed state value. Raises ValueError for bytes that are not a packed value."""

    def shown(self) -> Any:
        """Return plain values that show the contents to users and in the API."""
        return {"kind": type(self).__name__.lower(), "bytes": len(self.pack())}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StateValue) or type(other) is not type(self):
            return NotImplemented
        return self.pack() == other.pack()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Show the contents and a digest of the bytes, so that different values look different."""
        content = msgspec.json.encode(self.shown()).decode()
        return f"{type(self).__name__}({content}, digest={blake2b(self.pack(), digest_size=8).hexdigest()})"


def fresh(value: StateValue) -> Any:
    """Return a field whose default is a new copy of the value for each key."""
    return msgspec.field(default_factory=partial(type(value).unpack, value.pack()))


def pack(value: Any) -> bytes:
    """Serialize a state value. Used as the encoder's hook for unknown types."""
    if isinstance(value, StateValue):
        return value.pack()
    raise NotImplementedError


def unpack(kind: type, data: Any) -> Any:
    """Restore a state value. Used as the decoder's hook for unknown types."""
    if issubclass(kind, StateValue) and isinstance(data, bytes):
        return kind.unpack(data)
    raise NotImplementedError


def shown(value: Any) -> Any:
    """Return the readable form of a state value. Used as a hook by encoders for the API."""
    if isinstance(value, StateValue):
        return value.shown()
    raise NotImplementedError
