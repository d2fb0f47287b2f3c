"""The filter compiler, which determines the types in a syntax tree from a schema and returns functions that operate on
batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters import choices, comparisons, like, nested, numbers, texts, times
from penstock.core.filters.alike import is_whole
from penstock.core.filters.functions import Function
from penstock.core.filters.kinds import NULL, REAL, TEXT, TRUTH, WHOLE, Mistake, Operand, constant, loaded
from penstock.core.filters.limits import CALLS_MAX, PATTERNS_MAX
from penstock.core.filters.slices import Slicing
from penstock.core.filters.syntax import FieldAccess, FunctionCall, Lambda, Literal, Name, Node
from penstock.core.schema import SYSTEM_COLUMNS

Builder = Callable[[Sequence[Operand]], Operand]
_SHOWN_MAX = 40
_NAMES_SHOWN = 8
_PATTERNS = ("like", "ilike")
_CREATING = ("||", "concat", "replace")
_GROWING = ("text", "bytes", "list", "map", "struct")
_ONE_ROW = pa.RecordBatch.from_pydict({"": pa.nulls(1)})


def _arithmetic(name: str, left: Operand, right: Operand) -> Operand:
    return times.shifted(name, left, right) or numbers.arithmetic(name, left, right)


def _binary(names: Sequence[str], build: Callable[..., Operand]) -> dict[str, Builder]:
    """Return builders for a filter's binary operators that share a build function."""
    return {name: (lambda operator: lambda operands: build(operator, *operands))(name) for name in names}


_OPERATORS: Mapping[str, Builder] = {
    **_binary(("=", "<>", "<", "<=", ">", ">="), comparisons.compared),
    **_binary(("+", "-", "*", "/", "%"), _arithmetic),
    "negative": lambda operands: numbers.negative(*operands),
    "like": lambda operands: like.like("like", operands),
    "ilike": lambda operands: like.like("ilike", operands),
    "||": lambda operands: FUNCTIONS["concat"].of("||", operands[0].position, operands),
    "[]": lambda operands: nested.element(*operands),
    "not": lambda operands: comparisons.negated(*operands),
    "is null": lambda operands: comparisons.is_null(*operands),
    "between": lambda operands: comparisons.between(*operands),
    "in": lambda operands: comparisons.among(operands[0], operands[1:]),
}
FUNCTIONS: Mapping[str, Function] = {
    **texts.FUNCTIONS,
    **numbers.FUNCTIONS,
    **times.FUNCTIONS,
    **choices.FUNCTIONS,
    **nested.FUNCTIONS,
}


class Growth(NamedTuple):
    """The number of operations that create longer strings, and of operations that return strings or lists, which can be
    copies of their operands."""

    created: int = 0
    copied: int = 0

    def since(self, before: Growth) -> Growth:
        return Growth(self.created - before.created, self.copied - before.copied)


NO_GROWTH = Growth()


@dataclass
class _Tally:
    """The number of expensive operations in one expression."""

    calls: int = 0
    patterns: int = 0
    growth: Growth = NO_GROWTH


