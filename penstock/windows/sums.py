"""Sums of integers and decimals that cannot overflow. Windows use them instead of `Sum`.

If a window's sum does not fit in a column, only that window's sum is null. Intermediate sums can have any size.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Context, Decimal
from typing import Any

from penstock.core.schema import INT_MAX, INT_MIN, decimal_fits
from penstock.windows.aggregates import Aggregate, Sum

_HIGH = 63
"""Number of bits in the lower part of a sum."""
_EXACT = Context(prec=80)
"""Precision of decimal sums. A decimal has at most 20 digits before the point and 38 after it, so 10^22 decimals can be
added without rounding."""


def fitted(aggregate: Aggregate, hint: Any) -> Aggregate:
    """Return the aggregate to use for a column of type `hint`: an exact sum instead of `Sum` for integers and
    decimals."""
    exact = {int: WholeSum, Decimal: DecimalSum}.get(hint)
    return exact(aggregate.column) if exact is not None and type(aggregate) is Sum else aggregate


class WholeSum(Sum):
    """The sum of integers, stored in two parts: the higher part counts the overflows of the lower part."""

    def packing(self, hint: Any) -> str | None:
        return "?qq"

    def kept(self, hint: Any) -> Any:
        return tuple[int, int] | None

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        if value is None or kept is None:
            return kept if value is None else (0, value)
        high, low = kept
        low += value
        return (high, low) if INT_MIN <= low <= INT_MAX else _carry_sum_overflow(high, low)  # the call is rarely needed

    def merge(self, older: Any, newer: Any) -> Any:
        if older is None or newer is None:
            return newer if older is None else older
        return _carry_sum_overflow(older[0] + newer[0], older[1] + newer[1])

    def result(self, kept: Any) -> int | None:
        if kept is None:
            return None
        total: int = (kept[0] << _HIGH) + kept[1]
        return total if INT_MIN <= total <= INT_MAX else None


def _carry_sum_overflow(high: int, low: int) -> tuple[int, int]:
    """Carry an overflow of a window sum's lower part into the higher part."""
    return (high, low) if INT_MIN <= low <= INT_MAX else (high + (low >> _HIGH), low & INT_MAX)


class DecimalSum(Sum):
    """The exact sum of decimals."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None else value if kept is None else _EXACT.add(kept, value)

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer if older is None else _EXACT.add(older, newer)

    def result(self, kept: Any) -> Decimal | None:
        return kept if kept is not None and decimal_fits(kept) else None
