"""Sums that cannot outgrow what is kept of them: of whole numbers, and of decimals. Windows run them in place of `Sum`.

One that does not fit a column is null, in the windows whose sum that is and in no other: on the way to a sum that fits,
it may be as large as it will.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Context, Decimal
from typing import Any

from penstock.schema import INT_MAX, INT_MIN, decimal_fits
from penstock.windows.aggregates import Aggregate, Sum

_HIGH = 63
"""The bits of a sum that the lower of its two parts has."""
_EXACT = Context(prec=80)
"""A decimal has at most 20 digits before the point and 38 after it, so 10^22 of them are added without rounding."""


def fitted(aggregate: Aggregate, hint: Any) -> Aggregate:
    """The aggregate as windows over a column of that type run it."""
    exact = {int: WholeSum, Decimal: DecimalSum}.get(hint)
    return exact(aggregate.column) if exact is not None and type(aggregate) is Sum else aggregate


class WholeSum(Sum):
    """Of whole numbers. Kept in two parts, of which the higher one counts how often the lower one was full."""

    def packing(self, hint: Any) -> str | None:
        return "?qq"

    def kept(self, hint: Any) -> Any:
        return tuple[int, int] | None

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        if value is None or kept is None:
            return kept if value is None else (0, value)
        high, low = kept
        low += value
        return (high, low) if INT_MIN <= low <= INT_MAX else _carried(high, low)  # nearly always without a call

    def merge(self, older: Any, newer: Any) -> Any:
        if older is None or newer is None:
            return newer if older is None else older
        return _carried(older[0] + newer[0], older[1] + newer[1])

    def result(self, kept: Any) -> int | None:
        if kept is None:
            return None
        total: int = (kept[0] << _HIGH) + kept[1]
        return total if INT_MIN <= total <= INT_MAX else None


def _carried(high: int, low: int) -> tuple[int, int]:
    """The two parts of a sum; what is too much for the lower one is in the higher one."""
    return (high, low) if INT_MIN <= low <= INT_MAX else (high + (low >> _HIGH), low & INT_MAX)


class DecimalSum(Sum):
    """Of decimals."""

    def add(self, kept: Any, value: Any, at: datetime) -> Any:
        return kept if value is None else value if kept is None else _EXACT.add(kept, value)

    def merge(self, older: Any, newer: Any) -> Any:
        return older if newer is None else newer if older is None else _EXACT.add(older, newer)

    def result(self, kept: Any) -> Decimal | None:
        return kept if kept is not None and decimal_fits(kept) else None
