"""Find the reasons why a batch query could return different results for the same rows: the query reads the clock, uses
random numbers, or depends on the order of its input rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.analyze.trees import items_of, walk
from penstock.app.declared import View
from penstock.app.sql import clock_literal, is_moment

_CLOCKS = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now"})
"""Spark's expressions whose value depends on the time."""
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
"""Types to which Spark converts constant strings such as 'today'."""
_KEEPS_ORDER = frozenset({"Project", "Filter", "SubqueryAlias", "View", "LocalLimit", "GlobalLimit", "Offset"})
"""Nodes in Spark's plans that keep the order of their input rows."""
_CUTS = frozenset({"GlobalLimit", "Offset", "Tail"})
"""Nodes that select rows by their position."""
_CONSTANT_LEAVES = frozenset({"LocalRelation", "OneRowRelation", "Range", "CTERelationRef"})
"""Leaf nodes that contain all their data."""
_CONSTANT_RDDS = frozenset({"ParallelCollectionRDD", "EmptyRDD"})
"""RDDs whose rows come from a list in Python."""
RDDS_MAX = 1_000
"""Maximum number of RDDs that are traced back to their data."""
_ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_NOT_TIME = "but a derived view changes only when its rows do, not when time passes; compare with a time in the rows"
_ORDER = "so its result depends on the order of the rows; {}, with columns that identify a row, such as the key"


def repeat_problems(view: View, frame: DataFrame) -> Iterator[str]:
    """Yield the reasons to reject a derived view's query because it could return different results for the same rows.
    Ties in an ORDER BY are allowed, because `Derived` receives its rows in a fixed order."""
    for text in _sql_texts(view):
        if (literal := clock_literal(text)) is not None:
            yield f"its query has {literal}, which Spark replaces with the time when it parses the query, {_NOT_TIME}"
    java: Any = frame.sparkSession._jvm
    analyzed = frame._jdf.queryExecution().analyzed()
    yield from _moment_problems(analyzed, java.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions)
    chance, replaced = (
        java.Class.forName(f"org.apache.spark.sql.catalyst.expressions.{name}")
        for name in ("Nondeterministic", "RuntimeReplaceable")
    )
    for plan in _query_plans(analyzed):
        yield from _operator_problems(plan)
        if plan.children().isEmpty() and not _is_constant_data(plan):
            yield (
                f"its query reads {_data_name(plan)}, which is not one of its inputs, so it is not computed again when "
                "that data changes; write the rows in the app's file, as VALUES or with createDataFrame, or send them "
                "to a stream and read a view of it"
            )
        for expression in _query_expressions(plan):
            yield from _expression_problems(expression, chance, replaced)


def literals(frame: DataFrame) -> list[str]:
    """Return the constants in Spark's plan of a query, in plan order. If the same function produces different
    constants, it depends on something outside its inputs."""
    plans = _query_plans(frame._jdf.queryExecution().analyzed())
    expressions = (expression for plan in plans for expression in _query_expressions(plan))
    return [str(expression.sql()) for expression in expressions if expression.getClass().getSimpleName() == "Literal"]


def _sql_texts(view: View) -> Iterator[str]:
    """Yield the strings that could contain SQL: the view's query, or the strings in its function."""
    if view.query is not None:
        yield view.query
    elif view.function is not None:
        function: Any = view.function
        while isinstance(function, partial):
            function = function.func
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        if code is not None:
            yield from _code_strings(code, function.__doc__)


def _code_strings(code: CodeType, documentation: str | None = None) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_strings(constant)
        elif isinstance(constant, str) and constant != documentation:
            yield constant


def _operator_problems(plan: Any) -> Iterator[str]:
    name = plan.getClass().getSimpleName()
    if name == "Sample":
        yield (
            "its query takes a sample (TABLESAMPLE or sample()), which differs each time; filter by a column, "
            "as in WHERE pmod(hash(id), 10) = 0"
        )
    elif name in _CUTS and not _is_ordered(plan.child()):
        yield f"its query has a LIMIT or OFFSET without ORDER BY, {_ORDER.format('add ORDER BY')}, or use top= and by="


def _is_constant_data(leaf: Any) -> bool:
    """Return whether a leaf of a plan contains all its data, or is an input."""
    if leaf.getClass().getSimpleName() != "LogicalRDD":
        return leaf.getClass().getSimpleName() in _CONSTANT_LEAVES
    pending, seen = [leaf.rdd()], 0
    while pending and seen < RDDS_MAX:
        rdd = pending.pop()
        seen += 1
        before = [*items_of(rdd.dependencies())]
        if not before and rdd.getClass().getSimpleName() not in _CONSTANT_RDDS:
            return False
        pending += [dependency.rdd() for dependency in before]
    return not pending


