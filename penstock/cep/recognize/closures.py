"""The closures that make up compiled expressions.

Each closure does in Python what `penstock.core.filters` does with Arrow. None is NULL; an expression that has no
result, or a result that does not fit its type, is also NULL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from penstock.core.filters.alike import INT_MAX, INT_MIN
from penstock.core.filters.kinds import TIME, ValueKind
from penstock.core.filters.numbers import rest

Rows = Sequence[tuple[str, Any]]
"""The rows of a match so far, each with its variable. The last row is the current row."""
Value = Callable[[Rows, int], Any]
"""A compiled expression: a function of the rows and the match number. None is NULL."""

_DIGITS = 80


def constant(value: Any) -> Value:
    return lambda rows, number: value


def python(value: Any, kind: ValueKind) -> Any:
    """Add the UTC time zone to a time from Arrow, which computes times without a zone, and return other values
    unchanged."""
    return value.replace(tzinfo=UTC) if kind == TIME and value is not None else value


def to_arrow_value(value: Any, arrow: pa.DataType) -> Any:
    """Convert a value of a pattern's expression to a type that Arrow accepts."""
    plain = msgspec.to_builtins(value, builtin_types=(datetime, date, timedelta, Decimal, bytes, bytearray))
    return list(plain.items()) if pa.types.is_map(arrow) and plain is not None else plain


def plain(value: Value) -> Value:
    """Convert an enumeration or a UUID in a pattern's expression to its column value."""

    def run(rows: Rows, number: int) -> Any:
        result = value(rows, number)
        if isinstance(result, Enum):
            return result.value
        return str(result) if isinstance(result, UUID) else result

    return run


def field_of(value: Value, name: str) -> Value:
    def run(rows: Rows, number: int) -> Any:
        struct = value(rows, number)
        return None if struct is None else getattr(struct, name)

    return plain(run)


def joined(sign: bool, values: Sequence[Value]) -> Value:
    """Return a closure for AND (`sign` is False) or OR (`sign` is True) in three-valued logic. The result is `sign` if
    any value equals it, otherwise NULL if any value is NULL."""

    def run(rows: Rows, number: int) -> Any:
        unknown = False
        for value in values:
            operand = value(rows, number)
            if operand is sign:
                return sign
            unknown = unknown or operand is None
        return None if unknown else not sign

    return run


def negated(value: Value) -> Value:
    def run(rows: Rows, number: int) -> bool | None:
        operand = value(rows, number)
        return None if operand is None else not operand

    return run


def is_null(value: Value) -> Value:
    return lambda rows, number: value(rows, number) is None


def real(value: Value) -> Value:
    def run(rows: Rows, number: int) -> float | None:
        operand = value(rows, number)
        return None if operand is None else float(operand)

    return run


def both(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def run(rows: Rows, number: int) -> Any:
        one, other = first(rows, number), second(rows, number)
        return None if one is None or other is None else step(one, other)

    return run


def finite(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def step_real(one: float, other: float) -> float | None:
        try:
            result = step(one, other)
        except (ZeroDivisionError, OverflowError):
            return None
        return result if result is not None and math.isfinite(result) else None

    return both(step_real, first, second)


def whole(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def step_whole(one: int, other: int) -> int | None:
        result = step(one, other)
        return result if result is not None and INT_MIN <= result <= INT_MAX else None

    return both(step_whole, first, second)


def exact(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def step_exact(one: Any, other: Any) -> Decimal:
        with localcontext(prec=_DIGITS):
            result: Decimal = step(Decimal(one), Decimal(other))
            return result

    return both(step_exact, first, second)


def shifted(step: Callable[[Any, Any], Any], values: Sequence[Value]) -> Value:
    def step_shifted(one: Any, other: Any) -> Any:
        try:
            return step(one, other)
        except OverflowError:
            return None

    return both(step_shifted, *values)


def remainder(one: float, other: float) -> float | None:
    return rest(one, other)


def remainder_whole(one: int, other: int) -> int | None:
    """Return the remainder with the sign of the dividend, as in SQL."""
    return None if other == 0 else int(math.copysign(1, one)) * (abs(one) % abs(other))
