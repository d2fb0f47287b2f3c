"""Functions that choose among values of one kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters import logic
from penstock.filters.alike import alike
from penstock.filters.functions import Function, anything, computed
from penstock.filters.kinds import NULL, Mistake, Operand
from penstock.filters.limits import NODES_MAX


def _chosen(choose: Callable[..., Any], **options: Any) -> Callable[[Sequence[Operand]], Operand]:
    def build(operands: Sequence[Operand]) -> Operand:
        if all(each.kind == NULL for each in operands):
            return operands[0]
        same = alike(operands)
        runs = [each.run for each in same]
        return computed(same[0].kind, lambda batch: choose(*(run(batch) for run in runs), **options), same[0].position)

    return build


def _ordered(name: str, operand: Operand) -> Operand:
    if operand.kind.name in ("truth", "bytes"):
        raise Mistake(operand.position, f"{name} does not take {operand.typed}")
    return operand


def _null_if(operands: Sequence[Operand]) -> Operand:
    """The first, but NULL where the two are equal."""
    this, other = operands
    if this.kind == NULL:
        return this
    equal, run, nothing = logic.compared("=", this, other).run, this.run, pa.scalar(None, this.kind.arrow)

    def chosen(batch: pa.RecordBatch) -> Any:
        return pc.if_else(pc.coalesce(equal(batch), pa.scalar(False)), nothing, run(batch))

    return computed(this.kind, chosen, this.position)


FUNCTIONS: Mapping[str, Function] = {
    "coalesce": Function(anything, _chosen(pc.coalesce), 1, NODES_MAX),
    "least": Function(_ordered, _chosen(pc.min_element_wise, skip_nulls=True), 1, NODES_MAX),
    "greatest": Function(_ordered, _chosen(pc.max_element_wise, skip_nulls=True), 1, NODES_MAX),
    "nullif": Function(anything, _null_if, 2),
}
