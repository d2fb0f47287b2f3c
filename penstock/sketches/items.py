"""Items that a sketch keeps, as bytes: of one type, in the way of DataSketches for strings, longs and doubles."""

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
        """What one can take."""
        return 4 + ITEM_BYTES_MAX if self is Kind.STR else 8

    def __str__(self) -> str:
        return str(self.value)


def kind_of(given: Any) -> Kind:
    """The kind that a type, or its name, stands for."""
    name = given.value if isinstance(given, Kind) else getattr(given, "__name__", given)
    try:
        return Kind(name)
    except ValueError:
        raise ValueError(f"a sketch keeps items of type str, int or float, not {name}") from None


def require_fit(item: Any, kind: Kind) -> None:
    """Refuse an item that is not of the type, or that would take too much."""
    found: type = type(item)
    if found is not kind.type:
        raise TypeError(f"the items are {kind}, and this is {found.__name__}")
    if kind is Kind.STR and len(item) * 4 > ITEM_BYTES_MAX and len(item.encode()) > ITEM_BYTES_MAX:
        raise ValueError(f"an item has at most {ITEM_BYTES_MAX} bytes, and this one {len(item.encode())}")
    if kind is Kind.INT and not INT_MIN <= item <= INT_MAX:
        raise ValueError(f"{item} does not fit 64 bits")
    if kind is Kind.FLOAT and item != item:
        raise ValueError("NaN is no item: it does not equal itself")


def write_items(items: Sequence[Any], kind: Kind) -> bytes:
    if kind is Kind.STR:
        texts = [item.encode() for item in items]
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    return struct.pack(f"<{len(items)}{'q' if kind is Kind.INT else 'd'}", *items)


def read_items(data: bytes, start: int, count: int, kind: Kind) -> tuple[list[Any], int]:
    """So many items from a place on, and where they end."""
    if kind is not Kind.STR:
        found = struct.unpack_from(f"<{count}{'q' if kind is Kind.INT else 'd'}", data, start)
        return list(found), start + 8 * count
    texts = []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, start)
        text = data[start + 4 : start + 4 + size]
        if len(text) < size:
            raise damaged("sketch", f"a text of {size} bytes at {start} goes beyond the end")
        texts.append(_text(text))
        start += 4 + size
    return texts, start


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise damaged("sketch", f"an item is no text: {error}") from error
