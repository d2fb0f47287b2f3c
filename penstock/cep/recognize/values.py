"""Expressions over one row at a time, as closures. What an expression means is what `penstock.filters` says: it types
each, and refuses what is wrong; a closure only does in Python what that would do with Arrow. What there is no closure
for is computed by it, on a batch of one row, which is slower and the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.cep.recognize import closures
from penstock.cep.recognize.closures import Rows, Value, plain
from penstock.filters.alike import READERS
from penstock.filters.compiler import Compiler
from penstock.filters.kinds import NUMBERS, TIME, Kind, Mistake
from penstock.filters.syntax import Call, Field, Literal, Name, Node

HINTS: Mapping[str, Any] = {
    "truth": bool, "whole": int, "real": float, "decimal": Decimal, "text": str, "time": datetime, "date": date,
    "bytes": bytes,
}  # fmt: skip
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip


class Look(NamedTuple):
    """What an expression looks at beside the current row: rows just before it, or what has matched."""

    rows_before: bool = False
    match: bool = False

    def __or__(self, other: Any) -> Look:
        return Look(self.rows_before or other.rows_before, self.match or other.match)


HERE = Look()


@dataclass(frozen=True)
class Leaf:
    """A part of an expression that is had from the rows: a column, or what is found or counted in them."""

    shown: str
    arrow: pa.DataType
    hint: Any
    nullable: bool
    value: Value
    look: Look = HERE


@dataclass(frozen=True)
class Made:
    """An expression compiled. `hint` is its Python type, None if it has none that an event could hold."""

    kind: Kind
    hint: Any
    nullable: bool
    value: Value
    look: Look


Leaves = Callable[[Node], Leaf | None]
"""Tells whether a node is had from the rows."""


def arrow_of(kind: Kind) -> pa.DataType:
    return pa.timestamp("us", "UTC") if kind == TIME else kind.arrow


def made(node: Node, leaves: Leaves) -> Made:
    """Compile an expression; a `Mistake` if it is wrong."""
    found: dict[str, Leaf] = {}
    rest_of = _rewritten(node, leaves, found)
    schema = pa.schema([pa.field(leaf.shown, leaf.arrow) for leaf in found.values()])
    closures = _Closures(schema, found)
    kind = closures.kind(rest_of)
    look = HERE
    for leaf in found.values():
        look |= leaf.look
    if isinstance(rest_of, Name):
        leaf = found[rest_of.name]
        return Made(kind, leaf.hint, leaf.nullable, leaf.value, leaf.look)
    return Made(kind, HINTS.get(kind.name), True, closures.value(rest_of), look)


def _rewritten(node: Node, leaves: Leaves, found: dict[str, Leaf]) -> Node:
    """The same tree with a name for each part that is had from the rows."""
    leaf = leaves(node)
    if leaf is not None:
        found[leaf.shown] = leaf
        return Name(leaf.shown, node.position)
    if isinstance(node, Field):
        return Field(_rewritten(node.of, leaves, found), node.name, node.position, node.name_position)
    if isinstance(node, Call):
        return Call(node.name, tuple(_rewritten(each, leaves, found) for each in node.arguments), node.position)
    return node


class _Closures:
    def __init__(self, schema: pa.Schema, leaves: Mapping[str, Leaf]) -> None:
        self.schema, self.leaves = schema, leaves

    def kind(self, node: Node) -> Kind:
        return Compiler(self.schema).operand(node).kind

    def value(self, node: Node) -> Value:
        operand = Compiler(self.schema).operand(node)
        if operand.fixed is not None:
            return closures.constant(closures.python(operand.fixed.as_py(), operand.kind))
        if isinstance(node, Name):
            return plain(self.leaves[node.name].value)
        if isinstance(node, Field):
            return closures.field_of(self.value(node.of), node.name)
        assert isinstance(node, Call), node
        return self._call(node, operand.kind) or self._by_arrow(node)

    def _call(self, node: Call, kind: Kind) -> Value | None:
        name, arguments = node.name, node.arguments
        if name in ("and", "or"):
            return closures.joined(name == "or", [self.value(each) for each in arguments])
        if name == "not":
            return closures.negated(self.value(arguments[0]))
        if name == "is null":
            return closures.is_null(self.value(arguments[0]))
        if name in _COMPARE:
            return self._compared(_COMPARE[name], *arguments)
        if name == "between":
            low, high = (self._compared(_COMPARE[sign], arguments[0], each)
                         for sign, each in ((">=", arguments[1]), ("<=", arguments[2])))  # fmt: skip
            return closures.joined(False, [low, high])
        if name == "in":
            return closures.joined(True, [self._compared(operator.eq, arguments[0], each) for each in arguments[1:]])
        if name in _ARITHMETIC or name in ("%", "negative"):
            return self._computed(name, arguments, kind)
        return None

    def _compared(self, compare: Callable[[Any, Any], bool], left: Node, right: Node) -> Value:
        kinds = self.kind(left), self.kind(right)
        first, second = self._alike(left, kinds[0], right, kinds[1]), self._alike(right, kinds[1], left, kinds[0])

        def run(rows: Rows, number: int) -> bool | None:
            one, other = first(rows, number), second(rows, number)
            return None if one is None or other is None else compare(one, other)

        return run

    def _alike(self, node: Node, kind: Kind, beside: Node, other: Kind) -> Value:
        """A side of a comparison, as something that Python compares with the other side as Arrow would."""
        if isinstance(node, Literal) and isinstance(node.value, str) and other in READERS:
            return closures.constant(closures.python(READERS[other][0](node.value), other))
        if isinstance(node, Literal) and isinstance(node.value, Decimal):
            return closures.constant(float(node.value) if other.name == "real" else node.value)
        value = self.value(node)
        written = isinstance(beside, Literal)
        return closures.real(value) if other.name == "real" and kind.name != "real" and not written else value

    def _computed(self, name: str, arguments: tuple[Node, ...], kind: Kind) -> Value | None:
        if name == "negative":
            name, arguments = "-", (Literal(Decimal(0), arguments[0].position), *arguments)
        kinds = [self.kind(each).name for each in arguments]
        values = [self.value(each) for each in arguments]
        if not set(kinds) <= {*NUMBERS, "null"}:
            return closures.shifted(_ARITHMETIC[name], values) if kind.name in ("time", "interval") else None
        if kind.name == "real":
            step = closures.remainder if name == "%" else _ARITHMETIC[name]
            return closures.finite(step, closures.real(values[0]), closures.real(values[1]))
        if kind.name == "whole":
            return closures.whole(closures.remainder_whole if name == "%" else _ARITHMETIC[name], *values)
        return closures.exact(_ARITHMETIC[name], *values)

    def _by_arrow(self, node: Node) -> Value:
        compiler = Compiler(self.schema)
        operand = compiler.operand(node)
        used = [self.leaves[name] for name in sorted(compiler.columns)]
        schema = pa.schema([pa.field(leaf.shown, leaf.arrow) for leaf in used])

        def run(rows: Rows, number: int) -> Any:
            columns = [pa.array([closures.told(leaf.value(rows, number), leaf.arrow)], leaf.arrow) for leaf in used]
            found = operand.run(pa.record_batch(columns, schema=schema))
            return closures.python((found if isinstance(found, pa.Scalar) else found[0]).as_py(), operand.kind)

        return run


def wanted(made: Made, position: int, what: str) -> Any:
    """The Python type of a column that is emitted."""
    if made.hint is None:
        raise Mistake(
            position, f"{what} is {made.kind.shown}, which no event can hold: emit what it is made of instead"
        )
    return made.hint
