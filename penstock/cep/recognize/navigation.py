"""Navigation and aggregates over the rows of a match: columns, FIRST, LAST, PREV, COUNT, SUM and others.

A column refers to the last row of its variable. Without a variable, or in the condition of its own variable, it refers
to the current row. FIRST and LAST use the rows of a variable. PREV uses consecutive rows, which all belong to the
match, because no other rows are allowed in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa

from penstock.cep.recognize.closures import Rows, Value, plain
from penstock.cep.recognize.pattern_clause import variable
from penstock.cep.recognize.values import HERE, HINTS, CompiledExpression, Leaf, Look, arrow_of, compile_expression
from penstock.core.filters.alike import INT_MAX, INT_MIN
from penstock.core.filters.compiler import missing
from penstock.core.filters.kinds import NUMBERS, REAL, TEXT, WHOLE, Mistake
from penstock.core.filters.syntax import FieldAccess, FunctionCall, Lambda, Literal, Name, Node
from penstock.core.schema import Event, arrow_type, fields

OFFSET_MAX = 1_000
_ORDERED = (*NUMBERS, "text", "time", "date")
_BEFORE, _MATCH = Look(rows_before=True), Look(match=True)


@dataclass(frozen=True)
class Scope:
    """The names that an expression can use: the columns of a class and the variables of a pattern.

    `current` is the variable whose condition is compiled, or None for a measure. `always` contains the variables that
    have a row in every match. `least` contains, for each variable, the minimum number of rows before its first row,
    which limits how far back PREV can go.
    """

    cls: type[Event]
    variables: tuple[str, ...]
    least: Mapping[str, int]
    always: frozenset[str] = frozenset()
    current: str | None = None
    columns: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", {column.name: column for column in fields(self.cls)})

    def compile(self, node: Node) -> CompiledExpression:
        return compile_expression(node, self.leaf)

    def leaf(self, node: Node) -> Leaf | None:
        if isinstance(node, FunctionCall):
            build = CALLS.get(node.name)
            return None if build is None else build(self, node)
        column = self.column(node)
        if column is None:
            return None
        name, of = column
        schema_field = self.columns[name]
        nullable = schema_field.nullable or (of is not None and of not in self.always)
        look = HERE if of in (None, self.current) else _MATCH
        value = _current(name) if of in (None, self.current) else _last_row_value(of, 0, _current(name))
        return Leaf(shown(node), arrow_type(schema_field.hint), schema_field.base, nullable, value, look)

    def column(self, node: Node) -> tuple[str, str | None] | None:
        """Return the match column that a node names, and its variable, or None if the node is not a column."""
        if isinstance(node, FieldAccess) and isinstance(node.of, Name) and variable(node.of.name) in self.variables:
            self._require_column(node.name, node.name_position)
            return node.name, variable(node.of.name)
        if isinstance(node, Name):
            self._require_column(node.name, node.position)
            return node.name, None
        return None

    def _require_column(self, name: str, position: int) -> None:
        if name == "*":
            raise Mistake(position, "* is allowed only in COUNT")
        if name not in self.columns:
            raise Mistake(position, missing("column", name, tuple(self.columns)))

    def of_one(self, node: Node, call: FunctionCall) -> tuple[str | None, CompiledExpression]:
        """Compile an argument: an expression over the rows of one variable, or over all rows if it does not name a
        variable."""
        seen: dict[str | None, int] = {}

        def leaf(part: Node) -> Leaf | None:
            if isinstance(part, FunctionCall) and part.name in CALLS:
                raise Mistake(part.position, f"{part.name.upper()} is not allowed in {call.name.upper()}")
            column = self.column(part)
            if column is None:
                return None
            name, of = column
            seen.setdefault(of, part.position)
            schema_field = self.columns[name]
            return Leaf(name, arrow_type(schema_field.hint), schema_field.base, schema_field.nullable, _current(name))

        compiled = compile_expression(node, leaf)
        if not seen:
            raise Mistake(call.position, f"{call.name.upper()} needs a column, as in {call.name.upper()}(B.price)")
        if len(seen) > 1:
            raise Mistake(max(seen.values()), f"{call.name.upper()} takes columns of only one variable")
        return next(iter(seen)), compiled

    def is_here(self, of: str | None) -> bool:
        """Return whether the last row of a variable is the current row."""
        return of is None or of == self.current


def _current(name: str) -> Value:
    """Return a function that reads a column of the last row so far."""
    return lambda rows, number: getattr(rows[-1][1], name)


def _last_row_value(of: str | None, skipped: int, value: Value) -> Value:
    return _nth(reversed, of, skipped, value)


def _first_row_value(of: str | None, skipped: int, value: Value) -> Value:
    return _nth(iter, of, skipped, value)


def _nth(order: Callable[[Rows], Iterator[Any]], of: str | None, skipped: int, value: Value) -> Value:
    """Return a function that computes FIRST or LAST for a row of a match. The function goes through the variable's rows
    in the given order, and skips the first `skipped` of them."""

    def run(rows: Rows, number: int) -> Any:
        left = skipped
        for row in order(rows):
            if of is None or row[0] == of:
                if not left:
                    return value((row,), number)
                left -= 1
        return None

    return run


def _navigation_arguments(call: FunctionCall, least: int, most: int) -> tuple[Node, ...]:
    if not least <= len(call.arguments) <= most:
        count = str(most) if least == most else f"{least} or {most}"
        values = "value" if count == "1" else "values"
        raise Mistake(call.position, f"{call.name.upper()} takes {count} {values}, not {len(call.arguments)}")
    return call.arguments


def _navigation_offset(call: FunctionCall, default: int) -> int:
    arguments = _navigation_arguments(call, 1, 2)
    if len(arguments) == 1:
        return default
    number = arguments[1]
    value = number.value if isinstance(number, Literal) else None
    if not isinstance(value, Decimal) or value != int(value) or not 0 <= value <= OFFSET_MAX:
        raise Mistake(
            number.position, f"the second value of {call.name.upper()} must be an integer from 0 to {OFFSET_MAX:,}"
        )
    return int(value)


def _first_or_last(scope: Scope, call: FunctionCall) -> Leaf:
    """Compile FIRST or LAST."""
    offset = _navigation_offset(call, 0)
    of, expression = scope.of_one(call.arguments[0], call)
    nullable = expression.nullable or offset > 0 or (of is not None and of not in scope.always and of != scope.current)
    here = call.name == "last" and not offset and scope.is_here(of)
    value = (_last_row_value if call.name == "last" else _first_row_value)(of, offset, expression.value)
    return Leaf(shown(call), arrow_of(expression.kind), expression.hint, nullable, value, HERE if here else _MATCH)


def _prev(scope: Scope, call: FunctionCall) -> Leaf:
    """Compile PREV, which refers to the row that is a given number of rows before the argument's row. The argument can
    be FIRST(...) or LAST(...)."""
    offset, inner = _navigation_offset(call, 1), call.arguments[0]
    target, skipped, forward = inner, 0, False
    if isinstance(inner, FunctionCall) and inner.name in ("first", "last"):
        target, skipped, forward = inner.arguments[0], _navigation_offset(inner, 0), inner.name == "first"
    of, expression = scope.of_one(target, call)
    anchor = of if of is not None else scope.current
    reach = scope.least[anchor] if anchor is not None else min(scope.least.values())
    if offset > reach:
        raise Mistake(
            call.position,
            f"{shown(call)} can refer to a row before the match, but such rows are not stored: put {offset} row(s) of "
            f"other variables before {anchor or 'the first variable'} in PATTERN, as in "
            f"PATTERN (START {anchor or 'A'}+)",
        )
    nullable = expression.nullable or skipped > 0 or (of is not None and of not in scope.always and of != scope.current)
    here = scope.is_here(of) and not skipped and not forward
    value = _before(None if here else of, skipped, forward, offset, expression.value)
    return Leaf(shown(call), arrow_of(expression.kind), expression.hint, nullable, value, _BEFORE if here else _MATCH)


def _before(of: str | None, skipped: int, forward: bool, offset: int, value: Value) -> Value:
    """Return a function that computes PREV for a row of a match."""

    def run(rows: Rows, number: int) -> Any:
        places = range(len(rows)) if forward else range(len(rows) - 1, -1, -1)
        mine = [place for place in places if of is None or rows[place][0] == of] if of or skipped or forward else places
        if skipped >= len(mine) or mine[skipped] < offset:
            return None
        return value((rows[mine[skipped] - offset],), number)

    return run


def _refuse_next(scope: Scope, call: FunctionCall) -> Leaf:
    raise Mistake(call.position, "NEXT refers to a row that has not arrived yet: use a separate variable for that row")


def _count(scope: Scope, call: FunctionCall) -> Leaf:
    """Compile COUNT of the rows of a match, or of their values that are not NULL."""
    (argument,) = _navigation_arguments(call, 1, 1)
    star = argument.name == "*" if isinstance(argument, Name | FieldAccess) else False
    of: str | None = None
    value: Value | None = None
    if star and isinstance(argument, FieldAccess):
        of = variable(argument.of.name) if isinstance(argument.of, Name) else ""
        if of not in scope.variables:
            raise Mistake(
                argument.position, f"there is no variable {of!r}; the variables are {', '.join(scope.variables)}"
            )
    elif not star:
        of, expression = scope.of_one(argument, call)
        value = expression.value

    def run(rows: Rows, number: int) -> int:
        mine = (row for row in rows if of is None or row[0] == of)
        return sum(1 for row in mine if value is None or value((row,), number) is not None)

    return Leaf(shown(call), WHOLE.arrow, int, False, run, _MATCH)


def _added(scope: Scope, call: FunctionCall) -> Leaf:
    """Compile SUM, AVG, MIN or MAX of the values that are not NULL. The result is NULL if there are no such values."""
    (argument,) = _navigation_arguments(call, 1, 1)
    of, expression = scope.of_one(argument, call)
    needed = NUMBERS if call.name in ("sum", "avg") else _ORDERED
    if expression.kind.name not in needed:
        raise Mistake(argument.position, f"{call.name.upper()} does not take {expression.kind.shown}")
    kind, total = REAL if call.name == "avg" else expression.kind, _TOTALS[call.name]
    arrow = pa.decimal128(38, expression.kind.arrow.scale) if kind.name == "decimal" else arrow_of(kind)
    value = plain(expression.value)

    def run(rows: Rows, number: int) -> Any:
        values = [value((row,), number) for row in rows if of is None or row[0] == of]
        known = [operand for operand in values if operand is not None]
        return total(known) if known else None

    return Leaf(shown(call), arrow, HINTS[kind.name], True, run, _MATCH)


def _sum(values: Sequence[Any]) -> Any:
    """Return the sum of a match's values, or None if it is out of range."""
    if isinstance(values[0], Decimal):
        with localcontext(prec=80):
            return sum(values, Decimal(0))
    total = sum(values)
    if isinstance(total, int):
        return total if INT_MIN <= total <= INT_MAX else None
    return total if math.isfinite(total) else None


