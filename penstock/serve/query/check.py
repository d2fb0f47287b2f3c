"""From the text of a query to one that may be run.

The text is parsed, every node of the tree is checked against a list, the tables are replaced by our own names, and the
text for the engine is written from the tree. So nothing that a client has written reaches the engine as it was
written; and what the engine is asked to do can be said in the words of `nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.errors import QueryRefused
from penstock.serve.query.functions import BY_NAME, TABLES
from penstock.serve.query.nodes import ALLOWED, PARTS, TEXTS, TYPES, is_number

if TYPE_CHECKING:
    from sqlglot import exp

CHAIN_MAX = 200
"""The tree's depth; operators in a row, as in 1 + 1 + 1, make it deep as well."""
TABLES_MAX = 16

Resolve = Callable[[str, int | None], str]
"""Gives the name of a stream or view for a name in a query; raises if there is none. The number is its place."""


@dataclass(frozen=True)
class Checked:
    """A query that may be run. In `sql`, the stream or view `reads[n]` is the table `input_n`.

    `places` has, for each name in the text in small letters, where it stands first.
    """

    sql: str
    reads: tuple[str, ...]
    places: Mapping[str, int]
    rows_max: int


def check(text: str, resolve: Resolve, rows_max: int) -> Checked:
    """The query that a text is. `rows_max` rows are wanted; one more is asked for, to see if there are more.

    `BadQuery` if it cannot be read, `QueryRefused` if it has something that is not allowed; both with the `position` of
    the character, if it is known. Takes some ten milliseconds for a long text, and half a second at most: call it in a
    thread.
    """
    from sqlglot.errors import UnsupportedError

    from penstock.serve.query.parsing import parsed
    from penstock.serve.query.writing import written

    try:
        tree = parsed(text)
        _require_allowed(tree)
        tables = _Tables(tree, resolve)
        tables.replace()
        places = {name.lower(): place for name, place in _names(tree)}
        sql = written(_limited(tree, rows_max + 1))
    except RecursionError:
        raise QueryRefused("the query is nested too deeply") from None
    except UnsupportedError as error:
        raise QueryRefused(f"the query has something that cannot be run: {str(error)[:200]}") from None
    return Checked(sql, tuple(tables.reads), places, rows_max)


def _require_allowed(tree: exp.Expr) -> None:
    for node in tree.walk():
        name = type(node).__name__
        if name not in ALLOWED or not _has_only_allowed_parts(name, node):
            raise QueryRefused(f"{_shown(node)} is not allowed in a query", position=_place(node))
        node.comments = None
    if _depth(tree) > CHAIN_MAX:
        raise QueryRefused("the query is nested too deeply", position=0)


def _has_only_allowed_parts(name: str, node: exp.Expr) -> bool:
    given = {part: value for part, value in node.args.items() if value}
    if name in PARTS and not given.keys() <= PARTS[name]:
        return False
    if name == "Literal" and not node.is_string and not is_number(str(node.this)):
        return False
    if name == "Anonymous" and str(node.name).lower() not in BY_NAME:  # a name in quotes is a node of its own
        return False
    if name == "Table" and type(node.this).__name__ not in ("Identifier", *TABLES):
        return False
    return all(_is_allowed_value(name, part, value) for part, value in given.items())


def _is_allowed_value(name: str, part: str, value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_allowed_value(name, part, each) for each in value)
    if isinstance(value, Enum):
        return name == "DataType" and value.name in TYPES
    if isinstance(value, str):
        rule = TEXTS.get((name, part))
        return rule is not None and bool(rule(value))
    return True


def _depth(tree: exp.Expr) -> int:
    """How many nodes stand above each other at most, without recursion."""
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in node.iter_expressions()]
    return deepest


