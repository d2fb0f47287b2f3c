"""Comparisons and what joins them. What compares with NULL is NULL; AND, OR and NOT are SQL's, of three values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters.alike import INT_MAX, INT_MIN, alike, is_whole
from penstock.filters.functions import computed
from penstock.filters.kinds import TRUTH, Kind, Mistake, Operand, Run, constant, full
from penstock.filters.limits import IN_MAX

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_LOOKED_UP = ("whole", "real", "text", "time", "local time", "date")
_FEW = 2
"""So many values are compared faster than looked up."""
_DIGITS = 700
"""Enough for any number that is written, and any column's."""
_UNKNOWN = pa.scalar(None, pa.bool_())
_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _condition(run: Run, position: int) -> Operand:
    return computed(TRUTH, run, position, "a condition")


def truth(operand: Operand) -> Run:
    """What is true, false or unknown."""
    if operand.kind.name == "null":
        return constant(TRUTH, None, operand.position, operand.shown).run
    if operand.kind.name != "truth":
        raise Mistake(operand.position, f"{operand.shown} is no condition: compare it with something")
    return operand.run


def joined(name: str, operands: Sequence[Operand]) -> Operand:
    join = pc.and_kleene if name == "and" else pc.or_kleene
    first, *others = [truth(each) for each in operands]

    def run(batch: pa.RecordBatch) -> Any:
        found = first(batch)
        for other in others:
            found = join(found, other(batch))
        return found

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
    """Compared with a number exactly, also with one that the column could not hold: what is less than 2.5 is at most
    2, and everything is less than 1e30."""
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


def _nearest(kind: Kind, value: Decimal) -> Decimal:
    """The number itself, or the next lower one that has no more digits behind the point than the kind."""
    scale = 0 if kind.name == "whole" else kind.arrow.scale
    with localcontext(prec=_DIGITS):
        return value.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR)


def _scalar(kind: Kind, value: Decimal) -> pa.Scalar:
    return pa.scalar(int(value) if kind.name == "whole" else value, kind.arrow)


def _range(kind: Kind) -> tuple[Decimal, Decimal]:
    if kind.name == "whole":
        return Decimal(INT_MIN), Decimal(INT_MAX)
    with localcontext(prec=_DIGITS):
        high = (Decimal(10) ** kind.arrow.precision - 1).scaleb(-kind.arrow.scale)
        return -high, high


def _always(holds: bool, operand: Operand) -> Operand:
    """The same for every row, but NULL where the operand is."""
    run, known = operand.run, pa.scalar(holds)
    return _condition(lambda batch: pc.if_else(pc.is_valid(run(batch)), known, _UNKNOWN), operand.position)


def between(this: Operand, low: Operand, high: Operand) -> Operand:
    return joined("and", (compared(">=", this, low), compared("<=", this, high)))


def among(this: Operand, items: Sequence[Operand]) -> Operand:
    if not items:
        raise Mistake(this.position, "IN needs values: IN ('a', 'b')")
    if len(items) > IN_MAX:
        raise Mistake(items[IN_MAX].position, f"there are more than {IN_MAX} values in IN")
    apart = [compared("=", this, each) for each in items]
    if this.fixed is not None or this.kind.name not in _LOOKED_UP or len(items) <= _FEW:
        return joined("or", apart)
    members = [_member(this, each) for each in items]
    others = [each for each, member in zip(apart, members, strict=True) if member is None]
    known = [each.as_py() for each in members if each is not None]
    found = _looked_up(this, pa.array(known, this.kind.arrow))
    return joined("or", [found, *others])


def _member(this: Operand, item: Operand) -> pa.Scalar | None:
    """The item as a value that is looked for in the column itself; None if it must be compared."""
    if item.fixed is None or not item.fixed.is_valid:
        return None
    if isinstance(item.written, Decimal) and this.kind.name == "whole":
        return _scalar(this.kind, item.written) if is_whole(item.written) else None
    one, other = alike((this, item))
    return other.fixed if one is this else None


def _looked_up(this: Operand, values: pa.Array) -> Operand:
    run, is_real = this.run, this.kind.name == "real"
    values = pc.add(values, 0.0) if is_real else values

    def found(batch: pa.RecordBatch) -> Any:
        column = full(run(batch), batch.num_rows)
        if is_real:
            column = pc.add(column, 0.0)  # -0.0 is 0.0, as in the values, and would not be found
        hits = pc.is_in(column, value_set=values)
        return pc.if_else(pc.is_valid(column), hits, _UNKNOWN) if column.null_count else hits

    return _condition(found, this.position)
