"""A tree of syntax, typed against a schema, as functions of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters import choices, like, logic, nested, numbers, texts, times
from penstock.filters.alike import is_whole
from penstock.filters.functions import Function
from penstock.filters.kinds import NULL, REAL, TEXT, TRUTH, WHOLE, Mistake, Operand, constant, loaded
from penstock.filters.limits import CALLS_MAX, PATTERNS_MAX
from penstock.filters.syntax import Call, Field, Lambda, Literal, Name, Node
from penstock.schema import SYSTEM_COLUMNS

Builder = Callable[[Sequence[Operand]], Operand]
_SHOWN_MAX = 40
_NAMES_SHOWN = 8
_PATTERNS = ("like", "ilike")
_ONE_ROW = pa.RecordBatch.from_pydict({"": pa.nulls(1)})


def _arithmetic(name: str, left: Operand, right: Operand) -> Operand:
    return times.shifted(name, left, right) or numbers.arithmetic(name, left, right)


def _each(names: Sequence[str], build: Callable[..., Operand]) -> dict[str, Builder]:
    """The operators of two sides that are built alike."""
    return {name: (lambda each: lambda operands: build(each, *operands))(name) for name in names}


_OPERATORS: Mapping[str, Builder] = {
    **_each(("=", "<>", "<", "<=", ">", ">="), logic.compared),
    **_each(("+", "-", "*", "/", "%"), _arithmetic),
    "negative": lambda operands: numbers.negative(*operands),
    "like": lambda operands: like.like("like", operands),
    "ilike": lambda operands: like.like("ilike", operands),
    "||": lambda operands: FUNCTIONS["concat"].of("||", operands[0].position, operands),
    "[]": lambda operands: nested.element(*operands),
    "not": lambda operands: logic.negated(*operands),
    "is null": lambda operands: logic.is_null(*operands),
    "between": lambda operands: logic.between(*operands),
    "in": lambda operands: logic.among(operands[0], operands[1:]),
}
FUNCTIONS: Mapping[str, Function] = {
    **texts.FUNCTIONS,
    **numbers.FUNCTIONS,
    **times.FUNCTIONS,
    **choices.FUNCTIONS,
    **nested.FUNCTIONS,
}


@dataclass
class _Tally:
    """How much there is of what costs much."""

    calls: int = 0
    patterns: int = 0


class Compiler:
    """Types nodes, and remembers which columns they read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = [name for name in schema.names if name not in SYSTEM_COLUMNS]
        self._tally = _Tally()
        self.columns: set[str] = set()

    def operand(self, node: Node) -> Operand:
        match node:
            case Name():
                return self._column(node)
            case Field():
                return _field(self.operand(node.of), node)
            case Literal():
                return _literal(node)
            case Call(name="and" | "or"):
                return logic.joined(node.name, [self.operand(each) for each in _flat(node)])
            case Call(name="exists"):
                return self._exists(node)
            case Lambda():
                raise Mistake(node.position, "a condition with -> stands in exists only")
        arguments = [self.operand(each) for each in node.arguments]
        return _settled(self._call(node, arguments), arguments)

    def _column(self, node: Name) -> Operand:
        if node.name not in self._names:
            raise Mistake(node.position, missing("column", node.name, self._names))
        self.columns.add(node.name)
        index, name = self._schema.get_field_index(node.name), node.name
        if index < 0:
            raise Mistake(node.position, f"there are several columns {name!r}")
        return loaded(self._schema.field(index).type, lambda batch: batch.column(name), node.position, name)

    def _exists(self, node: Call) -> Operand:
        match node.arguments:
            case (of, Lambda() as each):
                lists = self.operand(of)
            case _:
                raise Mistake(node.position, "exists takes a list and a condition: exists(topics, t -> t.name = 'x')")
        if lists.kind.name != "list":
            raise Mistake(lists.position, f"{lists.typed} is no list, and exists looks for an element of one")
        self._count(node, ())
        inner = _OfElement(each.name, lists.kind.arrow.value_type, self._tally)
        return nested.exists(lists, logic.truth(inner.operand(each.body)), each.name)

    def _call(self, node: Call, operands: Sequence[Operand]) -> Operand:
        self._count(node, operands)
        if node.name in _OPERATORS:
            return _OPERATORS[node.name](operands)
        if node.name not in FUNCTIONS:
            raise Mistake(node.position, missing("function", node.name, sorted(FUNCTIONS)))
        return FUNCTIONS[node.name].of(node.name, node.position, operands)

    def _count(self, node: Call, operands: Sequence[Operand]) -> None:
        """What costs much may stand there a few times only."""
        is_pattern = node.name in _PATTERNS
        tally = self._tally
        tally.calls += is_pattern or node.name in FUNCTIONS or node.name == "exists"
        tally.patterns += is_pattern and like.is_hard(operands)
        if tally.calls > CALLS_MAX:
            raise Mistake(node.position, f"there are more than {CALLS_MAX} functions and patterns")
        if tally.patterns > PATTERNS_MAX:
            raise Mistake(node.position, f"there are more than {PATTERNS_MAX} patterns with % or _ inside")


