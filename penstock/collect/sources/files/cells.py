"""The cells of a CSV file as JSON values, by the types of an event class.

A cell is text. Where a field is a number, a truth value or something nested, text that is one becomes one; all other
text stays text, and if the field does not take it the decoder says so in a dead letter. Nothing is guessed from the
text alone: `007` is a number in a field of `int`, and a name in a field of `str`.

An empty cell is null where the field may be None; `""` in a field of `str`; else the field is left out, so that its
default holds, or its absence is refused.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

import msgspec

from penstock.schema import Event, Field, Record, fields

LEFT_OUT = object()
"""What stands for a cell that is not to be in the object."""
TRUTH = {"true": True, "t": True, "yes": True, "y": True, "1": True} | {
    "false": False, "f": False, "no": False, "n": False, "0": False
}  # fmt: skip
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
Cell = Callable[[str], Any]


def cells(header: Sequence[str], event: type[Event] | None) -> list[Cell]:
    """For each column what makes a value of its text. A column that is no field of the class stays text."""
    known = {each.name: each for each in fields(event)} if event is not None else {}
    return [_cell(known[name]) if name in known else str for name in header]


def _cell(field: Field) -> Cell:
    convert, empty = _converter(field), _empty(field)
    if convert is str:
        return lambda text: text or empty
    return lambda text: convert(text.strip()) if text.strip() else empty


def _empty(field: Field) -> Any:
    if field.nullable:
        return None
    return "" if field.base is str else LEFT_OUT


def _converter(field: Field) -> Cell:
    base, inner = field.base, get_args(field.base)
    if field.epoch or base is int or (get_origin(base) is Literal and isinstance(inner[0], int)):
        return _whole
    if base is bool:
        return lambda text: TRUTH.get(text.lower(), text)
    if base is float:
        return _number
    if get_origin(base) in (list, dict) or (isinstance(base, type) and issubclass(base, Record)):
        return _nested
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return _whole if all(isinstance(member.value, int) for member in base) else str
    return str if base is str or get_origin(base) is Literal else str.strip


def _whole(text: str) -> Any:
    return int(text) if _WHOLE.fullmatch(text) else text


def _number(text: str) -> Any:
    """What is no number in JSON, such as nan and 1e999, stays text."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else text


def _nested(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
