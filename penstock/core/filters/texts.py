"""Text functions. Lengths and positions are in characters; the first position is 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters.alike import INT_MAX
from penstock.core.filters.functions import Function, anything, computed, need, written_text
from penstock.core.filters.kinds import TEXT, TRUTH, WHOLE, Mistake, Operand, ValueKind, full
from penstock.core.filters.limits import NODES_MAX, TEXT_BYTES_MAX

_NO_TEXT = pa.scalar(None, pa.string())


def _applied(
    function: Callable[..., Any], kind: ValueKind = TEXT, **options: Any
) -> Callable[[Sequence[Operand]], Operand]:
    def build(operands: Sequence[Operand]) -> Operand:
        run = operands[0].run
        return computed(kind, lambda batch: function(run(batch), **options), operands[0].position)

    return build


def length(operand: Operand) -> Operand:
    run = operand.run
    return computed(WHOLE, lambda batch: pc.cast(pc.utf8_length(run(batch)), pa.int64()), operand.position)


def _matched(name: str, function: Callable[..., Any]) -> Callable[[Sequence[Operand]], Operand]:
    def build(operands: Sequence[Operand]) -> Operand:
        run, pattern = operands[0].run, written_text(name, operands[1])
        return computed(TRUTH, lambda batch: function(run(batch), pattern=pattern), operands[0].position)

    return build


contains = _matched("contains", pc.match_substring)


def _part(operands: Sequence[Operand]) -> Operand:
    run = _TEXT("substr", operands[0]).run
    start = _whole_number(operands[1], 1) - 1
    stop = start + _whole_number(operands[2], 0) if len(operands) == 3 else None
    return computed(TEXT, lambda batch: pc.utf8_slice_codeunits(run(batch), start, stop), operands[0].position)


def _whole_number(operand: Operand, least: int) -> int:
    value = operand.written
    if not isinstance(value, Decimal) or value != int(value) or not least <= value <= INT_MAX // 2:
        raise Mistake(operand.position, f"substr takes an integer of at least {least} here: substr(name, 1, 3)")
    return int(value)


def joined(operands: Sequence[Operand]) -> Operand:
    """Build the filter's concatenation of strings. The result is NULL if any part is NULL or if the result would be too
    long."""
    runs = [operand.run for operand in operands]

    def run(batch: pa.RecordBatch) -> Any:
        texts = [part(batch) for part in runs]
        fits = pc.less_equal(_bytes(texts), TEXT_BYTES_MAX)
        if not pc.all(full(fits, batch.num_rows), min_count=0).as_py():
            texts = [pc.if_else(fits, text, _NO_TEXT) for text in texts]
        return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")

    return computed(TEXT, run, operands[0].position)


def _bytes(texts: Sequence[Any]) -> Any:
    first, *others = [pc.cast(pc.binary_length(text), pa.int64()) for text in texts]
    for other in others:
        first = pc.add(first, other)
    return first


def _replaced(operands: Sequence[Operand]) -> Operand:
    this, old, new = operands[0].run, written_text("replace", operands[1]), written_text("replace", operands[2])
    if not old:
        raise Mistake(operands[1].position, "replace needs a non-empty string to look for")
    growth = len(new.encode()) - len(old.encode())

    def run(batch: pa.RecordBatch) -> Any:
        texts = full(this(batch), batch.num_rows)
        if growth > 0:
            counts = pc.cast(pc.count_substring(texts, pattern=old), pa.int64())
            size = pc.add(_bytes([texts]), pc.multiply(counts, growth))
            too_long = pc.and_(pc.greater(counts, 0), pc.greater(size, TEXT_BYTES_MAX))
            texts = pc.if_else(too_long, _NO_TEXT, texts)
        return pc.replace_substring(texts, pattern=old, replacement=new)

    return computed(TEXT, run, operands[0].position)


_TEXT = need("text")
FUNCTIONS: Mapping[str, Function] = {
    "lower": Function(_TEXT, _applied(pc.utf8_lower), 1),
    "upper": Function(_TEXT, _applied(pc.utf8_upper), 1),
    "trim": Function(_TEXT, _applied(pc.utf8_trim, characters=" "), 1),
    "ltrim": Function(_TEXT, _applied(pc.utf8_ltrim, characters=" "), 1),
    "rtrim": Function(_TEXT, _applied(pc.utf8_rtrim, characters=" "), 1),
    "substr": Function(anything, _part, 2, 3),
    "concat": Function(_TEXT, joined, 1, NODES_MAX),
    "starts_with": Function(_TEXT, _matched("starts_with", pc.starts_with), 2),
    "ends_with": Function(_TEXT, _matched("ends_with", pc.ends_with), 2),
    "replace": Function(_TEXT, _replaced, 3),
}
