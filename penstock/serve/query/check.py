"""Validation of a client's SQL, and its conversion to SQL that is safe to run.

The SQL is parsed, every node of the tree is checked against a list, tables get generated names, and new SQL is written
from the tree. The engine never receives the client's own SQL, and can run only what `nodes` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.core.errors import QueryRefused
from penstock.serve.query.deadline import CheckDeadline
from penstock.serve.query.functions import AGGREGATES, BY_NAME, TABLES
from penstock.serve.query.nodes import ALLOWED, PARTS, TEXTS, TYPES, is_number

if TYPE_CHECKING:
    from sqlglot import exp

CHAIN_MAX = 200
"""Maximum depth of the tree. A chain of operators, such as 1 + 1 + 1, also makes the tree deep."""
TABLES_MAX = 16

Resolve = Callable[[str, int | None], str]
"""Resolves a name in a query to the name of a stream or view; raises if there is none.

The second argument is the name's position in the query.
"""


@dataclass(frozen=True)
class Checked:
    """A client's query that passed the checks. In `sql`, the stream or view `reads[n]` is the table `input_n`.

    `positions` maps each name in the query, in lower case, to its first position.
    """

    sql: str
    reads: tuple[str, ...]
    positions: Mapping[str, int]
    rows_max: int


def check(text: str, resolve: Resolve, rows_max: int) -> Checked:
    """Check a client's query. The resulting SQL returns up to `rows_max + 1` rows; the extra row shows that there are
    more.

    Raises `BadQuery` if the text cannot be parsed, and `QueryRefused` if it contains something that is not allowed.
    Both errors contain the `position` of the offending character, if known. Takes about ten milliseconds for a long
    query and at most half a second of processor time, so call it in a thread.
    """
    from sqlglot.errors import UnsupportedError

    from penstock.serve.query.parsing import parsed
    from penstock.serve.query.writing import written

    deadline = CheckDeadline()  # after the imports, which are slow the first time
    try:
        tree = parsed(text, deadline)
        _require_allowed_nodes(tree)
        tables = _Tables(tree, resolve)
        tables.replace()
        positions = {name.lower(): start for name, start in _query_names(tree)}
        sql = written(_limit_query_rows(tree, rows_max + 1), deadline)
    except RecursionError:
        raise QueryRefused("the query is nested too deeply") from None
    except UnsupportedError as error:
        raise QueryRefused(f"the query contains something that cannot be run: {str(error)[:200]}") from None
    return Checked(sql, tuple(tables.reads), positions, rows_max)


def _require_allowed_nodes(tree: exp.Expr) -> None:
    for node in tree.walk():
        name = type(node).__name__
        if name not in ALLOWED or not _has_only_allowed_parts(name, node):
            raise QueryRefused(f"{_node_label(node)} is not allowed in a query", position=_node_position(node))
        if name == "Anonymous" and node.name.lower() == "list_aggregate":
            _require_known_aggregate(node)
        node.comments = None
    if _query_depth(tree) > CHAIN_MAX:
        raise QueryRefused("the query is nested too deeply", position=0)


def _has_only_allowed_parts(name: str, node: exp.Expr) -> bool:
    given = {part: value for part, value in node.args.items() if value}
    if name in PARTS and not given.keys() <= PARTS[name]:
        return False
    if name == "Literal" and not node.is_string and not is_number(str(node.this)):
        return False
    if name == "Anonymous" and str(node.name).lower() not in BY_NAME:  # a quoted name is a separate node
        return False
    if name == "Table" and type(node.this).__name__ not in ("Identifier", *TABLES):
        return False
    return all(_is_allowed_node_value(name, part, value) for part, value in given.items())


def _require_known_aggregate(node: exp.Expr) -> None:
    """Raise `QueryRefused` unless a call of `list_aggregate` names an allowed function as a literal. In a call such as
    `x.list_aggregate('sum')`, DuckDB counts the arguments differently, so it is refused."""
    from sqlglot import exp

    named = node.expressions[1] if len(node.expressions) > 1 else None
    is_known = isinstance(named, exp.Literal) and named.is_string and named.name.lower() in AGGREGATES
    if not is_known or isinstance(node.parent, exp.Dot):
        raise QueryRefused(
            "list_aggregate takes a list and the name of an aggregate function in quotes, such as "
            "list_aggregate(x, 'sum'); the documentation of queries lists the functions",
            position=_node_position(node),
        )


def _is_allowed_node_value(name: str, part: str, value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_allowed_node_value(name, part, element) for element in value)
    if isinstance(value, Enum):
        return name == "DataType" and value.name in TYPES
    if isinstance(value, str):
        rule = TEXTS.get((name, part))
        return rule is not None and bool(rule(value))
    return True


def _query_depth(tree: exp.Expr) -> int:
    """Return the depth of a query's tree, without recursion."""
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in node.iter_expressions()]
    return deepest


