"""Compiles expressions to closures that process one row at a time.

`penstock.core.filters` defines the meaning of expressions: it determines their types and rejects invalid expressions. A
closure does in Python what the filter would do with Arrow. Expressions without a closure are computed by the filter on
a batch of one row, which is slower but has the same result.
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
from penstock.core.filters.alike import READERS
from penstock.core.filters.compiler import Compiler
from penstock.core.filters.kinds import NUMBERS, TIME, Mistake, ValueKind
from penstock.core.filters.syntax import FieldAccess, FunctionCall, Literal, Name, Node

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
    """The rows that a pattern's expression uses in addition to the current row: the rows just before it, or the match
    so far."""

    rows_before: bool = False
    match: bool = False

    def __or__(self, other: Any) -> Look:
        return Look(self.rows_before or other.rows_before, self.match or other.match)


HERE = Look()


@dataclass(frozen=True)
class Leaf:
    """A part of an expression that is computed from the rows: a column, navigation or an aggregate."""

    shown: str
    arrow: pa.DataType
    hint: Any
    nullable: bool
    value: Value
    look: Look = HERE


@dataclass(frozen=True)
class CompiledExpression:
    """A compiled expression. `hint` is its Python type, or None if an event cannot contain the value."""

    kind: ValueKind
    hint: Any
    nullable: bool
    value: Value
    look: Look


Leaves = Callable[[Node], Leaf | None]
"""A function that returns the leaf for a node, or None if the node is not computed from the rows."""


def arrow_of(kind: ValueKind) -> pa.DataType:
    return pa.timestamp("us", "UTC") if kind == TIME else kind.arrow


def compile_expression(node: Node, leaves: Leaves) -> CompiledExpression:
    """Compile an expression of a pattern in SQL. Raises `Mistake` if it is invalid."""
    columns: dict[str, Leaf] = {}
    rest_of = _leaves_as_names(node, leaves, columns)
    schema = pa.schema([pa.field(leaf.shown, leaf.arrow) for leaf in columns.values()])
    closures = _Closures(schema, columns)
    kind = closures.kind(rest_of)
    look = HERE
    for leaf in columns.values():
        look |= leaf.look
    if isinstance(rest_of, Name):
        leaf = columns[rest_of.name]
        return CompiledExpression(kind, leaf.hint, leaf.nullable, leaf.value, leaf.look)
    return CompiledExpression(kind, HINTS.get(kind.name), True, closures.value(rest_of), look)


def _leaves_as_names(node: Node, leaves: Leaves, columns: dict[str, Leaf]) -> Node:
    """Return an expression's tree with each leaf replaced by a name."""
    leaf = leaves(node)
    if leaf is not None:
        columns[leaf.shown] = leaf
        return Name(leaf.shown, node.position)
    if isinstance(node, FieldAccess):
        return FieldAccess(_leaves_as_names(node.of, leaves, columns), node.name, node.position, node.name_position)
    if isinstance(node, FunctionCall):
        return FunctionCall(
            node.name, tuple(_leaves_as_names(argument, leaves, columns) for argument in node.arguments), node.position
        )
    return node


