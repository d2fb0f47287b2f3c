"""Finds queries on streams whose rows would stay in the view after the query has stopped giving them.

A streaming aggregation reports the rows that have changed. A row that no longer meets a condition on its aggregates, or
gets another key from them, is simply not reported, and nothing tells the view to remove the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from penstock.declared import View

_OPAQUE = frozenset({"MapInPandas", "MapInArrow", "MapPartitions", "MapElements", "TypedFilter"})
"""Nodes that may leave out any row."""
Ids = frozenset[int]
"""Spark's numbers of columns."""


def staying_problems(view: View, frame: DataFrame) -> list[str]:
    """What in a view's query would let rows stay. Nothing does if each row is given once, when its window closes."""
    if view.emit == "close":
        return []
    plan = frame._jdf.queryExecution().analyzed()
    walk = _Walk(view)
    changing = walk.changing(plan)
    keys = [
        str(each.name()) for each in _each(plan.output()) if each.exprId().id() in changing and each.name() in view.key
    ]
    if keys:
        walk.problems.append(
            f"its key {keys[0]!r} is computed by an aggregate: when that changes, the row with the earlier value would "
            "stay; use the columns that it groups by as the key"
        )
    return walk.problems[:1]


class _Walk:
    """Follows the columns that aggregates compute up through a plan, and notes where they decide whether a row is
    given."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._shared: dict[int, list[bool]] = {}
        self.problems: list[str] = []

    def changing(self, plan: Any) -> Ids:
        """Return the columns of a plan whose value may change in a row with the same key."""
        name = str(plan.nodeName())
        if name == "WithCTE":
            return self._with_shared(plan)
        if name == "CTERelationRef":
            return self._by_position([self._shared.get(plan.cteId(), [])], plan)
        below = [(child, self.changing(child)) for child in _each(plan.children())]
        ids: Ids = frozenset().union(*(each for _, each in below))
        if name == "Aggregate":
            return frozenset(_id(each) for each in _each(plan.aggregateExpressions()) if _is_aggregate(each))
        if not ids:
            return ids
        if name == "Project":
            return frozenset(_id(each) for each in _each(plan.projectList()) if _references(each) & ids)
        if name == "Union":
            return self._by_position([_positions(child, each) for child, each in below], plan)
        self._judge(plan, name, ids)
        return ids

    def _with_shared(self, plan: Any) -> Ids:
        """A query with WITH: its parts come in an order in which each is known before it is read."""
        for part in _each(plan.cteDefs()):
            self._shared[part.id()] = _positions(part.child(), self.changing(part.child()))
        return self.changing(plan.plan())

    def _by_position(self, parts: list[list[bool]], plan: Any) -> Ids:
        """The columns of a plan that has other numbers for them than what it reads."""
        return frozenset(
            _id(each)
            for place, each in enumerate(_each(plan.output()))
            if any(place < len(part) and part[place] for part in parts)
        )

    def _judge(self, plan: Any, name: str, ids: Ids) -> None:
        for what, expressions in _deciding(plan, name).items():
            if any(_references(each) & ids for each in expressions):
                self.problems.append(self._sentence(what))
        if name in _OPAQUE:
            self.problems.append(self._sentence("a function"))

    def _sentence(self, what: str) -> str:
        return (
            f"{what} after GROUP BY decides by an aggregate which rows there are, and a row that is no longer among "
            "them would not be removed: leave it out here, and put it into a view that reads this one, such as "
            f'"SELECT ... FROM {self._view.name} WHERE ..."'
        )


def _deciding(plan: Any, name: str) -> Mapping[str, list[Any]]:
    """The expressions of a node that decide which rows it gives."""
    if name == "Filter":
        return {"a condition (HAVING, or a filter)": [plan.condition()]}
    if name == "Join":
        condition = plan.condition()
        return {"a join": [] if condition.isEmpty() else [condition.get()]}
    if name == "Generate":
        return {"explode, or another function that makes rows,": [plan.generator()]}
    return {}


def _is_aggregate(expression: Any) -> bool:
    """Whether there is an aggregate in it. In GROUP BY, anything else is made of what is grouped by."""
    pending = [expression]
    while pending:
        each = pending.pop()
        if each.getClass().getSimpleName() == "AggregateExpression":
            return True
        pending += _each(each.children())
    return False


def _positions(plan: Any, ids: Ids) -> list[bool]:
    return [_id(each) in ids for each in _each(plan.output())]


def _references(expression: Any) -> Ids:
    return frozenset(_id(each) for each in _each(expression.references().toSeq()))


def _id(expression: Any) -> int:
    return int(expression.exprId().id())


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
