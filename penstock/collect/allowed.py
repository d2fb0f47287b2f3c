"""The values that a field of an event may have, where its class lists them: for the reason of a rejection."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

VALUES_SHOWN = 20
_steps = re.compile(r"\.(\w+)|\[").finditer


def allowed_values(cls: type[Any], path: str) -> str:
    """The end of a sentence with the values that an enum or literal at a path of msgspec's may have; empty if there is
    none there."""
    found = _at(inspect.type_info(cls), path)
    values = [shown for kind in found for shown in _values(kind)]
    if not values:
        return ""
    more = ", ..." if len(values) > VALUES_SHOWN else ""
    return f"; use one of {', '.join(values[:VALUES_SHOWN])}{more}"


def _at(kind: inspect.Type, path: str) -> list[inspect.Type]:
    """The types that may stand at a path: each step leads to a field, or to an item of a list or dict."""
    kinds = _each(kind)
    for step in _steps(path):
        kinds = [inner for each in kinds for inner in _inside(each, step[1])]
    return kinds


def _each(kind: inspect.Type) -> list[inspect.Type]:
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _inside(kind: inspect.Type, name: str | None) -> list[inspect.Type]:
    if name is not None and isinstance(kind, inspect.StructType):
        return [inner for field in kind.fields if field.encode_name == name for inner in _each(field.type)]
    if isinstance(kind, inspect.DictType):
        return _each(kind.value_type)
    return _each(kind.item_type) if isinstance(kind, inspect.ListType) else []


def _values(kind: inspect.Type) -> list[str]:
    if isinstance(kind, inspect.EnumType):
        return [repr(each.value) for each in kind.cls]
    return list(map(repr, kind.values)) if isinstance(kind, inspect.LiteralType) else []
