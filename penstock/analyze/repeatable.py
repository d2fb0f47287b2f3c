"""Reasons why a batch query may give another result on the same rows: it reads the clock, draws by chance, or depends
on the order of its input rows."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any

from pyspark.sql import DataFrame

from penstock.declared import View
from penstock.sql import clock_literal

_CLOCKS = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now"})
"""Spark's expressions that give another value at another time."""
_KEEPS_ORDER = frozenset({"Project", "Filter", "SubqueryAlias", "View", "LocalLimit", "GlobalLimit", "Offset"})
"""Steps of Spark's plans that give rows in the order of their input."""
_CUTS = frozenset({"GlobalLimit", "Offset", "Tail"})
"""Steps that take some rows by their place."""
_ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_NOT_TIME = (
    "and a view of views changes when their rows do, not when time passes; compare with a time that is in the rows"
)
_ORDER = "so its result depends on the order in which rows come; {}, with columns that tell rows apart, such as the key"


def repeat_problems(view: View, frame: DataFrame) -> Iterator[str]:
    """Why the query of a derived view is refused: it may give another result on the same rows. Ties that an ORDER BY
    leaves are no reason: `Derived` is given its rows in a fixed order."""
    for text in _texts(view):
        if (found := clock_literal(text)) is not None:
            yield f"its query has {found}, for which Spark puts the time at which it reads the query, {_NOT_TIME}"
    java: Any = frame.sparkSession._jvm
    chance = java.Class.forName("org.apache.spark.sql.catalyst.expressions.Nondeterministic")
    for plan in _plans(frame._jdf.queryExecution().analyzed()):
        yield from _step_problems(plan)
        for expression in _expressions(plan):
            yield from _expression_problems(expression, chance)


def literals(frame: DataFrame) -> list[str]:
    """The constants of a query, in the order of its plan: another list from the same function shows that it depends on
    something outside of its inputs."""
    plans = _plans(frame._jdf.queryExecution().analyzed())
    expressions = (expression for plan in plans for expression in _expressions(plan))
    return [str(each.sql()) for each in expressions if each.getClass().getSimpleName() == "Literal"]


def each_of(sequence: Any) -> Iterator[Any]:
    """The items of one of Scala's sequences."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _texts(view: View) -> Iterator[str]:
    """The texts that may hold SQL: the query, or the strings in the view's function."""
    if view.query is not None:
        yield view.query
    elif view.function is not None:
        yield from _strings(view.function.__code__, view.function.__doc__)


def _strings(code: CodeType, documentation: str | None = None) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _strings(constant)
        elif isinstance(constant, str) and constant != documentation:
            yield constant


def _step_problems(plan: Any) -> Iterator[str]:
    name = plan.getClass().getSimpleName()
    if name == "Sample":
        yield (
            "its query takes a sample (TABLESAMPLE or sample()), which is another one each time; filter by a column, "
            "as in WHERE pmod(hash(id), 10) = 0"
        )
    elif name in _CUTS and not _is_ordered(plan.child()):
        yield f"its query has a LIMIT or OFFSET without ORDER BY, {_ORDER.format('add ORDER BY')}, or use top= and by="


def _is_ordered(plan: Any) -> bool:
    """Whether the rows of a plan come in an order that the query gives, or there is only one."""
    while plan.getClass().getSimpleName() in _KEEPS_ORDER:
        plan = plan.children().apply(0)
    name = plan.getClass().getSimpleName()
    if name == "Sort":
        return bool(getattr(plan, "global")()) and not _is_constant(plan.order())
    return name == "OneRowRelation" or (name == "Aggregate" and bool(plan.groupingExpressions().isEmpty()))


def _is_constant(order: Any) -> bool:
    """Whether all that rows are ordered by is the same for each of them."""
    return all(each.child().foldable() for each in each_of(order))


def _expression_problems(expression: Any, chance: Any) -> Iterator[str]:
    """`chance` is Spark's class of expressions that give another value each time."""
    name = expression.getClass().getSimpleName()
    if name in _CLOCKS:
        yield f"its query uses {expression.prettyName()}(), {_NOT_TIME}"
    elif name == "WindowSpecDefinition":
        yield from _window_problems(expression)
    elif chance.isInstance(expression):
        yield f"its query uses {expression.prettyName()}(), which gives another value each time"


def _window_problems(window: Any) -> Iterator[str]:
    if window.orderSpec().nonEmpty():
        if _is_constant(window.orderSpec()):
            yield f"its query has OVER (ORDER BY a constant), {_ORDER.format('order by columns')}"
    elif window.frameSpecification().sql() != _ALL_ROWS:
        yield f"its query has OVER (ROWS ...) without ORDER BY, {_ORDER.format('add ORDER BY')}"


def _plans(plan: Any) -> Iterator[Any]:
    """A plan with all plans below it and those of subqueries."""
    yield plan
    for child in (*each_of(plan.children()), *each_of(plan.subqueries())):
        yield from _plans(child)


def _expressions(plan: Any) -> Iterator[Any]:
    """Every expression of one step of a plan, with those inside it."""
    pending = [*each_of(plan.expressions())]
    while pending:
        expression = pending.pop()
        yield expression
        pending += each_of(expression.children())
