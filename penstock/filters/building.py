"""A filter put together from its two texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.filters import logic, syntax
from penstock.filters.claims import claimed, named
from penstock.filters.compiler import Compiler
from penstock.filters.filter import Filter
from penstock.filters.kinds import SCALARS, TIME, Mistake, Operand, Run
from penstock.filters.syntax import Field, Item, Name, Node
from penstock.filters.tokens import refused
from penstock.schema import SYSTEM_COLUMNS


def built(
    schema: pa.Schema, where: str | None, select: str | None, key: Sequence[str], claims: Mapping[str, Any] | None
) -> Filter:
    asking, selecting = Compiler(schema), Compiler(schema)
    condition = None if where is None else _condition(asking, where, claims)
    asked = frozenset(asking.columns)
    if select is None:
        return Filter(schema, frozenset(schema.names), asked, condition, None)
    outputs = _selected(selecting, select, key)
    fields = pa.schema([pa.field(each.name, each.type) for each in outputs])
    runs, grown = tuple(each.run for each in outputs), tuple(i for i, each in enumerate(outputs) if each.grows)
    return Filter(fields, asked | selecting.columns, asked, condition, runs, grown)


@contextmanager
def _told(part: str, text: str) -> Iterator[None]:
    try:
        yield
    except Mistake as mistake:
        raise refused(part, text, mistake.position, mistake.sentence) from None


def _condition(compiler: Compiler, text: str, claims: Mapping[str, Any] | None) -> Run:
    with _told("where", text):
        tree = syntax.condition(text)
        return logic.truth(compiler.operand(tree if claims is None else claimed(tree, claims)))


@lru_cache(maxsize=256)
def asked_of_reader(where: str) -> tuple[str, ...]:
    """The claims that a condition asks for. Those are the operator's, and few."""
    with _told("where", where):
        return tuple(sorted(named(syntax.condition(where))))


class _Output(NamedTuple):
    """A column that comes out. `grows` says that it is text which the batch does not have as it is."""

    name: str
    type: pa.DataType
    run: Run
    grows: bool = False


def _selected(compiler: Compiler, text: str, key: Sequence[str]) -> list[_Output]:
    """What is selected; before it, what of the key is not."""
    with _told("select", text):
        found: dict[str, _Output] = {}
        paths: set[tuple[str, ...]] = set()
        for item in syntax.columns(text):
            name, path, operand = _name(item), _path(item.node), compiler.operand(item.node)
            if name in found:
                raise Mistake(item.position, f"two columns are called {name!r}")
            if name in key and path != (name,):
                raise Mistake(item.position, f"{name!r} is of the key, and nothing else can be called so")
            if name in SYSTEM_COLUMNS:
                raise Mistake(item.position, f"a column cannot be called {name!r}: that is another one's name")
            if path in paths:
                raise Mistake(item.node.position, f"{operand.shown} is selected twice as it is")
            paths |= {path} if path else set()
            found[name] = _output(name, operand, bool(path))
    missing = [_output(name, compiler.operand(Name(name, 0)), True) for name in key if name not in found]
    return [*missing, *found.values()]


def _name(item: Item) -> str:
    if item.name is not None:
        return item.name
    if isinstance(item.node, Name | Field):
        return item.node.name
    raise Mistake(item.position, "what is computed needs a name: write AS and one behind it")


def _path(node: Node) -> tuple[str, ...]:
    """The names that lead to a column or a field in one; none for anything else."""
    if isinstance(node, Name):
        return (node.name,)
    above = _path(node.of) if isinstance(node, Field) else ()
    return (*above, node.name) if above and isinstance(node, Field) else ()


def _output(name: str, operand: Operand, is_path: bool) -> _Output:
    """What may be large, a list or a struct, comes out only as it is, and once: so a row grows by bounded texts."""
    kind, run = operand.kind, operand.run
    if is_path and operand.raw is not None:
        return _Output(name, *operand.raw)
    if kind.name not in (*SCALARS, "null"):
        raise Mistake(operand.position, f"{operand.typed} cannot be selected; select a part of it")
    if kind == TIME:
        zoned = pa.timestamp("us", "UTC")
        return _Output(name, zoned, lambda batch: pc.cast(run(batch), zoned))
    return _Output(name, kind.arrow, run, kind.name in ("text", "bytes"))
