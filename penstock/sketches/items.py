"""Serialization of a sketch's items, which all have the same type, in the encodings that DataSketches uses for strings,
longs and doubles."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any

from penstock.sketches.base import INT_MAX, INT_MIN, ITEM_BYTES_MAX, damaged


class Kind(enum.Enum):
    """The type of a sketch's items."""

    STR = "str"
    INT = "int"
    FLOAT = "float"

    @property
    def type(self) -> type:
        return {Kind.STR: str, Kind.INT: int, Kind.FLOAT: float}[self]

    @property
    def bytes_max(self) -> int:
        """The maximum size of an item in bytes."""
        return 4 + ITEM_BYTES_MAX if self is Kind.STR else 8

    def __str__(self) -> str:
        return str(self.value)


def kind_of(given: Any) -> Kind:
    """Return the kind for a type or a type's name."""
    name = given.value if isinstance(given, Kind) else getattr(given, "__name__", given)
    try:
        return Kind(name)
    except ValueError:
        raise ValueError(f"the items of a sketch must be of type str, int or float, not {name}") from None


def require_fit(item: Any, kind: Kind) -> None:
    """Raise TypeError or ValueError if a sketch's item has the wrong type or is too large."""
    cls: type = type(item)
    if cls is not kind.type:
        raise TypeError(f"items must be {kind}, not {cls.__name__}")
    if kind is Kind.STR and len(item) * 4 > ITEM_BYTES_MAX and len(item.encode()) > ITEM_BYTES_MAX:
        raise ValueError(f"an item can be at most {ITEM_BYTES_MAX} bytes long, but this one is {len(item.encode())}")
    if kind is Kind.INT and not INT_MIN <= item <= INT_MAX:
        raise ValueError(f"{item} does not fit in 64 bits")
    if kind is Kind.FLOAT and item != item:
        raise ValueError("NaN cannot be an item: it does not equal itself")


def require_hashable(item: Any) -> None:
    """Raise TypeError or ValueError if a sketch that stores hashes cannot distinguish an item from all others. Such
    sketches call this for everything but strings. Without it, `datasketches` would convert integers outside 64 bits to
    floats, and count those with the same float as one item."""
    if not isinstance(item, str | int):
        raise TypeError(f"items must be str or int, not {type(item).__name__}: convert them to strings")
    if isinstance(item, int) and not INT_MIN <= item <= INT_MAX:
        raise ValueError(f"{item} does not fit in 64 bits: convert it to a string")


def write_items(items: Sequence[Any], kind: Kind) -> bytes:
    if kind is Kind.STR:
        texts = [item.encode() for item in items]
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    return struct.pack(f"<{len(items)}{'q' if kind is Kind.INT else 'd'}", *items)


def read_items(data: bytes, start: int, count: int, kind: Kind) -> tuple[list[Any], int]:
    """Read `count` items of a sketch, beginning at an offset. Returns the items and the offset after them."""
    if kind is not Kind.STR:
        numbers = struct.unpack_from(f"<{count}{'q' if kind is Kind.INT else 'd'}", data, start)
        return list(numbers), start + 8 * count
    texts = []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, start)
        text = data[start + 4 : start + 4 + size]
        if len(text) < size:
            raise damaged("sketch", f"a {size}-byte string at offset {start} runs past the end")
        texts.append(_sketch_item_text(text))
        start += 4 + size
    return texts, start


def _sketch_item_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise damaged("sketch", f"an item is not a valid string: {error}") from error
