"""Functions in the filter language: how their arguments are checked, and how calls are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.core.filters.kinds import DATE, REAL, TEXT, TIME, WHOLE, Mistake, Operand, Run, ValueKind, constant

_OF_NULL = {"text": TEXT, "whole": WHOLE, "real": REAL, "time": TIME, "date": DATE}
Check = Callable[[str, Operand], Operand]


@dataclass(frozen=True)
class Function:
    """A function in the filter language that accepts `least` to `most` arguments. `takes` checks each argument, and
    `build` builds the result."""

    takes: Check
    build: Callable[[Sequence[Operand]], Operand]
    least: int
    most: int = 0

    def of(self, name: str, position: int, operands: Sequence[Operand]) -> Operand:
        most = max(self.least, self.most)
        if not self.least <= len(operands) <= most:
            wanted = str(self.least) if most == self.least else f"{self.least} to {most}"
            values = "value" if wanted == "1" else "values"
            raise Mistake(position, f"{name} takes {wanted} {values}, not {len(operands)}")
        return self.build([self.takes(name, operand) for operand in operands])


def need(*kinds: str) -> Check:
    """Return a check that a filter function's argument has one of these kinds. NULL is treated as the first kind."""

    def check(name: str, operand: Operand) -> Operand:
        if operand.kind.name == "null" and kinds[0] in _OF_NULL:
            return constant(_OF_NULL[kinds[0]], None, operand.position, operand.shown)
        if operand.kind.name not in kinds:
            raise Mistake(operand.position, f"{name} does not take {operand.typed}")
        return operand

    return check


def anything(name: str, operand: Operand) -> Operand:
    return operand


def computed(kind: ValueKind, run: Run, position: int, shown: str = "the computed value") -> Operand:
    return Operand(kind, run, position, shown)


def written_text(name: str, operand: Operand) -> str:
    """Return the value of an argument that must be a string literal."""
    if not isinstance(operand.written, str):
        raise Mistake(operand.position, f"{name} takes a string literal in 'single quotes' here")
    return operand.written