class _Tables:
    """The tables of a query, each found to be a part of the query itself or one that is served."""

    def __init__(self, tree: exp.Expr, resolve: Resolve) -> None:
        self._tree, self._resolve = tree, resolve
        self.reads: list[str] = []
        self._dotted: dict[tuple[str, str], str] = {}

    def replace(self) -> None:
        """Give each table that is served our name for it, in a schema where a name of the query cannot stand."""
        from sqlglot import exp

        for node in list(self._tree.find_all(exp.Table)):
            if isinstance(node.this, exp.Identifier) and not self._is_of_the_query(node):
                self._replace(node)
        for column in list(self._tree.find_all(exp.Column)):
            whole = self._dotted.get((column.text("db").lower(), column.text("table").lower()))
            if whole is not None:
                column.set("table", exp.to_identifier(whole, quoted=True))
                column.set("db", None)

    def _replace(self, node: exp.Table) -> None:
        from sqlglot import exp

        written = ".".join(part.name for part in node.parts)
        name = self._resolve(written, _place(node))
        if name not in self.reads:
            if len(self.reads) == TABLES_MAX:
                raise QueryRefused(f"a query may read {TABLES_MAX} streams and views", position=_place(node))
            self.reads.append(name)
        if not node.alias:
            columns = node.args.get("alias") and node.args["alias"].columns
            node.set("alias", exp.TableAlias(this=exp.to_identifier(written, quoted=True), columns=columns or None))
            if node.text("db"):
                self._dotted[(node.text("db").lower(), node.name.lower())] = written
        node.set("this", exp.to_identifier(f"input_{self.reads.index(name)}", quoted=True))
        node.set("db", exp.to_identifier("main", quoted=True))
        node.set("catalog", exp.to_identifier("temp", quoted=True))

    def _is_of_the_query(self, node: exp.Table) -> bool:
        """Whether the name is that of a WITH that can be seen from there."""
        if node.text("db"):
            return False
        name = node.name.lower()
        path: list[exp.Expr] = [node]
        while (above := path[-1].parent) is not None:
            path.append(above)
        return any(name in _visible(path, place) for place in range(1, len(path)))


def _visible(path: Sequence[exp.Expr], place: int) -> list[str]:
    """The names of the WITH of a query on the way up that are seen from the way's beginning: from inside of the WITH
    those before it, and its own if it may call itself."""
    clause = path[place].args.get("with_")
    if clause is None:
        return []
    names = [part.alias.lower() for part in clause.expressions]
    if path[place - 1] is not clause:
        return names
    own = next(index for index, part in enumerate(clause.expressions) if part is path[place - 2])
    return names[: own + 1] if clause.args.get("recursive") else names[:own]


def _limited(tree: exp.Expr, most: int) -> exp.Expr:
    """The query with a bound on its rows, so that the engine stops early."""
    from sqlglot import exp

    limit = tree.args.get("limit")
    if limit is None and not isinstance(tree, exp.Subquery):
        tree.set("limit", exp.Limit(expression=exp.Literal.number(most)))
        return tree
    given = limit.expression if isinstance(limit, exp.Limit) else None
    if limit is not None and isinstance(given, exp.Literal) and not given.is_string and given.this.isdigit():
        limit.set("expression", exp.Literal.number(min(int(given.this), most)))
    return tree


def _names(tree: exp.Expr) -> Iterator[tuple[str, int]]:
    """Names and functions with their places, the last one first."""
    from sqlglot import exp

    found = [
        (node.name, node.meta["start"])
        for node in tree.walk()
        if isinstance(node, (exp.Identifier, exp.Anonymous)) and "start" in node.meta
    ]
    return iter(sorted(found, key=lambda each: -each[1]))


def _place(node: exp.Expr) -> int | None:
    """Where a node begins, as far as its parts know."""
    places = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    return min(places) if places else None


def _shown(node: exp.Expr) -> str:
    """What a person would call a node."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return f"the function {str(node.name)[:40]!r}"
    if isinstance(node, exp.Func):
        return f"the function {node.sql_name()[:40].lower()!r}"
    if isinstance(node, exp.Table):
        return "this kind of table"
    if isinstance(node, exp.DataType):
        return "this type"
    return type(node).__name__
