"""Conversion of CSV cells to JSON values, by the types of an event class.

A cell is a string. For a number, boolean or nested field, a string in the right form is converted. All other strings
stay strings, and if the field does not accept a string, the decoder reports that in a dead letter. Nothing is guessed
from the string alone: `007` is a number in an `int` field and a name in a `str` field.

An empty cell is null if the field can be None, and `""` in a `str` field. Otherwise the field is omitted, so its
default applies, or the event is rejected if there is no default.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

import msgspec

from penstock.core.schema import Event, Field, Record, fields

LEFT_OUT = object()
"""Marks a cell that is omitted from the object."""
TRUTH = {"true": True, "t": True, "yes": True, "y": True, "1": True} | {
    "false": False, "f": False, "no": False, "n": False, "0": False
}  # fmt: skip
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
Cell = Callable[[str], Any]


def cells(header: Sequence[str], event: type[Event] | None) -> list[Cell]:
    """Return one converter per CSV column. A column that is not a field of the class stays a string."""
    known = {field.name: field for field in fields(event)} if event is not None else {}
    return [_cell_of_field(known[name]) if name in known else str for name in header]


def _cell_of_field(field: Field) -> Cell:
    convert, empty = _cell_converter(field), _empty_cell(field)
    if convert is str:
        return lambda text: text or empty
    return lambda text: convert(text.strip()) if text.strip() else empty


def _empty_cell(field: Field) -> Any:
    if field.nullable:
        return None
    return "" if field.base is str else LEFT_OUT


def _cell_converter(field: Field) -> Cell:
    base, inner = field.base, get_args(field.base)
    if field.epoch or base is int or (get_origin(base) is Literal and isinstance(inner[0], int)):
        return _whole_number_cell
    if base is bool:
        return lambda text: TRUTH.get(text.lower(), text)
    if base is float:
        return _number_cell
    if get_origin(base) in (list, dict) or (isinstance(base, type) and issubclass(base, Record)):
        return _nested_cell
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return _whole_number_cell if all(isinstance(member.value, int) for member in base) else str
    return str if base is str or get_origin(base) is Literal else str.strip


def _whole_number_cell(text: str) -> Any:
    return int(text) if _WHOLE.fullmatch(text) else text


def _number_cell(text: str) -> Any:
    """Convert a number in a CSV cell. A value that JSON cannot express as a number, such as nan or 1e999, stays a
    string."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else text


def _nested_cell(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
