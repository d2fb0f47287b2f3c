"""Operands made alike, so that they can be compared or stand for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from penstock.filters.kinds import (
    DATE,
    DIGITS_MAX,
    LOCAL_TIME,
    NUMBERS,
    REAL,
    SCALARS,
    TIME,
    WHOLE,
    Kind,
    Mistake,
    Operand,
    constant,
)  # fmt: skip

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def alike(operands: Sequence[Operand]) -> list[Operand]:
    """The operands, each of the same kind. NULL takes any kind (alone, it counts as a number), a literal that of the
    others."""
    kind = _common([each for each in operands if each.kind.name != "null"])
    return [_as(each, kind) for each in operands]


def _common(operands: Sequence[Operand]) -> Kind:
    if not operands:
        return WHOLE
    for each in operands:
        if each.kind.name not in SCALARS:
            raise Mistake(each.position, f"{each.typed} cannot be compared")
    leading = next((each for each in operands if not isinstance(each.written, str)), operands[0])
    if leading.kind.name in NUMBERS:
        for each in operands:
            if each.kind.name not in NUMBERS:
                raise unlike(leading, each)
        return _common_number(operands)
    for each in operands:
        if each.kind.name != leading.kind.name and not (isinstance(each.written, str) and leading.kind in READERS):
            raise unlike(leading, each)
    return leading.kind


def unlike(one: Operand, other: Operand) -> Mistake:
    first, second = sorted((one, other), key=lambda each: each.position)
    return Mistake(second.position, f"{first.typed} cannot be compared with {second.typed}")


def _common_number(operands: Sequence[Operand]) -> Kind:
    kinds = {each.kind for each in operands if each.written is None}
    if any(kind.name == "real" for kind in kinds):
        return REAL
    written = [each.written for each in operands if isinstance(each.written, Decimal)]
    if not any(kind.name == "decimal" for kind in kinds):
        return WHOLE if all(is_whole(each) for each in written) else REAL
    found = [_digits(kind) for kind in kinds] + [_digits_of(each) for each in written]
    digits, scale = max(each[0] for each in found), max(each[1] for each in found)
    if digits + scale > 2 * DIGITS_MAX:
        return REAL
    make = pa.decimal128 if digits + scale <= DIGITS_MAX else pa.decimal256
    return Kind("decimal", make(max(digits + scale, 1), scale))


def is_whole(value: Decimal) -> bool:
    return INT_MIN <= value <= INT_MAX and value == int(value)


def _digits(kind: Kind) -> tuple[int, int]:
    """How many digits stand before the point, and how many behind it."""
    if kind.name == "whole":
        return 19, 0
    return kind.arrow.precision - kind.arrow.scale, kind.arrow.scale


def _digits_of(value: Decimal) -> tuple[int, int]:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits) + exponent, 1), max(-exponent, 0)


def _as(operand: Operand, kind: Kind) -> Operand:
    if operand.kind == kind:
        return operand
    if operand.kind.name == "null":
        return constant(kind, None, operand.position, operand.shown)
    if isinstance(operand.written, Decimal):
        return constant(kind, _number(operand.written, kind), operand.position, operand.shown, operand.written)
    if isinstance(operand.written, str):
        return _read(operand, operand.written, kind)
    return as_number(operand, kind)


def as_number(operand: Operand, kind: Kind) -> Operand:
    """A number as one of a wider kind."""
    run, arrow = operand.run, kind.arrow
    if operand.kind == kind:
        return operand
    if operand.kind.name == "whole" and kind.name == "decimal":
        return operand.of(kind, lambda batch: run(batch).cast(pa.decimal128(19, 0)).cast(arrow))
    if operand.kind.name == "decimal" and kind.name == "real":  # by way of text, or 0.1 would often not be 0.1
        return operand.of(kind, lambda batch: run(batch).cast(pa.string()).cast(arrow))
    return operand.of(kind, lambda batch: run(batch).cast(arrow, safe=False))


def _number(value: Decimal, kind: Kind) -> Any:
    if kind.name == "real":
        return float(value)
    return int(value) if kind.name == "whole" else value


def _read(operand: Operand, text: str, kind: Kind) -> Operand:
    read, example = READERS[kind]
    try:
        value = read(text)
    except (ValueError, msgspec.ValidationError):
        raise Mistake(operand.position, f"{operand.shown} is no {kind.name}; write {example}") from None
    return constant(kind, value, operand.position, operand.shown)


def _instant(text: str) -> datetime:
    found = msgspec.convert(text, datetime)
    if found.tzinfo is None:
        raise ValueError("no zone")
    return found.astimezone(UTC).replace(tzinfo=None)


def _local(text: str) -> datetime:
    found = msgspec.convert(text, datetime)
    if found.tzinfo is not None:
        raise ValueError("a zone")
    return found


READERS: Mapping[Kind, tuple[Callable[[str], Any], str]] = {
    TIME: (_instant, "'2024-05-01T12:00:00Z'"),
    LOCAL_TIME: (_local, "'2024-05-01T12:00:00'"),
    DATE: (date.fromisoformat, "'2024-05-01'"),
}