class _Closures:
    def __init__(self, schema: pa.Schema, leaves: Mapping[str, Leaf]) -> None:
        self.schema, self.leaves = schema, leaves

    def kind(self, node: Node) -> ValueKind:
        return Compiler(self.schema).operand(node).kind

    def value(self, node: Node) -> Value:
        operand = Compiler(self.schema).operand(node)
        if operand.fixed is not None:
            return closures.constant(closures.python(operand.fixed.as_py(), operand.kind))
        if isinstance(node, Name):
            return plain(self.leaves[node.name].value)
        if isinstance(node, FieldAccess):
            return closures.field_of(self.value(node.of), node.name)
        assert isinstance(node, FunctionCall), node
        return self._call_closure(node, operand.kind) or self._by_arrow(node)

    def _call_closure(self, node: FunctionCall, kind: ValueKind) -> Value | None:
        name, arguments = node.name, node.arguments
        if name in ("and", "or"):
            return closures.joined(name == "or", [self.value(argument) for argument in arguments])
        if name == "not":
            return closures.negated(self.value(arguments[0]))
        if name == "is null":
            return closures.is_null(self.value(arguments[0]))
        if name in _COMPARE:
            return self._compared(_COMPARE[name], *arguments)
        if name == "between":
            low, high = (self._compared(_COMPARE[sign], arguments[0], bound)
                         for sign, bound in ((">=", arguments[1]), ("<=", arguments[2])))  # fmt: skip
            return closures.joined(False, [low, high])
        if name == "in":
            return closures.joined(
                True, [self._compared(operator.eq, arguments[0], argument) for argument in arguments[1:]]
            )
        if name in _ARITHMETIC or name in ("%", "negative"):
            return self._arithmetic_closure(name, arguments, kind)
        return None

    def _compared(self, compare: Callable[[Any, Any], bool], left: Node, right: Node) -> Value:
        """Return a closure that compares two expressions. Its result is None if one of them is NULL."""
        kinds = self.kind(left), self.kind(right)
        first, second = (
            self._comparison_operand(left, kinds[0], right, kinds[1]),
            self._comparison_operand(right, kinds[1], left, kinds[0]),
        )

        def run(rows: Rows, number: int) -> bool | None:
            one, other = first(rows, number), second(rows, number)
            return None if one is None or other is None else compare(one, other)

        return run

    def _comparison_operand(self, node: Node, kind: ValueKind, beside: Node, other: ValueKind) -> Value:
        """Return one side of a comparison, converted so that Python compares it with the other side as Arrow would."""
        if isinstance(node, Literal) and isinstance(node.value, str) and other in READERS:
            return closures.constant(closures.python(READERS[other][0](node.value), other))
        if isinstance(node, Literal) and isinstance(node.value, Decimal):
            return closures.constant(float(node.value) if other.name == "real" else node.value)
        value = self.value(node)
        written = isinstance(beside, Literal)
        return closures.real(value) if other.name == "real" and kind.name != "real" and not written else value

    def _arithmetic_closure(self, name: str, arguments: tuple[Node, ...], kind: ValueKind) -> Value | None:
        if name == "negative":
            name, arguments = "-", (Literal(Decimal(0), arguments[0].position), *arguments)
        kinds = [self.kind(argument).name for argument in arguments]
        values = [self.value(argument) for argument in arguments]
        if not set(kinds) <= {*NUMBERS, "null"}:
            return closures.shifted(_ARITHMETIC[name], values) if kind.name in ("time", "interval") else None
        if kind.name == "real":
            step = closures.remainder if name == "%" else _ARITHMETIC[name]
            return closures.finite(step, closures.real(values[0]), closures.real(values[1]))
        if kind.name == "whole":
            return closures.whole(closures.remainder_whole if name == "%" else _ARITHMETIC[name], *values)
        return closures.exact(_ARITHMETIC[name], *values)

    def _by_arrow(self, node: Node) -> Value:
        """Return a closure that evaluates an expression with Arrow, one row at a time."""
        compiler = Compiler(self.schema)
        operand = compiler.operand(node)
        used = [self.leaves[name] for name in sorted(compiler.columns)]
        schema = pa.schema([pa.field(leaf.shown, leaf.arrow) for leaf in used])

        def run(rows: Rows, number: int) -> Any:
            columns = [
                pa.array([closures.to_arrow_value(leaf.value(rows, number), leaf.arrow)], leaf.arrow) for leaf in used
            ]
            output = operand.run(pa.record_batch(columns, schema=schema))
            return closures.python((output if isinstance(output, pa.Scalar) else output[0]).as_py(), operand.kind)

        return run


def wanted(expression: CompiledExpression, position: int, what: str) -> Any:
    """Return the Python type of a column that a pattern in SQL emits. Raises `Mistake` if an event cannot contain such
    a value."""
    if expression.hint is None:
        raise Mistake(
            position, f"{what} is {expression.kind.shown}, which an event cannot hold: emit its parts instead"
        )
    return expression.hint
