"""Functions that choose among values of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters import comparisons
from penstock.core.filters.alike import alike
from penstock.core.filters.functions import Function, anything, computed
from penstock.core.filters.kinds import NULL, Mistake, Operand
from penstock.core.filters.limits import NODES_MAX


def _chosen(choose: Callable[..., Any], **options: Any) -> Callable[[Sequence[Operand]], Operand]:
    def build(operands: Sequence[Operand]) -> Operand:
        if all(operand.kind == NULL for operand in operands):
            return operands[0]
        same = alike(operands)
        runs = [operand.run for operand in same]
        return computed(same[0].kind, lambda batch: choose(*(run(batch) for run in runs), **options), same[0].position)

    return build


def _ordered(name: str, operand: Operand) -> Operand:
    if operand.kind.name in ("truth", "bytes"):
        raise Mistake(operand.position, f"{name} does not take {operand.typed}")
    return operand


def _null_if(operands: Sequence[Operand]) -> Operand:
    """Build the filter function `nullif(a, b)`: the first operand, or NULL where the operands are equal."""
    this, other = operands
    if this.kind == NULL:
        return this
    equal, run, nothing = comparisons.compared("=", this, other).run, this.run, pa.scalar(None, this.kind.arrow)

    def chosen(batch: pa.RecordBatch) -> Any:
        return pc.if_else(pc.coalesce(equal(batch), pa.scalar(False)), nothing, run(batch))

    return computed(this.kind, chosen, this.position)


FUNCTIONS: Mapping[str, Function] = {
    "coalesce": Function(anything, _chosen(pc.coalesce), 1, NODES_MAX),
    "least": Function(_ordered, _chosen(pc.min_element_wise, skip_nulls=True), 1, NODES_MAX),
    "greatest": Function(_ordered, _chosen(pc.max_element_wise, skip_nulls=True), 1, NODES_MAX),
    "nullif": Function(anything, _null_if, 2),
}