class _Tables:
    """The tables in a query. Each is either defined in the query itself, or is a stream or view."""

    def __init__(self, tree: exp.Expr, resolve: Resolve) -> None:
        self._tree, self._resolve = tree, resolve
        self.reads: list[str] = []
        self._dotted: dict[tuple[str, str], str] = {}

    def replace(self) -> None:
        """Replace the name of each stream or view with a generated table name, in a schema that no name in the query
        can refer to."""
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
        name = self._resolve(written, _node_position(node))
        if name not in self.reads:
            if len(self.reads) == TABLES_MAX:
                raise QueryRefused(
                    f"a query can read at most {TABLES_MAX} streams and views", position=_node_position(node)
                )
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
        """Return whether the name refers to a visible WITH clause."""
        if node.text("db"):
            return False
        name = node.name.lower()
        path: list[exp.Expr] = [node]
        while (above := path[-1].parent) is not None:
            path.append(above)
        return any(name in _with_clause_names(path, depth) for depth in range(1, len(path)))


def _with_clause_names(path: Sequence[exp.Expr], depth: int) -> list[str]:
    """Return the names that the WITH clause at `path[depth]` defines for `path[0]`. The result is empty if there is no
    such clause.

    Inside the WITH clause these are the earlier names, and also the current one if the clause is recursive.
    """
    clause = path[depth].args.get("with_")
    if clause is None:
        return []
    names = [part.alias.lower() for part in clause.expressions]
    if path[depth - 1] is not clause:
        return names
    own = next(index for index, part in enumerate(clause.expressions) if part is path[depth - 2])
    return names[: own + 1] if clause.args.get("recursive") else names[:own]


def _limit_query_rows(tree: exp.Expr, most: int) -> exp.Expr:
    """Add a limit on rows to the query, so that the engine stops early."""
    from sqlglot import exp

    limit = tree.args.get("limit")
    if limit is None and not isinstance(tree, exp.Subquery):
        tree.set("limit", exp.Limit(expression=exp.Literal.number(most)))
        return tree
    given = limit.expression if isinstance(limit, exp.Limit) else None
    if limit is not None and isinstance(given, exp.Literal) and not given.is_string and given.this.isdigit():
        limit.set("expression", exp.Literal.number(min(int(given.this), most)))
    return tree


def _query_names(tree: exp.Expr) -> Iterator[tuple[str, int]]:
    """Yield the names and functions in a query, each with its position, from the last to the first."""
    from sqlglot import exp

    identifiers = [
        (node.name, node.meta["start"])
        for node in tree.walk()
        if isinstance(node, (exp.Identifier, exp.Anonymous)) and "start" in node.meta
    ]
    return iter(sorted(identifiers, key=lambda identifier: -identifier[1]))


def _node_position(node: exp.Expr) -> int | None:
    """Return the position where a query's node begins, or None if the node and its children have no position."""
    positions = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(positions) if positions else None


def _node_label(node: exp.Expr) -> str:
    """Return the name of a query's node for error messages."""
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
