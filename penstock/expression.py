"""Conditions on events and rows, as SQL text, compiled to plain Python predicates.

    important = compiled("severity >= 3 OR kind = 'alarm'", columns_of(Reading))
    important(reading)

What may stand in one is a list of node types of the parsed text, all else is refused: names of columns, text, numbers,
TRUE, FALSE and NULL; `=`, `<>`, `<`, `<=`, `>`, `>=`, IN, BETWEEN, IS NULL; AND, OR, NOT and parentheses. Nothing of
the text is ever run: each node becomes a closure of ours. So a text of a stranger can do nothing but compare.

NULL is SQL's: what is compared with it is unknown, and a condition that is unknown does not hold. Types are checked
when the text is compiled: a text is not compared with a number. Text against a time, a date or a UUID is read as one.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin
from uuid import UUID

from penstock.comparing import Kind, Operand, Value, compared, constant, every_of, negated, number, some_of
from penstock.errors import BadExpression
from penstock.schema import Event, Field, fields

if TYPE_CHECKING:
    from sqlglot import exp

LENGTH_MAX = 2_048
NODES_MAX = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_KINDS: Mapping[Any, Kind] = {
    str: "text", int: "whole", float: "real", Decimal: "decimal", bool: "truth", datetime: "time", date: "date",
    UUID: "uuid",
}  # fmt: skip
_PARTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("And", "Or", "EQ", "NEQ", "LT", "LTE", "GT", "GTE", "Is"), frozenset({"this", "expression"})),
    **dict.fromkeys(("Not", "Paren", "Neg", "Boolean", "Column"), frozenset({"this"})),
    "In": frozenset({"this", "expressions"}),
    "Between": frozenset({"this", "low", "high"}),
    "Literal": frozenset({"this", "is_string"}),
    "Identifier": frozenset({"this", "quoted"}),
    "Null": frozenset(),
}
"""The node types that are allowed, and what each may have. One that has anything more is refused with the others."""


class Column(NamedTuple):
    """What a column holds. `plain` makes of a value, if need be, one that can be compared: of an enum what it stands
    for."""

    kind: Kind
    plain: Callable[[Any], Any] | None = None


def compiled(
    text: str, columns: Mapping[str, Column], read: Callable[[Any, str], Any] = getattr
) -> Callable[[Any], bool]:
    """A predicate: whether the condition holds for a row. `BadExpression`, with a sentence for a person, if the text is
    none. `read` gives a column of a row: by default an attribute of an object; `operator.getitem` for mappings."""
    holds = _Compiler(columns, read).condition(_parsed(text))
    return lambda row: holds(row) is True


def columns_of(cls: type[Event]) -> dict[str, Column]:
    """The fields of an event class that can be compared, as the front door has them: in instances of its wire class."""
    found = {each.name: _column(each) for each in fields(cls)}
    return {name: column for name, column in found.items() if column is not None}


def _column(field: Field) -> Column | None:
    base = field.base
    if field.epoch:
        return Column("time", _time_of_millis)
    if get_origin(base) is Literal:
        return Column(_KINDS[type(get_args(base)[0])])
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return Column(_KINDS[type(next(iter(base)).value)], operator.attrgetter("value"))
    kind = _KINDS.get(base) if isinstance(base, type) else None
    return None if kind is None else Column(kind)


def _time_of_millis(value: Any) -> Any:
    return _EPOCH + timedelta(milliseconds=value) if isinstance(value, int) else value


def _parsed(text: str) -> exp.Expr:
    """The text as a tree of allowed nodes. The longest text takes some milliseconds."""
    if not isinstance(text, str) or len(text) > LENGTH_MAX:
        raise BadExpression(f"an expression is text of at most {LENGTH_MAX} characters")
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        _require_plain(sqlglot.tokenize(text))
        tree: exp.Expr = sqlglot.parse_one(text, into=exp.Condition)
        for number, node in enumerate(tree.walk()):
            if number >= NODES_MAX:
                raise BadExpression(f"the expression has more than {NODES_MAX} parts")
            _require_allowed(node)
    except SqlglotError:
        raise BadExpression(f"the expression cannot be read: {text[:80]!r}") from None
    except RecursionError:
        raise BadExpression("the expression is nested too deeply") from None
    return tree


def _require_plain(tokens: Sequence[Any]) -> None:
    """What the parser would pass over in silence, or write of into the log."""
    if any(token.comments or token.token_type.name == "SEMICOLON" for token in tokens):
        raise BadExpression("an expression has no comments and no semicolons")
    if tokens and tokens[0].text.upper() == "IF":
        raise BadExpression(_not_allowed("If"))


def _require_allowed(node: exp.Expr) -> None:
    name = type(node).__name__
    surplus = {part for part, value in node.args.items() if value} - _PARTS.get(name, frozenset())
    if name == "Column" and surplus:
        raise BadExpression("a column is named by its name alone, without a dot")
    if name not in _PARTS or surplus:
        raise BadExpression(_not_allowed(name))


def _not_allowed(name: str) -> str:
    return (
        f"the expression has something that is not allowed ({name}); use columns and values, =, <>, <, <=, >, >=, IN, "
        "BETWEEN, IS NULL, AND, OR, NOT and parentheses"
    )


class _Compiler:
    """Closures of nodes. As deep as the tree, which has `NODES_MAX` nodes."""

    def __init__(self, columns: Mapping[str, Column], read: Callable[[Any, str], Any]) -> None:
        self._columns = columns
        self._read = read

    def condition(self, node: Any) -> Value:
        """What is true, false or unknown."""
        found = self._operand(node)
        if found.kind not in ("truth", None):
            raise BadExpression(f"{found.shown} is no condition: compare it with something")
        return found.value

    def _operand(self, node: Any) -> Operand:
        name = type(node).__name__
        if name == "Paren":
            return self._operand(node.this)
        if name == "Column":
            return self._named(node.name)
        if name in ("Literal", "Neg", "Boolean", "Null"):
            return _literal(node)
        return Operand("a condition", "truth", self._term(name, node))

    def _named(self, name: str) -> Operand:
        column, read = self._columns.get(name), self._read
        if column is None:
            there = ", ".join(self._columns) or "none"
            raise BadExpression(
                f"there is no column {name[:80]!r} to compare; there are {there}, and text stands in 'single quotes'"
            )
        plain = column.plain
        if plain is None:
            return Operand(name, column.kind, lambda row: read(row, name))

        def value(row: Any) -> Any:
            found = read(row, name)
            return None if found is None else plain(found)

        return Operand(name, column.kind, value)

    def _term(self, name: str, node: Any) -> Value:
        if name in ("And", "Or"):
            both = self.condition(node.this), self.condition(node.expression)
            return every_of(both) if name == "And" else some_of(both)
        if name == "Not":
            return negated(self.condition(node.this))
        if name == "Is":
            return self._is_null(node)
        this = self._operand(node.this)
        if name == "Between":
            low, high = self._operand(node.args["low"]), self._operand(node.args["high"])
            return every_of((compared("GTE", this, low), compared("LTE", this, high)))
        if name == "In":
            return self._is_among(this, node.expressions)
        return compared(name, this, self._operand(node.expression))

    def _is_null(self, node: Any) -> Value:
        if type(node.expression).__name__ != "Null":
            raise BadExpression("IS is for NULL; compare with = TRUE or = FALSE")
        value = self._operand(node.this).value
        return lambda row: value(row) is None

    def _is_among(self, this: Operand, items: Sequence[Any]) -> Value:
        if not items:
            raise BadExpression("IN needs values: IN ('a', 'b')")
        return some_of([compared("EQ", this, self._operand(each)) for each in items])


def _literal(node: Any) -> Operand:
    name = type(node).__name__
    if name == "Null":
        return constant("NULL", None, None)
    if name == "Boolean":
        return constant(str(node.this).upper(), "truth", bool(node.this))
    if name == "Neg":
        inner = node.this
        if type(inner).__name__ != "Literal" or inner.is_string:
            raise BadExpression("a minus stands before a number only")
        negative = number(f"-{inner.this}")
        return constant(str(negative), "decimal", negative)
    if node.is_string:
        return constant(repr(node.this[:40]), "text", node.this)
    return constant(node.this[:40], "decimal", number(node.this))
