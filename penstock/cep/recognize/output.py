"""The output of a match: its columns, and the event class that is generated from them."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.cep.match import Match
from penstock.cep.recognize.closures import Rows, Value
from penstock.cep.recognize.navigation import Scope, shown
from penstock.cep.recognize.statement import NamedExpression, Statement, refuse
from penstock.cep.recognize.values import CompiledExpression, Leaf, arrow_of, compile_expression, wanted
from penstock.core.filters.compiler import missing
from penstock.core.filters.syntax import FieldAccess, FunctionCall, Name, Node
from penstock.core.operators import made_class
from penstock.core.schema import SYSTEM_COLUMNS, Event, arrow_type


@dataclass(frozen=True)
class MatchColumn:
    """One output column. With `is_final`, it is evaluated at the match's last row, whichever row is emitted. With
    `is_time`, it is the row's time."""

    name: str
    hint: Any
    arrow: pa.DataType
    nullable: bool
    value: Value
    is_final: bool = False
    is_time: bool = False


class MatchOutput:
    """The columns of a match, the selected columns, and the condition in WHERE."""

    def __init__(self, read: Statement, scope: Scope, key: str) -> None:
        self.read, self.scope, self.key = read, scope, key
        self.columns: dict[str, MatchColumn] = {}
        for column in self._own():
            self.columns[column.name] = column
        for item in read.measures:
            self._add(self._measure(item), item.position)
        self.chosen = self._chosen()
        self.condition = None if read.where is None else self._condition(read.where)
        self._class: type[Event] | None = None

    def event(self, name: str) -> Any:
        """Generate the class of the events that a pattern in SQL emits."""
        hints = {column.name: column.hint | None if column.nullable else column.hint for column in self.chosen.values()}
        time = next((column.name for column in self.chosen.values() if column.is_time), None)
        title = "".join(part.capitalize() for part in name.replace("_", "-").split("-"))
        self._class = made_class(Event, f"{title}Match", hints, time=time)
        return self._class

    def select(self, match: Match) -> list[Event]:
        """Return the events for a match."""
        rows, number = match.rows, match.number
        places = range(1, len(rows) + 1) if self.read.all_rows else (len(rows),)
        return [event for place in places for event in self._emitted(rows, rows[:place], number)]

    def _emitted(self, rows: Rows, seen: Rows, number: int) -> Iterator[Event]:
        assert self._class is not None
        values = {
            column.name: column.value(rows if column.is_final else seen, number) for column in self.columns.values()
        }  # fmt: skip
        row = (("", values),)
        if self.condition is None or self.condition(row, number) is True:
            yield self._class(**{column.name: column.value(row, number) for column in self.chosen.values()})

    def _own(self) -> Iterator[MatchColumn]:
        """Yield the input columns that are in the output rows: all columns with ALL ROWS PER MATCH, otherwise only the
        key."""
        time = self.scope.cls.__time_field__
        for name, field in self.scope.columns.items():
            if self.read.all_rows or name == self.key:
                leaf = self.scope.leaf(Name(name, 0))
                assert leaf is not None
                yield MatchColumn(name, field.base, leaf.arrow, field.nullable, leaf.value, is_time=name == time)

    def _measure(self, item: NamedExpression) -> MatchColumn:
        running = self.read.all_rows and not item.is_final
        scope = replace(self.scope, always=frozenset()) if running else self.scope
        expression = scope.compile(item.node)
        is_time = isinstance(item.node, FunctionCall) and item.node.name == "match_rowtime"
        return self._column(str(item.name), expression, item, item.is_final, is_time)

    def _column(
        self,
        name: str,
        expression: CompiledExpression,
        item: NamedExpression,
        is_final: bool = False,
        is_time: bool = False,
    ) -> MatchColumn:
        hint = wanted(expression, item.position, shown(item.node))
        arrow = arrow_of(expression.kind) if expression.kind.name not in ("list", "map", "struct") else arrow_type(hint)
        return MatchColumn(name, hint, arrow, expression.nullable, expression.value, is_final, is_time)

    def _add(self, column: MatchColumn, position: int) -> None:
        if column.name in self.columns:
            refuse(position, f"there is already a column {column.name!r}: use a different name")
        self.columns[column.name] = column

    def _chosen(self) -> dict[str, MatchColumn]:
        """Return the selected columns."""
        items = self.read.select
        if items is None:
            items = tuple(NamedExpression(Name(name, 0), name, 0) for name in self.columns)
        columns: dict[str, MatchColumn] = {}
        for item in items:
            name = item.name
            if name is None:
                refuse(item.position, "a computed column needs a name: write ... AS name")
            if not name.isidentifier() or keyword.iskeyword(name) or name in SYSTEM_COLUMNS:
                refuse(item.position, f"{name!r} cannot be the name of an event column: use AS with a different name")
            if name in columns:
                refuse(item.position, f"there is already a column {name!r}: use a different name")
            source = self._source(item.node)
            is_time = source is not None and source.is_time
            columns[name] = self._column(name, compile_expression(item.node, self._leaf), item, is_time=is_time)
        return columns

    def _source(self, node: Node) -> MatchColumn | None:
        if isinstance(node, FieldAccess) and isinstance(node.of, Name) and node.of.name == self.read.alias:
            node = Name(node.name, node.name_position)
        if not isinstance(node, Name):
            return None
        if node.name not in self.columns:
            refuse(node.position, missing("column", node.name, tuple(self.columns)))
        return self.columns[node.name]

    def _leaf(self, node: Node) -> Leaf | None:
        column = self._source(node)
        if column is None:
            return None
        name = column.name
        return Leaf(name, column.arrow, column.hint, column.nullable, lambda rows, number: rows[-1][1][name])

    def _condition(self, node: Node) -> Value:
        expression = compile_expression(node, self._leaf)
        if expression.kind.name not in ("truth", "null"):
            refuse(node.position, "the expression in WHERE is not a condition: compare it with a value")
        return expression.value
