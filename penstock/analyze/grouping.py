"""Find streaming queries whose groups would overwrite each other in the view.

A streaming aggregation reports each group as a row. If two groups have the same key, the view keeps the row that
changed last. So the key must determine the group: every GROUP BY expression must be one of the key columns, or follow
from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from penstock.analyze.trees import items_of, walk
from penstock.app.declared import View

Ids = frozenset[int]
"""Column numbers assigned by Spark."""
_WINDOW_MARKS = ("spark.timeWindow", "spark.sessionWindow")
_GROUPING_SET = "spark_grouping_id"
"""A column that Spark adds to GROUP BY for ROLLUP, CUBE and GROUPING SETS. Without nulls in the grouped columns, those
columns determine it."""
_OTHER_ROWS = frozenset(
    {"Distinct", "Deduplicate", "DeduplicateWithinWatermark", "MapInPandas", "MapInArrow", "MapPartitions"}
)
"""Nodes whose output rows are not the groups of an aggregation below."""
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_READABLE_AS_TEXT = frozenset({*_INTEGERS, "boolean", "date", "timestamp", "timestamp_ntz", "string"})


def group_problems(view: View, frame: DataFrame) -> list[str]:
    """Return a list with the first GROUP BY expression of a view of streams that its key does not determine. The list
    is empty if there is none."""
    plan = frame._jdf.queryExecution().analyzed()
    key = frozenset(_column_id(column) for column in items_of(plan.output()) if column.name() in view.key)
    first = next(_Groups().undetermined(plan, key), None)
    return [] if first is None else [_problem(view, _name(first))]


def _problem(view: View, group: str) -> str:
    if group in view.key:
        return (
            f"it groups by {group}, but its key column {group} is computed from the groups, so groups for which it is "
            f"equal would overwrite each other: compute the column in GROUP BY too, or rename it and add {group} to "
            "the columns and to key="
        )
    return (
        f"it groups by {group}, which is not in its key, so groups with the same {', '.join(view.key)} would overwrite "
        f"each other: add {group} to the columns and to key=, or remove it from GROUP BY"
    )


class _Groups:
    """Follows the key columns of a view down through its plan, to the aggregations whose groups are its rows."""

    def __init__(self) -> None:
        self._shared: dict[int, Any] = {}

    def undetermined(self, plan: Any, key: Ids) -> Iterator[Any]:
        """Yield the GROUP BY expressions that the columns `key` of a plan do not determine."""
        name = str(plan.nodeName())
        if name == "WithCTE":
            self._shared |= {part.id(): part.child() for part in items_of(plan.cteDefs())}
            yield from self.undetermined(plan.plan(), key)
        elif name == "CTERelationRef":
            if plan.cteId() in self._shared:
                below = self._shared[plan.cteId()]
                yield from self.undetermined(below, _by_position(plan, below, key))
        elif name == "Aggregate":
            yield from _undetermined_groups(plan, key)
        elif name == "Project":
            yield from self.undetermined(plan.child(), _ids(_implied_by_columns(plan.projectList(), key)))
        elif name == "Filter":
            yield from self.undetermined(plan.child(), _with_equal(plan.condition(), key))
        elif name == "Union":
            for child in items_of(plan.children()):
                yield from self.undetermined(child, _by_position(plan, child, key))
        elif name == "Join":
            yield from self._joined(plan, key)
        elif name not in _OTHER_ROWS:
            for child in items_of(plan.children()):
                yield from self.undetermined(child, key)

    def _joined(self, plan: Any, key: Ids) -> Iterator[Any]:
        """Check the sides of a join, if groups are joined only with groups. In a join with the events of a stream, each
        event is a row of its own."""
        condition = plan.condition()
        known = key if condition.isEmpty() else _with_equal(condition.get(), key)
        sides = [child for child in items_of(plan.children()) if child.isStreaming()]
        if all(self._has_aggregate(side) for side in sides):
            for side in sides:
                yield from self.undetermined(side, known)

    def _has_aggregate(self, plan: Any) -> bool:
        return any(
            node.nodeName() == "Aggregate"
            or (node.nodeName() == "CTERelationRef" and self._has_aggregate(self._shared[node.cteId()]))
            for node in walk(plan)
        )


def _undetermined_groups(plan: Any, key: Ids) -> Iterator[Any]:
    implied = list(_implied_by_columns(plan.aggregateExpressions(), key))
    known, definitions = _below(plan.child(), _ids(implied))
    for expression in items_of(plan.groupingExpressions()):
        if not _follows(expression, implied, known, definitions) and _name(expression) != _GROUPING_SET:
            yield expression


def _below(plan: Any, known: Ids) -> tuple[Ids, dict[int, Any]]:
    """Return the columns that `known` columns and the conditions below an aggregation determine, and the expressions
    that compute columns there."""
    definitions: dict[int, Any] = {}
    while plan.children().size() == 1:
        name = str(plan.nodeName())
        if name == "Project":
            computed = [column for column in items_of(plan.projectList()) if not _is_column(column)]
            definitions |= {_column_id(column): column.child() for column in computed}
        if name == "Filter":
            known = _with_equal(plan.condition(), known)
        plan = plan.children().apply(0)
    return known, definitions


def _follows(expression: Any, implied: Sequence[Any], known: Ids, definitions: dict[int, Any]) -> bool:
    """Return whether a GROUP BY expression has only one value for each value of the known columns and expressions."""
    if expression.foldable() or any(expression.semanticEquals(other) for other in implied):
        return True
    if _is_column(expression):
        column = _column_id(expression)
        definition = definitions.get(column)
        return column in known or (definition is not None and _follows(definition, implied, known, definitions))
    references = list(items_of(expression.references().toSeq()))
    return (
        bool(references)
        and bool(expression.deterministic())
        and all(_follows(reference, implied, known, definitions) for reference in references)
    )


def _implied_by_columns(columns: Any, key: Ids) -> Iterator[Any]:
    for column in items_of(columns):
        if _column_id(column) in key:
            yield from _implied(column)


def _implied(expression: Any) -> Iterator[Any]:
    """Yield an expression and the expressions inside it whose values it determines: a renamed column, a window of which
    it is the start or the end, the fields of a struct, and a value converted without loss."""
    yield expression
    kind = str(expression.getClass().getSimpleName())
    if kind == "Alias" or (kind == "Cast" and _is_lossless(expression)):
        yield from _implied(expression.child())
    elif kind == "GetStructField" and _is_window(expression.child()):
        yield expression.child()
    elif kind == "CreateNamedStruct":
        for value in list(items_of(expression.children()))[1::2]:
            yield from _implied(value)


def _is_lossless(cast: Any) -> bool:
    before, after = str(cast.child().dataType().catalogString()), str(cast.dataType().catalogString())
    if after == "string":
        return before in _READABLE_AS_TEXT or before.startswith("decimal")
    return before in _INTEGERS and after in _INTEGERS and _INTEGERS.index(before) <= _INTEGERS.index(after)


def _is_window(expression: Any) -> bool:
    return _is_column(expression) and any(expression.metadata().contains(mark) for mark in _WINDOW_MARKS)


def _with_equal(condition: Any, known: Ids) -> Ids:
    """Return the known columns, and the columns that a condition sets equal to a constant or to a known column."""
    equal = [
        side
        for part in _conjuncts(condition)
        if part.getClass().getSimpleName() in ("EqualTo", "EqualNullSafe")
        for side in ((part.left(), part.right()), (part.right(), part.left()))
    ]
    while True:
        added = _ids(
            implied
            for left, right in equal
            if left.foldable() or (_is_column(left) and _column_id(left) in known)
            for implied in _implied(right)
        )
        if added <= known:
            return known
        known |= added


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition.getClass().getSimpleName() == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _by_position(plan: Any, below: Any, key: Ids) -> Ids:
    """Return the columns of `below` at the positions of the plan's key columns, because the two number them
    differently."""
    pairs = zip(items_of(plan.output()), items_of(below.output()), strict=True)
    return frozenset(_column_id(inner) for outer, inner in pairs if _column_id(outer) in key)


def _ids(expressions: Iterator[Any] | Sequence[Any]) -> Ids:
    return frozenset(_column_id(expression) for expression in expressions if _is_column(expression))


def _is_column(expression: Any) -> bool:
    return str(expression.getClass().getSimpleName()) == "AttributeReference"


def _column_id(expression: Any) -> int:
    return int(expression.exprId().id())


def _name(expression: Any) -> str:
    return str(expression.name() if _is_column(expression) else expression.sql())
