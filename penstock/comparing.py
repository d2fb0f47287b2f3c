"""How two values compare in SQL: NULL, kinds, and constants that become what they are compared with.

A value here is a function of a row, which gives None for NULL or unknown. `expression.py` puts them together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

import msgspec

from penstock.errors import BadExpression

_NUMBER_MAX = Decimal("1e300")
"""No column holds a number as large, and a float still does."""

Kind = Literal["text", "whole", "real", "decimal", "truth", "time", "date", "uuid"]
Value = Callable[[Any], Any]
_NUMBERS = ("whole", "real", "decimal")
_SHOWN = {"whole": "a number", "real": "a number", "decimal": "a number", "truth": "true or false"}
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "NEQ": operator.ne, "LT": operator.lt, "LTE": operator.le, "GT": operator.gt, "GTE": operator.ge,
}  # fmt: skip


class Operand(NamedTuple):
    """A side of a comparison. `fixed` is set if it is the same for every row; `kind` is None for NULL alone."""

    shown: str
    kind: Kind | None
    value: Value
    fixed: Any = None


def constant(shown: str, kind: Kind | None, value: Any) -> Operand:
    return Operand(shown, kind, lambda row: value, value)


def number(text: str) -> Decimal:
    try:
        found = Decimal(text)
        if -_NUMBER_MAX <= found <= _NUMBER_MAX:
            return found
    except ArithmeticError:
        pass
    raise BadExpression(f"{text[:40]!r} is no number that can be compared")


def compared(name: str, left: Operand, right: Operand) -> Value:
    left, right = _alike(left, right)
    if left.kind is None or right.kind is None:
        return lambda row: None
    compare, first, second, fixed = _OPERATORS[name], left.value, right.value, right.fixed

    def with_fixed(row: Any) -> Any:
        value = first(row)
        return None if value is None else compare(value, fixed)

    def with_value(row: Any) -> Any:
        value, other = first(row), second(row)
        return None if value is None or other is None else compare(value, other)

    return with_value if fixed is None else with_fixed


def _alike(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """The two sides as values that Python compares as SQL would; an error if they are of different kinds."""
    if left.kind is None or right.kind is None:
        return left, right
    if left.fixed is None and right.fixed is not None:
        return left, _as(right, left, left.kind)
    if right.fixed is None and left.fixed is not None:
        return _as(left, right, right.kind), right
    if {left.kind, right.kind} == {"real", "decimal"}:  # exactly compared, 0.1 would not be 0.1
        return _as_real(left), _as_real(right)
    if left.kind != right.kind and not (left.kind in _NUMBERS and right.kind in _NUMBERS):
        raise _unlike(left, right)
    return left, right


def _as_real(operand: Operand) -> Operand:
    value = operand.value

    def real(row: Any) -> Any:
        found = value(row)
        return None if found is None else float(found)

    return operand._replace(kind="real", value=real)


def _as(operand: Operand, other: Operand, kind: Kind) -> Operand:
    """A constant as a value of the kind of the other side."""
    if operand.kind == kind:
        return operand
    value = operand.fixed
    if operand.kind == "decimal" and kind in _NUMBERS:
        return constant(operand.shown, kind, _number_as(kind, value))
    if operand.kind == "text" and kind in _READERS:
        try:
            return constant(operand.shown, kind, _READERS[kind](value))
        except ValueError:
            raise BadExpression(f"{operand.shown} is no {kind}; write {_EXAMPLES[kind]}") from None
    raise _unlike(operand, other)


def _number_as(kind: Kind, value: Decimal) -> float | int | Decimal:
    """A number that is quickly compared with those of a column, and equals what is written the same there."""
    if kind == "real":
        return float(value)
    return int(value) if kind == "whole" and value == int(value) else value


def _aware(text: str) -> datetime:
    found = msgspec.convert(text, datetime)
    if found.tzinfo is None:
        raise ValueError("no zone")
    return found


_READERS: Mapping[Kind, Callable[[str], Any]] = {"time": _aware, "date": date.fromisoformat, "uuid": UUID}
_EXAMPLES = {
    "time": "'2024-05-01T12:00:00Z'",
    "date": "'2024-05-01'",
    "uuid": "'6f1c5e0e-6d3c-4c57-9d0e-0d4a3c1b2a39'",
}


def _unlike(left: Operand, right: Operand) -> BadExpression:
    mine, other = (_SHOWN.get(cast(str, each.kind), each.kind) for each in (left, right))
    return BadExpression(f"{left.shown} ({mine}) cannot be compared with {right.shown} ({other})")


def every_of(terms: Sequence[Value]) -> Value:
    """False if one is; else unknown if one is."""
    return _decided(terms, by=False)


def some_of(terms: Sequence[Value]) -> Value:
    """True if one is; else unknown if one is."""
    return _decided(terms, by=True)


def _decided(terms: Sequence[Value], *, by: bool) -> Value:
    def decided(row: Any) -> bool | None:
        found: bool | None = not by
        for term in terms:
            holds: bool | None = term(row)
            if holds is by:
                return by
            if holds is None:
                found = None
        return found

    return decided


def negated(term: Value) -> Value:
    def negated(row: Any) -> bool | None:
        holds = term(row)
        return None if holds is None else not holds

    return negated