def _data_name(leaf: Any) -> str:
    """Return a name for the data that a leaf of a plan reads, such as `csv data`."""
    name = str(leaf.getClass().getSimpleName())
    if name == "LogicalRelation":
        return f"{str(leaf.simpleString(1)).rpartition(' ')[2]} data"
    return "an RDD of other data" if name == "LogicalRDD" else f"other data ({name})"


def _is_ordered(plan: Any) -> bool:
    """Return whether a derived view's query sorts a plan's rows, or the plan has only one row."""
    while plan.getClass().getSimpleName() in _KEEPS_ORDER:
        plan = plan.children().apply(0)
    name = plan.getClass().getSimpleName()
    if name == "Sort":
        return bool(getattr(plan, "global")()) and not _is_constant(plan.order())
    return name == "OneRowRelation" or (name == "Aggregate" and bool(plan.groupingExpressions().isEmpty()))


def _is_constant(order: Any) -> bool:
    """Return whether all expressions in an ORDER BY of Spark's plan are constants."""
    return all(term.child().foldable() for term in items_of(order))


def _moment_problems(plan: Any, rule: Any) -> Iterator[str]:
    """Yield the problems with constant strings that Spark replaces with the time, such as 'today' in a comparison with
    a timestamp. `rule` replaces functions such as to_date() with the expressions that Spark runs, because these contain
    the conversion of the string."""
    for node in walk(rule.apply(plan)):
        for expression in _query_expressions(node):
            if _is_conversion_to_time(expression) and is_moment(text := str(_constant(expression.child()))):
                yield (
                    f"its query converts '{text}' to a {expression.dataType().typeName()}, which Spark replaces with "
                    f"the time when it runs the query, {_NOT_TIME}"
                )
        for subquery in items_of(node.subqueries()):
            yield from _moment_problems(subquery, rule)


def _is_conversion_to_time(expression: Any) -> bool:
    return expression.getClass().getSimpleName() == "Cast" and expression.dataType().typeName() in _TIMES


def _constant(expression: Any) -> Any:
    """Return the value of a constant expression. Returns None for other expressions, and for constants without a value,
    such as 1 / 0."""
    try:
        return expression.eval(None) if expression.foldable() else None
    except (Py4JJavaError, PySparkException):
        return None


def _expression_problems(expression: Any, chance: Any, replaced: Any) -> Iterator[str]:
    """Yield the problems with one expression of a derived view's query. `chance` is Spark's class for expressions with
    random values, and `replaced` its class for functions that it replaces with other expressions before it runs the
    query."""
    name = expression.getClass().getSimpleName()
    if name in _CLOCKS:
        yield f"its query uses {expression.prettyName()}(), {_NOT_TIME}"
    elif name == "WindowSpecDefinition":
        yield from _window_order_problems(expression)
    elif name == "AesEncrypt":
        if _has_random_vector(expression):
            yield (
                f"its query uses {expression.prettyName()}() with a random initialization vector, which differs each "
                "time; pass a vector that is computed from columns of the row"
            )
    elif chance.isInstance(expression) or (replaced.isInstance(expression) and _adds_chance(expression)):
        yield f"its query uses {expression.prettyName()}(), whose value differs each time"


def _adds_chance(function: Any) -> bool:
    """Return whether Spark replaces a function with an expression that has random values, unlike its arguments."""
    return not function.replacement().deterministic() and all(
        argument.deterministic() for argument in items_of(function.children())
    )


def _has_random_vector(function: Any) -> bool:
    """Return whether `aes_encrypt` draws an initialization vector: if none is passed, in every mode except ECB."""
    if str(_constant(function.mode())).upper() == "ECB":
        return False
    return bool(function.iv().foldable()) and not _constant(function.iv())


def _window_order_problems(window: Any) -> Iterator[str]:
    if window.orderSpec().nonEmpty():
        if _is_constant(window.orderSpec()):
            yield f"its query has OVER (ORDER BY a constant), {_ORDER.format('order by columns')}"
    elif window.frameSpecification().sql() != _ALL_ROWS:
        yield f"its query has OVER (ROWS ...) without ORDER BY, {_ORDER.format('add ORDER BY')}"


def _query_plans(plan: Any) -> Iterator[Any]:
    """Yield a Spark plan and all plans below it, including subqueries."""
    yield plan
    for child in (*items_of(plan.children()), *items_of(plan.subqueries())):
        yield from _query_plans(child)


def _query_expressions(plan: Any) -> Iterator[Any]:
    """Yield all expressions in one step of a Spark plan, including nested expressions."""
    pending = [*items_of(plan.expressions())]
    while pending:
        expression = pending.pop()
        yield expression
        pending += items_of(expression.children())