class Compiler:
    """Determines the types of nodes, and records the columns they read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = [name for name in schema.names if name not in SYSTEM_COLUMNS]
        self._tally = _Tally()
        self.columns: set[str] = set()

    @property
    def growth(self) -> Growth:
        """The operations compiled so far that make strings."""
        return self._tally.growth

    def operand(self, node: Node) -> Operand:
        match node:
            case Name():
                return self._column(node)
            case FieldAccess():
                return _field(self.operand(node.of), node)
            case Literal():
                return _literal(node)
            case FunctionCall(name="and" | "or"):
                return comparisons.joined(node.name, [self.operand(part) for part in _flat(node)])
            case FunctionCall(name="exists"):
                return self._exists(node)
            case Lambda():
                raise Mistake(node.position, "a condition with -> is allowed only in exists")
        arguments = [self.operand(argument) for argument in node.arguments]
        operand = _settled(self._call(node, arguments), arguments)
        self._count_growth(node, operand)
        return operand

    def _column(self, node: Name) -> Operand:
        if node.name not in self._names:
            raise Mistake(node.position, missing("column", node.name, self._names))
        self.columns.add(node.name)
        index, name = self._schema.get_field_index(node.name), node.name
        if index < 0:
            raise Mistake(node.position, f"several columns are called {name!r}")
        return loaded(self._schema.field(index).type, lambda batch: batch.column(name), node.position, name)

    def _exists(self, node: FunctionCall) -> Operand:
        match node.arguments:
            case (of, Lambda() as condition):
                lists = self.operand(of)
            case _:
                raise Mistake(node.position, "exists takes a list and a condition: exists(topics, t -> t.name = 'x')")
        if lists.kind.name != "list":
            raise Mistake(lists.position, f"exists requires a list, but {lists.typed} is not one")
        self._count(node, ())
        inner, before = _OfElement(condition.name, lists.kind.arrow.value_type, self._tally), self.growth
        hit = comparisons.truth(inner.operand(condition.body))
        return nested.exists(lists, hit, condition.name, Slicing.of(*self.growth.since(before)))

    def _call(self, node: FunctionCall, operands: Sequence[Operand]) -> Operand:
        self._count(node, operands)
        if node.name in _OPERATORS:
            return _OPERATORS[node.name](operands)
        if node.name not in FUNCTIONS:
            raise Mistake(node.position, missing("function", node.name, sorted(FUNCTIONS)))
        return FUNCTIONS[node.name].of(node.name, node.position, operands)

    def _count(self, node: FunctionCall, operands: Sequence[Operand]) -> None:
        """Count expensive operations, and reject an expression with too many."""
        is_pattern = node.name in _PATTERNS
        tally = self._tally
        tally.calls += is_pattern or node.name in FUNCTIONS or node.name == "exists"
        tally.patterns += is_pattern and like.is_hard(operands)
        if tally.calls > CALLS_MAX:
            raise Mistake(node.position, f"there are more than {CALLS_MAX} functions and patterns")
        if tally.patterns > PATTERNS_MAX:
            raise Mistake(node.position, f"there are more than {PATTERNS_MAX} patterns with % or _ inside")

    def _count_growth(self, node: FunctionCall, operand: Operand) -> None:
        if operand.fixed is None and operand.kind.name in _GROWING:
            created, copied = self.growth
            self._tally.growth = Growth(created + (node.name in _CREATING), copied + 1)


class _OfElement(Compiler):
    """Compiles a condition on the elements of a list, which form the only column of a separate batch."""

    def __init__(self, name: str, kind: pa.DataType, tally: _Tally) -> None:
        super().__init__(pa.schema([pa.field(name, kind)]))
        self._names = [name]
        self._element, self._tally = name, tally

    def _column(self, node: Name) -> Operand:
        if node.name == self._element:
            return super()._column(node)
        kind = self._schema.field(0).type
        if pa.types.is_struct(kind) and kind.get_field_index(node.name) >= 0:
            raise Mistake(node.position, f"to use a field of the element, write {self._element}.{node.name}")
        raise Mistake(node.position, f"only the element, {self._element}, and its fields can be used here")


def _flat(node: FunctionCall) -> list[Node]:
    """Return the terms of `a AND b AND c`, a tree nested on the left."""
    terms: list[Node] = []
    this: Node = node
    while isinstance(this, FunctionCall) and this.name == node.name:
        terms.append(this.arguments[1])
        this = this.arguments[0]
    return [this, *reversed(terms)]


def _settled(operand: Operand, arguments: Sequence[Operand]) -> Operand:
    """Return a constant for a filter's operand that is built only from constants; return other operands unchanged."""
    if operand.fixed is not None or any(argument.fixed is None for argument in arguments):
        return operand
    value = operand.run(_ONE_ROW)
    scalar = value if isinstance(value, pa.Scalar) else value[0]
    return replace(operand, run=lambda batch: scalar, fixed=scalar)


def _field(of: Operand, node: FieldAccess) -> Operand:
    if of.kind.name != "struct" or of.raw is None:
        raise Mistake(node.name_position, f"{of.typed} has no fields, so it has no {node.name[:_SHOWN_MAX]!r}")
    raw, run = of.raw
    index = raw.get_field_index(node.name)
    if index < 0:
        names = [raw.field(number).name for number in range(raw.num_fields)]
        raise Mistake(node.name_position, missing("field", node.name, names))
    shown = f"{of.shown}.{node.name}"
    return loaded(raw.field(index).type, lambda batch: pc.struct_field(run(batch), [index]), node.position, shown)


def missing(sort: str, name: str, there: Sequence[str]) -> str:
    near = get_close_matches(name, there, 1) if len(name) <= 2 * _SHOWN_MAX else []
    if near:
        return f"there is no {sort} {name[:_SHOWN_MAX]!r}; did you mean {near[0]}?"
    names = ", ".join(candidate[:_SHOWN_MAX] for candidate in there[:_NAMES_SHOWN]) + ", ..." * (
        len(there) > _NAMES_SHOWN
    )
    quotes = "; text is written in 'single quotes'" if sort == "column" else ""
    return f"there is no {sort} {name[:_SHOWN_MAX]!r}; available: {names or 'none'}{quotes}"


def _literal(node: Literal) -> Operand:
    value, position = node.value, node.position
    if value is None:
        return constant(NULL, None, position, "NULL")
    if isinstance(value, bool):
        return constant(TRUTH, value, position, str(value).upper())
    if isinstance(value, str):
        return constant(TEXT, value, position, repr(value[:_SHOWN_MAX]), value)
    return _number(value, position)


def _number(value: Decimal, position: int) -> Operand:
    shown = str(value)[:_SHOWN_MAX]
    if is_whole(value):
        return constant(WHOLE, int(value), position, shown, value)
    return constant(REAL, float(value), position, shown, value)
