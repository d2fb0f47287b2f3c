"""The shape of a state class: its version and its fields, with their types as strings."""

from __future__ import annotations

import re

import msgspec

from penstock.core.schema import State, fields, type_name

NULLABLE = " | null"
DECLARED = "declared"
"""The name of a field in state classes that are generated from a declaration. Its type identifies the declaration."""
_VALUES = re.compile(r"('[^']*'|-?\d+)( \| ('[^']*'|-?\d+))*")


class Shape(msgspec.Struct, frozen=True):
    """The version of a state class, and its fields with their types as strings."""

    version: int
    fields: dict[str, str]


def shape_of(state: type[State]) -> Shape:
    return Shape(state.__state_version__, {field.name: type_name(field.hint) for field in fields(state)})


def widens(old: str, new: str) -> bool:
    """Return whether every value of the old type is also a value of the new type, unchanged. Returns False for a change
    from int to float."""
    if old.endswith(NULLABLE) and not new.endswith(NULLABLE):
        return False
    before, after = old.removesuffix(NULLABLE), new.removesuffix(NULLABLE)
    listed = _VALUES.fullmatch(before) and _VALUES.fullmatch(after)
    return before == after or (listed is not None and set(before.split(" | ")) <= set(after.split(" | ")))
