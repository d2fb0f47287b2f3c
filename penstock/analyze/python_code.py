"""Reasons to reject a view because of the Python functions in its query. A function could return something else when a
batch runs again, or the next start could not detect that it has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.analyze.plantree import PlanTree
from penstock.app.declared import View, Where
from penstock.handlers.dynamic_access import dynamic_access
from penstock.handlers.purity import Rule, findings
from penstock.handlers.purity_rules import (
    CLOCK,
    COUNTED,
    ENVIRONMENT,
    IDENTITY,
    OUTSIDE,
    RANDOM,
    UNIQUE,
    ZONE,
    suspects,
)
from penstock.handlers.used_functions import used_functions

_IN_ROWS: Mapping[str, str] = {
    CLOCK: "is the wall clock, which differs in every run; use a time from the rows",
    RANDOM: "draws different values in each run; seed a generator with columns of the row, as in random.Random(key)",
    UNIQUE: "differs in every run; use uuid.uuid5() of columns that identify the row",
    OUTSIDE: "reads or writes outside the query, with results that may differ in another run; read the data into a "
    "constant at the top of the file, or send it to a stream",
    ENVIRONMENT: "may differ in another process; read it into a constant at the top of the file",
    ZONE: "uses the machine's time zone; use a datetime with an explicit time zone, as in tz=UTC",
    IDENTITY: "is an address, which differs in every process; use a column that identifies the row",
    COUNTED: "is changed by each call, so the result depends on earlier rows; compute it from the arguments",
}
"""Text for each reason for which the rules reject a Python function: the problem, and what to write instead. Spark's
workers have a fixed hash seed, so `hash` and the order of a set are allowed. A cache in a global variable is allowed
too."""


def function_problems(spark: SparkSession, frame: DataFrame) -> list[str]:
    """Return the reasons why a Python function in a query could return different values for the same row."""
    plan = PlanTree(spark, frame, {}, {})
    problems = [
        f"its UDF {name} is marked with asNondeterministic(), but the same rows must always give the same result; "
        "compute its result from its arguments only, and remove the mark"
        for name in plan.nondeterministic()
    ]
    return problems + [
        f"a Python function in it can return different values for the same row: {finding}"
        for finding in _findings(plan.python_values(), suspects, _IN_ROWS)
    ]


def building_problems(view: View) -> list[str]:
    """Return the reasons why the function of a derived view could build different queries for the same rows."""
    return [
        f"its function can return a different query on each call: {finding}"
        for finding in _findings([view.function], suspects, _IN_ROWS)
    ]


def dynamic_names(spark: SparkSession, view: View, frame: DataFrame, *, derived: bool) -> list[str]:
    """Return the uses of `eval` and the like in the Python functions of a view. The function of a derived view is
    checked too, because it is compared by its text; the function of any other view is compared by the query that it
    builds."""
    values = [*PlanTree(spark, frame, {}, {}).python_values(), *([view.function] if derived else [])]
    return list(_findings(values, dynamic_access, None))


def _findings(values: Iterable[Any], rule: Rule, texts: Mapping[str, str] | None) -> Iterator[str]:
    """Yield one finding for each line of the code that the values use. `texts` replaces the reasons; findings with
    other reasons are left out."""
    texts_by_line: dict[tuple[str, int], str] = {}
    for value in values:
        for function in used_functions(value):
            for file, line, message in findings(function, rule):
                text = message if texts is None else _reworded_finding(message, texts)
                if text is not None:
                    texts_by_line.setdefault((file, line), text)
    for (file, line), text in texts_by_line.items():
        yield f"{Where.of(file, line)}: {text}"


def _reworded_finding(message: str, texts: Mapping[str, str]) -> str | None:
    for reason, text in texts.items():
        if message.endswith(reason):
            return message.removesuffix(reason) + text
    return None
