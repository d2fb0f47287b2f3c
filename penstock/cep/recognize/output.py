"""What comes of a match: its columns, and a class of events made for them."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.cep.match import Match
from penstock.cep.recognize.closures import Rows, Value
from penstock.cep.recognize.navigation import Scope, shown
from penstock.cep.recognize.statement import Item, Statement, refuse
from penstock.cep.recognize.values import Leaf, Made, arrow_of, made, wanted
from penstock.filters.compiler import missing
from penstock.filters.syntax import Call, Field, Name, Node
from penstock.making import made_class
from penstock.schema import SYSTEM_COLUMNS, Event, arrow_type


@dataclass(frozen=True)
class Column:
    """One column. `is_final`: as of the last row of the match, whatever row it is told with. `is_time`: it is the time
    of the row."""

    name: str
    hint: Any
    arrow: pa.DataType
    nullable: bool
    value: Value
    is_final: bool = False
    is_time: bool = False


class Output:
    """The columns of a match, those that are selected, and the condition on them."""

    def __init__(self, read: Statement, scope: Scope, key: str) -> None:
        self.read, self.scope, self.key = read, scope, key
        self.columns: dict[str, Column] = {}
        for column in self._own():
            self.columns[column.name] = column
        for item in read.measures:
            self._add(self._measure(item), item.position)
        self.chosen = self._chosen()
        self.condition = None if read.where is None else self._condition(read.where)
        self._class: type[Event] | None = None

    def event(self, name: str) -> Any:
        """The class of what is emitted."""
        hints = {each.name: each.hint | None if each.nullable else each.hint for each in self.chosen.values()}
        time = next((each.name for each in self.chosen.values() if each.is_time), None)
        title = "".join(part.capitalize() for part in name.replace("_", "-").split("-"))
        self._class = made_class(Event, f"{title}Match", hints, time=time)
        return self._class

    def select(self, match: Match) -> list[Event]:
        """What is emitted of a match."""
        rows, number = match.rows, match.number
        places = range(1, len(rows) + 1) if self.read.all_rows else (len(rows),)
        return [made for place in places for made in self._emitted(rows, rows[:place], number)]

    def _emitted(self, rows: Rows, seen: Rows, number: int) -> Iterator[Event]:
        assert self._class is not None
        found = {
            each.name: each.value(rows if each.is_final else seen, number) for each in self.columns.values()
        }  # fmt: skip
        row = (("", found),)
        if self.condition is None or self.condition(row, number) is True:
            yield self._class(**{each.name: each.value(row, number) for each in self.chosen.values()})

    def _own(self) -> Iterator[Column]:
        """The columns of the rows: all of them if all rows are told, else the key."""
        time = self.scope.cls.__time_field__
        for name, each in self.scope.columns.items():
            if self.read.all_rows or name == self.key:
                leaf = self.scope.leaf(Name(name, 0))
                assert leaf is not None
                yield Column(name, each.base, leaf.arrow, each.nullable, leaf.value, is_time=name == time)

    def _measure(self, item: Item) -> Column:
        running = self.read.all_rows and not item.is_final
        scope = replace(self.scope, always=frozenset()) if running else self.scope
        found = scope.made(item.node)
        is_time = isinstance(item.node, Call) and item.node.name == "match_rowtime"
        return self._column(str(item.name), found, item, item.is_final, is_time)

    def _column(self, name: str, found: Made, item: Item, is_final: bool = False, is_time: bool = False) -> Column:
        hint = wanted(found, item.position, shown(item.node))
        arrow = arrow_of(found.kind) if found.kind.name not in ("list", "map", "struct") else arrow_type(hint)
        return Column(name, hint, arrow, found.nullable, found.value, is_final, is_time)

    def _add(self, column: Column, position: int) -> None:
        if column.name in self.columns:
            refuse(position, f"there is a column {column.name!r} already: give this one another name")
        self.columns[column.name] = column

    def _chosen(self) -> dict[str, Column]:
        """The columns that are selected, of a row of all."""
        items = self.read.select
        if items is None:
            items = tuple(Item(Name(name, 0), name, 0) for name in self.columns)
        found: dict[str, Column] = {}
        for item in items:
            name = item.name
            if name is None:
                refuse(item.position, "what is computed has a name: write ... AS name")
            if not name.isidentifier() or keyword.iskeyword(name) or name in SYSTEM_COLUMNS:
                refuse(item.position, f"{name!r} cannot be the name of a column of events: give another with AS")
            if name in found:
                refuse(item.position, f"there is a column {name!r} already: give this one another name")
            source = self._source(item.node)
            is_time = source is not None and source.is_time
            found[name] = self._column(name, made(item.node, self._leaf), item, is_time=is_time)
        return found

    def _source(self, node: Node) -> Column | None:
        if isinstance(node, Field) and isinstance(node.of, Name) and node.of.name == self.read.alias:
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
        found = made(node, self._leaf)
        if found.kind.name not in ("truth", "null"):
            refuse(node.position, "what stands in WHERE is no condition: compare it with something")
        return found.value
