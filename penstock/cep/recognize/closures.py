"""The closures that expressions are made of. Each does in Python what `penstock.filters` does with Arrow; None is NULL,
and what has no result, or none that fits, is NULL too."""

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

from penstock.filters.alike import INT_MAX, INT_MIN
from penstock.filters.kinds import TIME, Kind
from penstock.filters.numbers import rest

Rows = Sequence[tuple[str, Any]]
"""The rows of a match so far, each with its variable. The last one is the current one."""
Value = Callable[[Rows, int], Any]
"""What an expression is, given those rows and the number of the match. None is NULL."""

_DIGITS = 80


def constant(value: Any) -> Value:
    return lambda rows, number: value


def python(value: Any, kind: Kind) -> Any:
    """Arrow computes times without a zone; here they have it."""
    return value.replace(tzinfo=UTC) if kind == TIME and value is not None else value


def told(value: Any, arrow: pa.DataType) -> Any:
    """A value as Arrow takes it."""
    plain = msgspec.to_builtins(value, builtin_types=(datetime, date, timedelta, Decimal, bytes, bytearray))
    return list(plain.items()) if pa.types.is_map(arrow) and plain is not None else plain


def plain(value: Value) -> Value:
    """What an enumeration or a UUID is in a column."""

    def run(rows: Rows, number: int) -> Any:
        found = value(rows, number)
        if isinstance(found, Enum):
            return found.value
        return str(found) if isinstance(found, UUID) else found

    return run


def field_of(value: Value, name: str) -> Value:
    def run(rows: Rows, number: int) -> Any:
        found = value(rows, number)
        return None if found is None else getattr(found, name)

    return plain(run)


def joined(sign: bool, values: Sequence[Value]) -> Value:
    """AND and OR of three values: the first that is `sign` decides, else NULL if there is one."""

    def run(rows: Rows, number: int) -> Any:
        unknown = False
        for value in values:
            found = value(rows, number)
            if found is sign:
                return sign
            unknown = unknown or found is None
        return None if unknown else not sign

    return run


def negated(value: Value) -> Value:
    def run(rows: Rows, number: int) -> bool | None:
        found = value(rows, number)
        return None if found is None else not found

    return run


def is_null(value: Value) -> Value:
    return lambda rows, number: value(rows, number) is None


def real(value: Value) -> Value:
    def run(rows: Rows, number: int) -> float | None:
        found = value(rows, number)
        return None if found is None else float(found)

    return run


def both(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def run(rows: Rows, number: int) -> Any:
        one, other = first(rows, number), second(rows, number)
        return None if one is None or other is None else step(one, other)

    return run


def finite(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def step_real(one: float, other: float) -> float | None:
        try:
            found = step(one, other)
        except (ZeroDivisionError, OverflowError):
            return None
        return found if found is not None and math.isfinite(found) else None

    return both(step_real, first, second)


def whole(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def step_whole(one: int, other: int) -> int | None:
        found = step(one, other)
        return found if found is not None and INT_MIN <= found <= INT_MAX else None

    return both(step_whole, first, second)


def exact(step: Callable[[Any, Any], Any], first: Value, second: Value) -> Value:
    def step_exact(one: Any, other: Any) -> Decimal:
        with localcontext(prec=_DIGITS):
            found: Decimal = step(Decimal(one), Decimal(other))
            return found

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
    """Of the sign of what is divided, as in SQL."""
    return None if other == 0 else int(math.copysign(1, one)) * (abs(one) % abs(other))
