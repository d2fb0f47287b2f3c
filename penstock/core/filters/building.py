"""Construction of a filter from its `where` and `select`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters import comparisons, syntax
from penstock.core.filters.claims import claimed, named
from penstock.core.filters.compiler import NO_GROWTH, Compiler, Growth
from penstock.core.filters.filter import Filter
from penstock.core.filters.kinds import SCALARS, TIME, Mistake, Operand, Run
from penstock.core.filters.limits import ROW_BYTES_MAX
from penstock.core.filters.slices import Slicing
from penstock.core.filters.syntax import FieldAccess, FunctionCall, Lambda, Name, Node, SelectItem
from penstock.core.filters.tokens import refused
from penstock.core.schema import SYSTEM_COLUMNS


def built(
    schema: pa.Schema, where: str | None, select: str | None, key: Sequence[str], claims: Mapping[str, Any] | None
) -> Filter:
    asking, selecting = Compiler(schema), Compiler(schema)
    condition = None if where is None else _where_condition(asking, where, claims)
    asked, slicing = frozenset(asking.columns), Slicing.of(*asking.growth)
    if select is None:
        return Filter(schema, frozenset(schema.names), asked, condition, None, (), slicing)
    outputs = _selected_columns(selecting, select, key)
    fields = pa.schema([pa.field(output.name, output.type) for output in outputs])
    runs, grown = tuple(output.run for output in outputs), tuple(i for i, output in enumerate(outputs) if output.grows)
    return Filter(fields, asked | selecting.columns, asked, condition, runs, grown, slicing, _select_slicing(outputs))


@contextmanager
def _refusing_mistakes(part: str, text: str) -> Iterator[None]:
    try:
        yield
    except Mistake as mistake:
        raise refused(part, text, mistake.position, mistake.sentence) from None


def _where_condition(compiler: Compiler, text: str, claims: Mapping[str, Any] | None) -> Run:
    with _refusing_mistakes("where", text):
        tree = syntax.condition(text)
        return comparisons.truth(compiler.operand(tree if claims is None else claimed(tree, claims)))


@lru_cache(maxsize=256)
def asked_of_reader(where: str) -> tuple[str, ...]:
    """Return the names of the claims in a condition. The results can be cached because only the operator writes
    conditions with claims, so there are few such conditions."""
    with _refusing_mistakes("where", where):
        return tuple(sorted(named(syntax.condition(where))))


@lru_cache(maxsize=256)
def columns_named(where: str) -> frozenset[str]:
    """Return the names in an operator's condition that can be columns. Raises `BadExpression` if the condition is not
    valid SQL."""
    with _refusing_mistakes("where", where):
        return frozenset(_names_in(syntax.condition(where)))


def _names_in(node: Node) -> Iterator[str]:
    """Yield the names in a tree. The name of a list element in a lambda is among them."""
    match node:
        case Name():
            yield node.name
        case FieldAccess():
            yield from _names_in(node.of)
        case Lambda():
            yield from _names_in(node.body)
        case FunctionCall():
            for argument in node.arguments:
                yield from _names_in(argument)


class _Output(NamedTuple):
    """A column of the result. `grows` is true for strings or bytes that a function produces. `growth` counts the
    operations that create or copy strings."""

    name: str
    type: pa.DataType
    run: Run
    grows: bool = False
    growth: Growth = NO_GROWTH


def _select_slicing(outputs: Sequence[_Output]) -> Slicing:
    """Return the slices for the columns of a `select`, which are computed one after another."""
    created = max(output.growth.created for output in outputs)
    copied = max(output.growth.copied for output in outputs)
    return Slicing.of(created, copied, ROW_BYTES_MAX if any(output.grows for output in outputs) else 0)


def _selected_columns(compiler: Compiler, text: str, key: Sequence[str]) -> list[_Output]:
    """Return the selected columns, preceded by the key columns that are not selected."""
    with _refusing_mistakes("select", text):
        columns: dict[str, _Output] = {}
        paths: set[tuple[str, ...]] = set()
        for item in syntax.columns(text):
            before = compiler.growth
            name, path, operand = _select_item_name(item), _column_path(item.node), compiler.operand(item.node)
            if name in columns:
                raise Mistake(item.position, f"two columns are called {name!r}")
            if name in key and path != (name,):
                raise Mistake(item.position, f"{name!r} is a key column, and no other column can have that name")
            if name in SYSTEM_COLUMNS:
                raise Mistake(item.position, f"a column cannot be called {name!r}: that is the name of a system column")
            if path in paths:
                raise Mistake(item.node.position, f"{operand.shown} is selected twice; remove one of them")
            paths |= {path} if path else set()
            columns[name] = _output_column(name, operand, bool(path))._replace(growth=compiler.growth.since(before))
    missing = [_output_column(name, compiler.operand(Name(name, 0)), True) for name in key if name not in columns]
    return [*missing, *columns.values()]


def _select_item_name(item: SelectItem) -> str:
    if item.name is not None:
        return item.name
    if isinstance(item.node, Name | FieldAccess):
        return item.node.name
    raise Mistake(item.position, "a computed column needs a name: add AS and a name")


def _column_path(node: Node) -> tuple[str, ...]:
    """Return the path of a filter's node that is a column or a field in a column: the column's name, followed by the
    names of the fields. The result is empty for any other node."""
    if isinstance(node, Name):
        return (node.name,)
    above = _column_path(node.of) if isinstance(node, FieldAccess) else ()
    return (*above, node.name) if above and isinstance(node, FieldAccess) else ()


def _output_column(name: str, operand: Operand, is_path: bool) -> _Output:
    """Build a result column of a filter. Lists and structs, which can be large, can be selected only once and cannot be
    modified, so a row can grow only by strings of bounded size."""
    kind, run = operand.kind, operand.run
    if is_path and operand.raw is not None:
        return _Output(name, *operand.raw)
    if kind.name not in (*SCALARS, "null"):
        raise Mistake(operand.position, f"{operand.typed} cannot be selected; select a part of it")
    if kind == TIME:
        zoned = pa.timestamp("us", "UTC")
        return _Output(name, zoned, lambda batch: pc.cast(run(batch), zoned))
    return _Output(name, kind.arrow, run, kind.name in ("text", "bytes"))