def _average(values: Sequence[Any]) -> float | None:
    """Return the mean of a match's values as a float, or None if their sum is out of range."""
    total = _sum(values)
    return None if total is None else float(total) / len(values)


_TOTALS: Mapping[str, Callable[[Sequence[Any]], Any]] = {"sum": _sum, "avg": _average, "min": min, "max": max}


def _classifier(scope: Scope, call: FunctionCall) -> Leaf:
    """Compile CLASSIFIER, the pattern variable of the last row so far."""
    _navigation_arguments(call, 0, 0)
    return Leaf(shown(call), TEXT.arrow, str, False, lambda rows, number: rows[-1][0], _MATCH)


def _match_number(scope: Scope, call: FunctionCall) -> Leaf:
    _navigation_arguments(call, 0, 0)
    if scope.current is not None:
        raise Mistake(
            call.position, "MATCH_NUMBER() is allowed only in MEASURES, because it is known only once there is a match"
        )
    return Leaf(shown(call), WHOLE.arrow, int, False, lambda rows, number: number, _MATCH)


def _match_rowtime(scope: Scope, call: FunctionCall) -> Leaf:
    _navigation_arguments(call, 0, 0)
    time = scope.cls.__time_field__
    if time is None:
        raise Mistake(
            call.position, f"{scope.cls.__name__} has no event time: write class {scope.cls.__name__}(Event, time=...)"
        )
    return Leaf(shown(call), pa.timestamp("us", "UTC"), datetime, False, _current(time))


CALLS: Mapping[str, Callable[[Scope, FunctionCall], Leaf]] = {
    "first": _first_or_last, "last": _first_or_last, "prev": _prev, "next": _refuse_next, "count": _count,
    "sum": _added, "avg": _added, "min": _added, "max": _added, "classifier": _classifier,
    "match_number": _match_number, "match_rowtime": _match_rowtime,
}  # fmt: skip


def shown(node: Node) -> str:
    """Return a node of a pattern's expression as SQL text, close to the original text."""
    if isinstance(node, Name):
        return node.name
    if isinstance(node, FieldAccess):
        return f"{shown(node.of)}.{node.name}"
    if isinstance(node, Literal):
        return repr(node.value) if isinstance(node.value, str) else str(node.value)
    if isinstance(node, Lambda):
        return f"{node.name} -> {shown(node.body)}"
    return f"{node.name.upper()}({', '.join(map(shown, node.arguments))})"
