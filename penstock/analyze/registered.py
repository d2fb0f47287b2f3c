"""Names that code registers in a Spark session: functions, temporary views and variables. Every view in the session can
use them, and nothing in such a view shows that one of them has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from penstock.analyze.trees import items_of

_FUNCTION = "use the function directly in the query, as in F.udf(function)(column)"
_TABLE = "pass the DataFrame to the query, as in spark.sql('SELECT * FROM {rows}', rows=rows)"
_VARIABLE = "use a constant in the app's file"


@dataclass(frozen=True)
class Registered:
    """The names that are registered in a session. `tables` contains Spark's definition of each temporary view."""

    functions: frozenset[str]
    tables: dict[str, Any]
    shared_tables: frozenset[str]
    variables: bool


def registered(spark: SparkSession) -> Registered:
    """Return the names that are registered in a session. Takes about a millisecond."""
    catalog, shared, variables = _managers(spark)
    return Registered(
        frozenset(str(function.funcName()) for function in items_of(catalog.listTemporaryFunctions())),
        {str(name): catalog.getRawTempView(name) for name in items_of(catalog.getTempViewNames())},
        frozenset(str(name) for name in items_of(shared.listViewNames("*"))),
        not variables.isEmpty(),
    )


def remove_added(spark: SparkSession, before: Registered) -> list[tuple[str, str]]:
    """Remove all names that have been registered in a session since `before`, and restore temporary views that have
    been replaced. Return a description of each name, with what to write instead."""
    after = registered(spark)
    catalog, shared, variables = _managers(spark)
    functions = sorted(after.functions - before.functions)
    tables = sorted(name for name, table in after.tables.items() if not table.equals(before.tables.get(name)))
    shared_tables = sorted(after.shared_tables - before.shared_tables)
    for name in functions:
        catalog.dropTempFunction(name, True)
    for name in tables:
        if name in before.tables:
            catalog.createTempView(name, before.tables[name].get(), True)
        else:
            catalog.dropTempView(name)
    for name in shared_tables:
        shared.remove(name)
    declares = after.variables and not before.variables
    if declares:
        variables.clear()
    return [
        *((f"the function {name}", _FUNCTION) for name in functions),
        *((f"the temporary view {name}", _TABLE) for name in (*tables, *shared_tables)),
        *([("a variable", _VARIABLE)] if declares else []),
    ]


def _managers(spark: SparkSession) -> tuple[Any, Any, Any]:
    """Return Spark's managers of the session's names, of the views that all sessions share, and of variables."""
    session: Any = spark._jsparkSession
    state = session.sessionState()
    return state.catalog(), session.sharedState().globalTempViewManager(), state.catalogManager().tempVariableManager()
