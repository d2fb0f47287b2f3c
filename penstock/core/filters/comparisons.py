"""Comparisons and the operators AND, OR and NOT, with SQL's three-valued logic: a comparison with NULL is NULL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters.alike import INT_MAX, INT_MIN, alike, is_whole
from penstock.core.filters.functions import computed
from penstock.core.filters.kinds import TRUTH, Mistake, Operand, Run, ValueKind, constant, full
from penstock.core.filters.limits import IN_MAX

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_LOOKED_UP = ("whole", "real", "text", "time", "local time", "date")
_FEW = 2
"""Maximum number of values to compare one by one, which is faster for so few values than a lookup."""
_DIGITS = 700
"""Decimal precision that suffices for any literal and any column."""
_UNKNOWN = pa.scalar(None, pa.bool_())
_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _condition(run: Run, position: int) -> Operand:
    return computed(TRUTH, run, position, "a condition")


def truth(operand: Operand) -> Run:
    """Return a filter's condition as a function; raises `Mistake` if the operand is not true, false or unknown."""
    if operand.kind.name == "null":
        return constant(TRUTH, None, operand.position, operand.shown).run
    if operand.kind.name != "truth":
        raise Mistake(operand.position, f"{operand.shown} is not a condition: compare it with a value")
    return operand.run


def joined(name: str, operands: Sequence[Operand]) -> Operand:
    join = pc.and_kleene if name == "and" else pc.or_kleene
    first, *others = [truth(operand) for operand in operands]

    def run(batch: pa.RecordBatch) -> Any:
        truths = first(batch)
        for other in others:
            truths = join(truths, other(batch))
        return truths

    return _condition(run, operands[0].position)


def negated(operand: Operand) -> Operand:
    run = truth(operand)
    return _condition(lambda batch: pc.invert(run(batch)), operand.position)


def is_null(operand: Operand) -> Operand:
    run = operand.run if operand.raw is None else operand.raw[1]
    return _condition(lambda batch: pc.is_null(run(batch)), operand.position)


def compared(name: str, left: Operand, right: Operand) -> Operand:
    if isinstance(right.written, Decimal) and left.written is None and left.kind.name in ("whole", "decimal"):
        return _bounded(name, left, right.written)
    if isinstance(left.written, Decimal) and right.written is None and right.kind.name in ("whole", "decimal"):
        return _bounded(_TURNED[name], right, left.written)
    one, other = alike((left, right))
    compare, first, second = _COMPARE[name], one.run, other.run
    return _condition(lambda batch: compare(first(batch), second(batch)), left.position)


def _bounded(name: str, operand: Operand, bound: Decimal) -> Operand:
    """Build an exact comparison of a filter's column with a number, even if the column cannot contain that number: an
    integer below 2.5 is at most 2, and every 64-bit integer is below 1e30."""
    kind, run = operand.kind, operand.run
    nearest = _nearest(kind, bound)
    if nearest != bound:
        if name in ("=", "<>"):
            return _always(name == "<>", operand)
        name = "<=" if name in ("<", "<=") else ">"
    low, high = _range(kind)
    if not low <= nearest <= high:
        return _always(name in (("<>", "<", "<=") if nearest > high else ("<>", ">", ">=")), operand)
    value, compare = _scalar(kind, nearest), _COMPARE[name]
    return _condition(lambda batch: compare(run(batch), value), operand.position)


def _nearest(kind: ValueKind, value: Decimal) -> Decimal:
    """Return the number, rounded down to the number of decimal places that the kind has."""
    scale = 0 if kind.name == "whole" else kind.arrow.scale
    with localcontext(prec=_DIGITS):
        return value.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR)


def _scalar(kind: ValueKind, value: Decimal) -> pa.Scalar:
    return pa.scalar(int(value) if kind.name == "whole" else value, kind.arrow)


def _range(kind: ValueKind) -> tuple[Decimal, Decimal]:
    if kind.name == "whole":
        return Decimal(INT_MIN), Decimal(INT_MAX)
    with localcontext(prec=_DIGITS):
        high = (Decimal(10) ** kind.arrow.precision - 1).scaleb(-kind.arrow.scale)
        return -high, high


def _always(holds: bool, operand: Operand) -> Operand:
    """Return a condition with the same value for every row, except that it is NULL where the operand is NULL."""
    run, known = operand.run, pa.scalar(holds)
    return _condition(lambda batch: pc.if_else(pc.is_valid(run(batch)), known, _UNKNOWN), operand.position)


def between(this: Operand, low: Operand, high: Operand) -> Operand:
    return joined("and", (compared(">=", this, low), compared("<=", this, high)))


def among(this: Operand, items: Sequence[Operand]) -> Operand:
    if not items:
        raise Mistake(this.position, "IN needs values: IN ('a', 'b')")
    if len(items) > IN_MAX:
        raise Mistake(items[IN_MAX].position, f"there are more than {IN_MAX} values in IN")
    apart = [compared("=", this, item) for item in items]
    if this.fixed is not None or this.kind.name not in _LOOKED_UP or len(items) <= _FEW:
        return joined("or", apart)
    members = [_member(this, item) for item in items]
    others = [comparison for comparison, member in zip(apart, members, strict=True) if member is None]
    known = [member.as_py() for member in members if member is not None]
    lookup = _looked_up(this, pa.array(known, this.kind.arrow))
    return joined("or", [lookup, *others])


def _member(this: Operand, item: Operand) -> pa.Scalar | None:
    """Return the item as a value to look up in the column, or None if it must be compared instead."""
    if item.fixed is None or not item.fixed.is_valid:
        return None
    if isinstance(item.written, Decimal) and this.kind.name == "whole":
        return _scalar(this.kind, item.written) if is_whole(item.written) else None
    one, other = alike((this, item))
    return other.fixed if one is this else None


def _looked_up(this: Operand, values: pa.Array) -> Operand:
    run, is_real = this.run, this.kind.name == "real"
    values = pc.add(values, 0.0) if is_real else values

    def is_member(batch: pa.RecordBatch) -> Any:
        column = full(run(batch), batch.num_rows)
        if is_real:
            column = pc.add(column, 0.0)  # turns -0.0 into 0.0, as above: to the lookup, they are different values
        hits = pc.is_in(column, value_set=values)
        return pc.if_else(pc.is_valid(column), hits, _UNKNOWN) if column.null_count else hits

    return _condition(is_member, this.position)
