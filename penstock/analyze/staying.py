"""Find streaming queries whose rows would stay in the view after the query no longer returns them.

A streaming aggregation reports only rows that have changed. If a row no longer meets a condition on its aggregates, or
its aggregates give it a new key, Spark does not report it. So nothing tells the view to delete the old row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from penstock.analyze.trees import items_of
from penstock.app.declared import View

_OPAQUE = frozenset({"MapInPandas", "MapInArrow", "MapPartitions", "MapElements", "TypedFilter"})
"""Nodes that can leave out any row."""
Ids = frozenset[int]
"""Column numbers assigned by Spark."""


def staying_problems(view: View, frame: DataFrame) -> list[str]:
    """Return a list with the first problem in a view's query that would leave outdated rows in the view. The list is
    empty if there is no such problem, or if each row is emitted only once, when its window closes."""
    if view.emit == "close":
        return []
    plan = frame._jdf.queryExecution().analyzed()
    walk = _Walk(view)
    changing = walk.changing(plan)
    keys = [
        str(column.name())
        for column in items_of(plan.output())
        if column.exprId().id() in changing and column.name() in view.key
    ]
    if keys:
        walk.problems.append(
            f"its key {keys[0]!r} is computed by an aggregate: when its value changes, the row with the old value "
            "would stay; use the columns in GROUP BY as the key"
        )
    return walk.problems[:1]


class _Walk:
    """Follows columns that are computed by aggregates up through a plan, and records the nodes where they decide
    whether a row is returned."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._shared: dict[int, list[bool]] = {}
        self.problems: list[str] = []

    def changing(self, plan: Any) -> Ids:
        """Return a Spark plan's columns whose value can change while the row's key stays the same."""
        name = str(plan.nodeName())
        if name == "WithCTE":
            return self._with_shared(plan)
        if name == "CTERelationRef":
            return self._by_position([self._shared.get(plan.cteId(), [])], plan)
        below = [(child, self.changing(child)) for child in items_of(plan.children())]
        ids: Ids = frozenset().union(*(child_ids for _, child_ids in below))
        if name == "Aggregate":
            return frozenset(
                _column_id(expression)
                for expression in items_of(plan.aggregateExpressions())
                if _has_aggregate(expression)
            )
        if not ids:
            return ids
        if name == "Project":
            return frozenset(
                _column_id(expression)
                for expression in items_of(plan.projectList())
                if _referenced_columns(expression) & ids
            )
        if name == "Union":
            return self._by_position([_changing_by_position(child, child_ids) for child, child_ids in below], plan)
        self._find_staying_rows(plan, name, ids)
        return ids

    def _with_shared(self, plan: Any) -> Ids:
        """Process a view's query that has a WITH clause. The parts of the clause are in an order in which each part
        comes before its uses."""
        for part in items_of(plan.cteDefs()):
            self._shared[part.id()] = _changing_by_position(part.child(), self.changing(part.child()))
        return self.changing(plan.plan())

    def _by_position(self, parts: list[list[bool]], plan: Any) -> Ids:
        """Return the changing columns of a plan, matched to its inputs' columns by position, because the plan numbers
        them differently."""
        return frozenset(
            _column_id(column)
            for place, column in enumerate(items_of(plan.output()))
            if any(place < len(part) and part[place] for part in parts)
        )

    def _find_staying_rows(self, plan: Any, name: str, ids: Ids) -> None:
        for what, expressions in _deciding_expressions(plan, name).items():
            if any(_referenced_columns(expression) & ids for expression in expressions):
                self.problems.append(self._staying_problem(what))
        if name in _OPAQUE:
            self.problems.append(self._staying_problem("a function"))

    def _staying_problem(self, what: str) -> str:
        return (
            f"{what} after GROUP BY selects rows by an aggregate, and a row that is no longer "
            "selected would not be removed: move it into another view that reads this view, such as "
            f'"SELECT ... FROM {self._view.name} WHERE ..."'
        )


def _deciding_expressions(plan: Any, name: str) -> Mapping[str, list[Any]]:
    """Return the expressions of a plan's node that decide which rows it returns."""
    if name == "Filter":
        return {"a condition (HAVING, or a filter)": [plan.condition()]}
    if name == "Join":
        condition = plan.condition()
        return {"a join": [] if condition.isEmpty() else [condition.get()]}
    if name == "Generate":
        return {"explode, or another function that generates rows,": [plan.generator()]}
    return {}


def _has_aggregate(expression: Any) -> bool:
    """Return whether an expression of a view's query contains an aggregate. In a query with GROUP BY, all other
    expressions are computed from the grouped columns."""
    pending = [expression]
    while pending:
        part = pending.pop()
        if part.getClass().getSimpleName() == "AggregateExpression":
            return True
        pending += items_of(part.children())
    return False


def _changing_by_position(plan: Any, ids: Ids) -> list[bool]:
    return [_column_id(column) in ids for column in items_of(plan.output())]


def _referenced_columns(expression: Any) -> Ids:
    return frozenset(_column_id(reference) for reference in items_of(expression.references().toSeq()))


def _column_id(expression: Any) -> int:
    return int(expression.exprId().id())
