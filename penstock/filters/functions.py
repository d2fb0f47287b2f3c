"""What a function of the language is: what it takes, and how it is built of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.filters.kinds import DATE, REAL, TEXT, TIME, WHOLE, Kind, Mistake, Operand, Run, constant

_OF_NULL = {"text": TEXT, "whole": WHOLE, "real": REAL, "time": TIME, "date": DATE}
Check = Callable[[str, Operand], Operand]


@dataclass(frozen=True)
class Function:
    """`takes` looks at each argument, `build` makes the result of them. There are `least` to `most` arguments."""

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
        return self.build([self.takes(name, each) for each in operands])


def need(*kinds: str) -> Check:
    """A check that an argument is of one of some kinds. NULL is taken as the first of them."""

    def check(name: str, operand: Operand) -> Operand:
        if operand.kind.name == "null" and kinds[0] in _OF_NULL:
            return constant(_OF_NULL[kinds[0]], None, operand.position, operand.shown)
        if operand.kind.name not in kinds:
            raise Mistake(operand.position, f"{name} does not take {operand.typed}")
        return operand

    return check


def anything(name: str, operand: Operand) -> Operand:
    return operand


def computed(kind: Kind, run: Run, position: int, shown: str = "what is computed") -> Operand:
    return Operand(kind, run, position, shown)


def written_text(name: str, operand: Operand) -> str:
    """The text of an argument that must stand in the expression itself."""
    if not isinstance(operand.written, str):
        raise Mistake(operand.position, f"{name} takes a text here that is written in 'single quotes'")
    return operand.written
