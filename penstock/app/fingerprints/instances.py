"""Instances in fingerprints: finds what an instance holds besides its attributes."""

from __future__ import annotations

import copyreg
import struct
import sys
from collections import deque
from collections.abc import Iterator
from inspect import getattr_static
from types import ModuleType
from typing import Any

import msgspec
from msgspec._core import Factory  # type: ignore[import-not-found]

from penstock.app.fingerprints.classes import is_local_class

PLAIN_TYPES = (int, float, complex, str, bytes, bytearray)
SEQUENCES = (list, tuple, deque)
BY_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    struct.Struct: ("format",),
    msgspec.json.Decoder: ("type", "strict", "dec_hook", "float_hook"),
    msgspec.msgpack.Decoder: ("type", "strict", "dec_hook", "ext_hook"),
    msgspec.json.Encoder: ("enc_hook", "decimal_format", "uuid_format", "order"),
    msgspec.msgpack.Encoder: ("enc_hook", "decimal_format", "uuid_format", "order"),
    msgspec.Meta: tuple(sorted(name for name in dir(msgspec.Meta) if not name.startswith("_"))),
    Factory: ("factory",),
}
"""Classes from other packages whose instances cannot be pickled, with the attributes that define an instance."""
SINCE_FORM = {msgspec.Meta: 4, Factory: 4}
"""The first form of fingerprints that covers the attributes of a class in `BY_ATTRIBUTES`, if it is not 3."""
_HOLDERS: tuple[Any, ...] = (*PLAIN_TYPES, *SEQUENCES, dict, set, frozenset)


def built_in_base(value: Any) -> Any:
    """Return the built-in class whose content an instance holds, or None."""
    return next((holder for holder in _HOLDERS if isinstance(value, holder)), None)


def has_only_attributes(value: Any, reduced: Any) -> bool:
    """Return whether the pickled form of an instance contains nothing besides its class and its attributes."""
    if getattr_static(type(value), "__getstate__") is not vars(object)["__getstate__"]:
        return False
    return reduced[:2] == (copyreg.__newobj__, (type(value),)) and not any(reduced[3:])  # type: ignore[attr-defined]


def reduced_parts(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, Iterator) else part for part in reduced)


def bound_object(value: Any) -> Any:
    """Return the object of a bound built-in method, or None. The result is None for a function that an installed module
    offers under the function's own name, such as `random.random`, because that name identifies it."""
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, ModuleType | type):
        return None
    offered = getattr(sys.modules.get(type(owner).__module__), value.__name__, None)
    return owner if offered != value or is_local_class(type(owner)) else None


def is_declaration(value: Any) -> bool:
    """Return whether a value is a stream, view, handler or app. A fingerprint includes a declaration's name and
    functions, but not its file and line."""
    return type(value).__module__ in ("penstock.app.declared", "penstock.app.app") and hasattr(value, "where")