class _OfElement(Compiler):
    """Types a condition on the elements of a list, which stand in a column of their own."""

    def __init__(self, name: str, kind: pa.DataType, tally: _Tally) -> None:
        super().__init__(pa.schema([pa.field(name, kind)]))
        self._names = [name]
        self._element, self._tally = name, tally

    def _column(self, node: Name) -> Operand:
        if node.name == self._element:
            return super()._column(node)
        kind = self._schema.field(0).type
        if pa.types.is_struct(kind) and kind.get_field_index(node.name) >= 0:
            raise Mistake(node.position, f"write {self._element}.{node.name} for the field of an element")
        raise Mistake(node.position, f"only {self._element} can be named here, and its fields: it is the element")


def _flat(node: Call) -> list[Node]:
    """The terms of `a AND b AND c`, which is a tree that leans to the left."""
    terms: list[Node] = []
    this: Node = node
    while isinstance(this, Call) and this.name == node.name:
        terms.append(this.arguments[1])
        this = this.arguments[0]
    return [this, *reversed(terms)]


def _settled(operand: Operand, arguments: Sequence[Operand]) -> Operand:
    """What is made of constants alone is computed now."""
    if operand.fixed is not None or any(each.fixed is None for each in arguments):
        return operand
    value = operand.run(_ONE_ROW)
    scalar = value if isinstance(value, pa.Scalar) else value[0]
    return replace(operand, run=lambda batch: scalar, fixed=scalar)


def _field(of: Operand, node: Field) -> Operand:
    if of.kind.name != "struct" or of.raw is None:
        raise Mistake(node.name_position, f"{of.typed} has no fields, so no {node.name[:_SHOWN_MAX]!r}")
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
    names = ", ".join(each[:_SHOWN_MAX] for each in there[:_NAMES_SHOWN]) + ", ..." * (len(there) > _NAMES_SHOWN)
    quotes = ", and text stands in 'single quotes'" if sort == "column" else ""
    return f"there is no {sort} {name[:_SHOWN_MAX]!r}; there are {names or 'none'}{quotes}"


def _literal(node: Literal) -> Operand:
    value, place = node.value, node.position
    if value is None:
        return constant(NULL, None, place, "NULL")
    if isinstance(value, bool):
        return constant(TRUTH, value, place, str(value).upper())
    if isinstance(value, str):
        return constant(TEXT, value, place, repr(value[:_SHOWN_MAX]), value)
    return _number(value, place)


def _number(value: Decimal, place: int) -> Operand:
    shown = str(value)[:_SHOWN_MAX]
    if is_whole(value):
        return constant(WHOLE, int(value), place, shown, value)
    return constant(REAL, float(value), place, shown, value)
