"""Allowed values of an enum or literal field, listed in the reason for a rejection."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

VALUES_SHOWN = 20
_steps = re.compile(r"\.(\w+)|\[").finditer


def allowed_values(cls: type[Any], path: str) -> str:
    """Return a clause that lists the values allowed at a msgspec path in an event, or "" if the path is not an enum or
    literal."""
    kinds = _types_at_path(inspect.type_info(cls), path)
    values = [shown for kind in kinds for shown in _values_of_type(kind)]
    if not values:
        return ""
    more = ", ..." if len(values) > VALUES_SHOWN else ""
    return f"; use one of {', '.join(values[:VALUES_SHOWN])}{more}"


def _types_at_path(kind: inspect.Type, path: str) -> list[inspect.Type]:
    """Return the possible types at a path in an event. Each step goes into a field, or into an item of a list or
    dict."""
    kinds = _union_members(kind)
    for step in _steps(path):
        kinds = [inner for outer in kinds for inner in _inner_types(outer, step[1])]
    return kinds


def _union_members(kind: inspect.Type) -> list[inspect.Type]:
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _inner_types(kind: inspect.Type, name: str | None) -> list[inspect.Type]:
    if name is not None and isinstance(kind, inspect.StructType):
        return [inner for field in kind.fields if field.encode_name == name for inner in _union_members(field.type)]
    if isinstance(kind, inspect.DictType):
        return _union_members(kind.value_type)
    return _union_members(kind.item_type) if isinstance(kind, inspect.ListType) else []


def _values_of_type(kind: inspect.Type) -> list[str]:
    if isinstance(kind, inspect.EnumType):
        return [repr(member.value) for member in kind.cls]
    return list(map(repr, kind.values)) if isinstance(kind, inspect.LiteralType) else []
