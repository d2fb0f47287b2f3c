"""Expressions with their meaning in plain Python: a text of SQL beside a function of one row.

Written from docs/filters.md, not from the compiler: the tests compare the two. A row is a dict; NULL is
None. Every part of an expression is in parentheses; operator precedence is tested by examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
TEXT_BYTES_MAX = 4_096


@dataclass(frozen=True)
class Expr:
    """`kind` is whole, real, decimal, text, truth, time, date, or list."""

    kind: str
    sql: str
    value: Callable[[dict[str, Any]], Any]
    written: Any = None

    def __repr__(self) -> str:
        return self.sql


def column(kind: str, path: str) -> Expr:
    def value(row: dict[str, Any]) -> Any:
        field: Any = row
        for name in path.split("."):
            field = None if field is None else field.get(name)
        return field

    return Expr(kind, path, value)


def literal(kind: str, value: Any) -> Expr:
    sql = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).upper()
    return Expr(kind, sql, lambda row: value, value)


def null(kind: str) -> Expr:
    return Expr(kind, "NULL", lambda row: None)


def strict(kind: str, sql: str, function: Callable[..., Any], *parts: Expr) -> Expr:
    """Return an expression that is NULL if a part is."""

    def value(row: dict[str, Any]) -> Any:
        values = [part.value(row) for part in parts]
        return None if None in [operand if operand is None else 0 for operand in values] else function(*values)

    return Expr(
        kind, sql.format(*(part.sql if isinstance(part.written, str) else f"({part.sql})" for part in parts)), value
    )


# numbers


def fit(value: int) -> int | None:
    return value if INT_MIN <= value <= INT_MAX else None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def real(expr: Expr) -> Expr:
    """Convert any number to a float."""
    return Expr("real", expr.sql, lambda row: None if (v := expr.value(row)) is None else float(v), expr.written)


def divided(one: float, other: float) -> float | None:
    return None if other == 0 else finite(one / other)


def rest_whole(one: int, other: int) -> int | None:
    return None if other == 0 else int(math.copysign(1, one)) * (abs(one) % abs(other))


def rest_real(one: float, other: float) -> float | None:
    if other == 0 or not math.isfinite(one) or math.isnan(other):
        return None
    return math.fmod(one, other)


def rounded(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    with localcontext(prec=400):
        return float(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP))


def metres(lat: float, lon: float, other_lat: float, other_lon: float) -> float | None:
    if not all(map(math.isfinite, (lat, lon, other_lat, other_lon))):
        return None
    one, other = math.radians(lat), math.radians(other_lat)
    square = math.sin((other - one) / 2) ** 2
    square += math.cos(one) * math.cos(other) * math.sin(math.radians(other_lon - lon) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(min(1.0, math.sqrt(square)))


def least(values: Sequence[Any]) -> Any:
    return extreme(values, min)


def greatest(values: Sequence[Any]) -> Any:
    return extreme(values, max)


def extreme(values: Sequence[Any], choose: Callable[[Any], Any]) -> Any:
    """Return the extreme value, ignoring NULL and values that are not numbers."""
    there = [value for value in values if value is not None]
    numbers = [value for value in there if not (isinstance(value, float) and math.isnan(value))]
    return choose(numbers) if numbers else there[0] if there else None


# comparisons

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b, "<>": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def compared(sign: str, one: Any, other: Any) -> bool | None:
    return None if one is None or other is None else COMPARE[sign](one, other)


def all_of(values: Sequence[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def any_of(values: Sequence[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def negated(value: bool | None) -> bool | None:
    return None if value is None else not value


# text


def concatenated(*values: str) -> str | None:
    text = "".join(values)
    return text if len(text.encode()) <= TEXT_BYTES_MAX else None


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Match letter by letter, by the set of reachable positions in the pattern."""
    parts: list[tuple[str, bool]] = []
    letters = iter(pattern)
    for character in letters:
        parts.append((next(letters), False) if character == escape else (character, character in "%_"))
    reached = _over(parts, {0})
    for letter in text:
        after: set[int] = set()
        for place in reached:
            if place < len(parts):
                sign, is_wild = parts[place]
                if is_wild and sign == "%":
                    after.add(place)
                elif is_wild or sign == letter:
                    after.add(place + 1)
        reached = _over(parts, after)
    return len(parts) in reached


def _over(parts: list[tuple[str, bool]], places: set[int]) -> set[int]:
    all_places = set(places)
    for place in sorted(places):
        here = place
        while here < len(parts) and parts[here] == ("%", True):
            here += 1
            all_places.add(here)
    return all_places


# time


def moved(value: datetime, by: timedelta) -> datetime | None:
    try:
        return (value.astimezone(UTC) + by).astimezone(UTC)
    except OverflowError:
        return None


def truncated(unit: str, value: Any) -> Any:
    day = value if not isinstance(value, datetime) else value.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "year":
            return day.replace(month=1, day=1)
        case "quarter":
            return day.replace(month=(value.month - 1) // 3 * 3 + 1, day=1)
        case "month":
            return day.replace(day=1)
        case "week":
            return day - timedelta(days=value.weekday())
        case "day":
            return day
        case "hour":
            return value.replace(minute=0, second=0, microsecond=0)
        case "minute":
            return value.replace(second=0, microsecond=0)
    return value.replace(microsecond=0)


def day_of_week(value: date) -> int:
    """Return the day of the week; 1 is Sunday."""
    return value.isoweekday() % 7 + 1
