"""Arithmetic and numeric functions. A result that is undefined or does not fit is NULL, never a run-time error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters.alike import INT_MAX, INT_MIN, alike, as_number, is_whole
from penstock.core.filters.functions import Function, computed, need
from penstock.core.filters.kinds import NUMBERS, REAL, WHOLE, Mistake, Operand, ValueKind, constant, full

_CHECKED: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked,
}  # fmt: skip
_PLAIN: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide,
}  # fmt: skip
_WIDE = pa.decimal256(19, 0)
EARTH_RADIUS_M = 6_371_008.8
DIGITS_MAX = 15


def arithmetic(name: str, left: Operand, right: Operand) -> Operand:
    for operand in (left, right):
        if operand.kind.name not in (*NUMBERS, "null"):
            raise Mistake(operand.position, f"{operand.typed} cannot be used with {name}")
    one, other = alike((left, right))
    if one.kind.name == "decimal" and name in "+-":
        return _decimal_sum(name, one, other)
    if one.kind.name != "whole" or name == "/":
        one, other = as_real(one), as_real(other)
    first, second, position = one.run, other.run, left.position
    if name == "%":
        rest = _rest_whole if one.kind == WHOLE else _rest_real
        return computed(one.kind, lambda batch: rest(full(first(batch), batch.num_rows), second(batch)), position)
    if one.kind == WHOLE:
        return computed(WHOLE, lambda batch: whole(name, first(batch), second(batch)), position)
    plain = _PLAIN[name]
    return computed(REAL, lambda batch: finite(plain(first(batch), second(batch))), position)


def as_real(operand: Operand) -> Operand:
    if isinstance(operand.written, Decimal):
        return constant(REAL, float(operand.written), operand.position, operand.shown)
    if operand.kind.name == "null":
        return constant(REAL, None, operand.position, operand.shown)
    return as_number(operand, REAL)


def finite(values: Any) -> Any:
    """Replace results that are not finite with NULL."""
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))


def whole(name: str, first: Any, second: Any) -> Any:
    """Return the sum, difference or product of integers; NULL where it exceeds 64 bits. Overflow is rare, so the
    affected rows are searched for only if the fast computation reports an overflow."""
    try:
        return _CHECKED[name](first, second)
    except pa.ArrowInvalid:
        exact = _PLAIN[name](pc.cast(first, _WIDE), pc.cast(second, _WIDE))
        return within(exact, INT_MIN, INT_MAX).cast(pa.int64())


def within(values: Any, low: int, high: int) -> Any:
    """Return the values, with NULL where they are outside the bounds."""
    bounds = [pa.scalar(bound, pa.int64()).cast(values.type) for bound in (low, high)]
    fits = pc.and_(pc.greater_equal(values, bounds[0]), pc.less_equal(values, bounds[1]))
    return pc.if_else(fits, values, pa.scalar(None, values.type))


def _decimal_sum(name: str, one: Operand, other: Operand) -> Operand:
    digits, scale = one.kind.arrow.precision, one.kind.arrow.scale
    if digits + 1 > 76:
        first, second = as_real(one).run, as_real(other).run
        plain = _PLAIN[name]
        return computed(REAL, lambda batch: finite(plain(first(batch), second(batch))), one.position)
    kind = ValueKind("decimal", pa.decimal128(digits + 1, scale) if digits < 38 else pa.decimal256(digits + 1, scale))
    first, second, plain = one.run, other.run, _PLAIN[name]
    wide = pa.decimal256(digits, scale)

    def run(batch: pa.RecordBatch) -> Any:
        return pc.cast(plain(pc.cast(first(batch), wide), pc.cast(second(batch), wide)), kind.arrow)

    return computed(kind, run, one.position)


def _rest_whole(values: Any, by: Any) -> Any:
    """Return the remainder; NULL for a divisor of 0. A divisor of -1 is replaced with 1, which also leaves a remainder
    of 0, because dividing the lowest integer by -1 would overflow."""
    nothing = pa.scalar(None, pa.int64())
    divisor = full(by, len(values))
    divisor = pc.if_else(pc.equal(divisor, 0), nothing, divisor)
    divisor = pc.if_else(pc.equal(divisor, -1), pa.scalar(1, pa.int64()), divisor)
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))


def _rest_real(values: Any, by: Any) -> Any:
    pairs = zip(values.to_pylist(), full(by, len(values)).to_pylist(), strict=True)
    return pa.array([rest(*pair) for pair in pairs], pa.float64())


def rest(value: float | None, by: float | None) -> float | None:
    if value is None or not by or not math.isfinite(value) or math.isnan(by):
        return None
    return math.fmod(value, by)


def negative(operand: Operand) -> Operand:
    return arithmetic("-", constant(WHOLE, 0, operand.position, "0", Decimal(0)), operand)


def _absolute(operands: Sequence[Operand]) -> Operand:
    (operand,) = operands
    run, kind = operand.run, operand.kind
    if kind == WHOLE:
        return computed(WHOLE, lambda batch: pc.abs(within(run(batch), -INT_MAX, INT_MAX)), operand.position)
    if kind.name == "decimal":
        return computed(kind, lambda batch: pc.abs(run(batch)), operand.position)
    return _of_real(pc.abs)(operands)


def _of_real(function: Callable[..., Any], **options: Any) -> Callable[[Sequence[Operand]], Operand]:
    """Return a builder for a function of one number. Integers are returned unchanged."""

    def build(operands: Sequence[Operand]) -> Operand:
        operand = operands[0]
        if operand.kind == WHOLE:
            return computed(WHOLE, operand.run, operand.position)
        run = as_real(operand).run
        return computed(REAL, lambda batch: finite(function(run(batch), **options)), operand.position)

    return build


def _rounded(operands: Sequence[Operand]) -> Operand:
    digits = 0
    if len(operands) == 2:
        written = operands[1].written
        if not isinstance(written, Decimal) or not is_whole(written) or not 0 <= written <= DIGITS_MAX:
            raise Mistake(operands[1].position, f"round takes the number of digits to keep, from 0 to {DIGITS_MAX}")
        digits = int(written)
    return _of_real(_to_digits, digits=digits)(operands)


def _to_digits(values: Any, digits: int) -> Any:
    """Round floats below 2**52. Larger floats have no decimal places, and the largest would make Arrow overflow."""
    has_some = pc.less(pc.abs(values), 2.0**52)
    small = pc.if_else(has_some, values, 0.0)
    return pc.if_else(has_some, pc.round(small, ndigits=digits, round_mode="half_towards_infinity"), values)


def _distance(operands: Sequence[Operand]) -> Operand:
    runs = [as_real(operand).run for operand in operands]

    def run(batch: pa.RecordBatch) -> Any:
        lat, lon, other_lat, other_lon = (pc.multiply(angle(batch), math.pi / 180) for angle in runs)
        return finite(_haversine(lat, lon, other_lat, other_lon))

    return computed(REAL, run, operands[0].position)


def _haversine(lat: Any, lon: Any, other_lat: Any, other_lon: Any) -> Any:
    """Return the great-circle distance in metres on a sphere with the earth's mean radius. It differs from the real
    distance by up to 0.5%."""
    across = pc.multiply(pc.cos(lat), pc.multiply(pc.cos(other_lat), _half_squared(other_lon, lon)))
    root = pc.sqrt(pc.add(_half_squared(other_lat, lat), across))
    return pc.multiply(2 * EARTH_RADIUS_M, pc.asin(pc.min_element_wise(root, 1.0, skip_nulls=False)))


def _half_squared(one: Any, other: Any) -> Any:
    sine = pc.sin(pc.divide(pc.subtract(one, other), 2.0))
    return pc.multiply(sine, sine)


_ONE = need(*NUMBERS)
FUNCTIONS: Mapping[str, Function] = {
    "abs": Function(_ONE, _absolute, 1),
    "floor": Function(_ONE, _of_real(pc.floor), 1),
    "ceil": Function(_ONE, _of_real(pc.ceil), 1),
    "round": Function(_ONE, _rounded, 1, 2),
    "distance": Function(_ONE, _distance, 4),
}
