"""Conversion of operands to a common kind, so that a filter can compare them or choose among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.filters.kinds import (  # fmt: skip
    DATE,
    DIGITS_MAX,
    LOCAL_TIME,
    NUMBERS,
    REAL,
    SCALARS,
    TIME,
    WHOLE,
    Mistake,
    Operand,
    ValueKind,
    constant,
)

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def alike(operands: Sequence[Operand]) -> list[Operand]:
    """Convert the operands of a filter to their common kind. NULL takes any kind (on its own, it is treated as a
    number), and a literal takes the kind of the other operands."""
    kind = _common([operand for operand in operands if operand.kind.name != "null"])
    return [_as(operand, kind) for operand in operands]


def _common(operands: Sequence[Operand]) -> ValueKind:
    if not operands:
        return WHOLE
    for operand in operands:
        if operand.kind.name not in SCALARS:
            raise Mistake(operand.position, f"{operand.typed} cannot be compared")
    leading = next((operand for operand in operands if not isinstance(operand.written, str)), operands[0])
    if leading.kind.name in NUMBERS:
        for operand in operands:
            if operand.kind.name not in NUMBERS:
                raise unlike(leading, operand)
        return _common_number(operands)
    for operand in operands:
        if operand.kind.name != leading.kind.name and not (
            isinstance(operand.written, str) and leading.kind in READERS
        ):
            raise unlike(leading, operand)
    return leading.kind


def unlike(one: Operand, other: Operand) -> Mistake:
    first, second = sorted((one, other), key=lambda operand: operand.position)
    return Mistake(second.position, f"{first.typed} cannot be compared with {second.typed}")


def _common_number(operands: Sequence[Operand]) -> ValueKind:
    kinds = {operand.kind for operand in operands if operand.written is None}
    if any(kind.name == "real" for kind in kinds):
        return REAL
    written = [operand.written for operand in operands if isinstance(operand.written, Decimal)]
    if not any(kind.name == "decimal" for kind in kinds):
        return WHOLE if all(is_whole(number) for number in written) else REAL
    pairs = [_digits(kind) for kind in kinds] + [_digits_of(number) for number in written]
    digits, scale = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    if digits + scale > 2 * DIGITS_MAX:
        return REAL
    make = pa.decimal128 if digits + scale <= DIGITS_MAX else pa.decimal256
    return ValueKind("decimal", make(max(digits + scale, 1), scale))


def is_whole(value: Decimal) -> bool:
    return INT_MIN <= value <= INT_MAX and value == int(value)


def _digits(kind: ValueKind) -> tuple[int, int]:
    """Return how many digits a filter's operand has before and after the decimal point."""
    if kind.name == "whole":
        return 19, 0
    return kind.arrow.precision - kind.arrow.scale, kind.arrow.scale


def _digits_of(value: Decimal) -> tuple[int, int]:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits) + exponent, 1), max(-exponent, 0)


def _as(operand: Operand, kind: ValueKind) -> Operand:
    if operand.kind == kind:
        return operand
    if operand.kind.name == "null":
        return constant(kind, None, operand.position, operand.shown)
    if isinstance(operand.written, Decimal):
        return constant(kind, _number(operand.written, kind), operand.position, operand.shown, operand.written)
    if isinstance(operand.written, str):
        return _read(operand, operand.written, kind)
    return as_number(operand, kind)


def as_number(operand: Operand, kind: ValueKind) -> Operand:
    """Convert a filter's number to a wider kind."""
    run, arrow = operand.run, kind.arrow
    if operand.kind == kind:
        return operand
    if operand.kind.name == "whole" and kind.name == "decimal":
        return operand.of(kind, lambda batch: run(batch).cast(pa.decimal128(19, 0)).cast(arrow))
    if operand.kind.name == "decimal" and kind.name == "real":  # via text: a direct cast often changes 0.1
        return operand.of(kind, lambda batch: run(batch).cast(pa.string()).cast(arrow))
    return operand.of(kind, lambda batch: run(batch).cast(arrow, safe=False))


def _number(value: Decimal, kind: ValueKind) -> Any:
    if kind.name == "real":
        return float(value)
    return int(value) if kind.name == "whole" else value


def _read(operand: Operand, text: str, kind: ValueKind) -> Operand:
    read, example = READERS[kind]
    try:
        value = read(text)
    except (ValueError, msgspec.ValidationError):
        raise Mistake(operand.position, f"{operand.shown} is not a {kind.name}; write {example}") from None
    return constant(kind, value, operand.position, operand.shown)


def _instant(text: str) -> datetime:
    time = msgspec.convert(text, datetime)
    if time.tzinfo is None:
        raise ValueError("no zone")
    return time.astimezone(UTC).replace(tzinfo=None)


def _local(text: str) -> datetime:
    time = msgspec.convert(text, datetime)
    if time.tzinfo is not None:
        raise ValueError("a zone")
    return time


READERS: Mapping[ValueKind, tuple[Callable[[str], Any], str]] = {
    TIME: (_instant, "'2024-05-01T12:00:00Z'"),
    LOCAL_TIME: (_local, "'2024-05-01T12:00:00'"),
    DATE: (date.fromisoformat, "'2024-05-01'"),
}
