"""Derived views: a batch query over the rows of other views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import PythonEvalType

from penstock.analyze.fetching import fetch
from penstock.analyze.frames import build, columns_schema, key_problems, node_error, spark_schema
from penstock.analyze.python_code import building_problems, function_problems
from penstock.analyze.repeatable import literals, repeat_problems
from penstock.analyze.trees import items_of, walk
from penstock.app.declared import View
from penstock.core.errors import ViewError

_ROW_BY_ROW = frozenset({"Project", "Filter", "SubqueryAlias", "View", "LocalRelation", "LogicalRDD"})
"""Nodes in Spark's plans that are inputs or process each row independently."""
_CALLED_BY_ROW = frozenset({PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF})
"""Kinds of Python functions that Spark calls for each row. Functions of other kinds get many rows at a time, so they
can compare rows with each other."""
_SESSION = {
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Small inputs are part of the plan, so filters are applied to them while the plan is optimized. Larger inputs stay
    # columns until a task reads them; if they were part of the plan, each row would be serialized with the task.
    "spark.sql.execution.arrow.localRelationThreshold": "64KB",
    # Rows are in one partition, so a join needs no shuffle, and sorting is cheaper than a broadcast job.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""Settings for queries that run entirely in this process, over about ten thousand rows."""
BATCH_ROWS = 10_000
"""Number of input rows that Java reads at a time. This is Spark's default."""


@dataclass(frozen=True)
class Built:
    """Facts about a derived view's query, determined when it is first built for a given set of input columns."""

    read: Sequence[pa.Schema]
    columns: pa.Schema
    together: bool
    """Whether the query groups, joins or sorts rows, so that all rows must be in one partition."""


class Derived:
    """The query of a derived view. It has a separate session, because it uses the same names for its inputs as
    streaming views do."""

    def __init__(self, spark: SparkSession, view: View) -> None:
        self.view = view
        self._spark = spark.newSession()
        for name, value in _SESSION.items():
            self._spark.conf.set(name, value)
        self._built: Built | None = None
        self.by_row = False
        """Whether the query reads a single view, and computes each output row from one row of that view with the same
        key columns. Set by `columns`."""

    def columns(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the derived view's columns, given its inputs' columns. Raises `ViewError` if the view cannot be
        computed."""
        read = [self._rows(schema.empty_table()) for schema in inputs]
        frame, problems = self._inspect(read)
        if problems:
            raise ViewError(f"{self.view.where}: view {self.view.name}: {problems[0]}", view=self.view.name)
        self.by_row = len(read) == 1 and _is_row_by_row(frame) and self._passes_key(read[0], frame)
        return columns_schema(frame)

    def check(self, inputs: Sequence[pa.Schema]) -> tuple[DataFrame, list[str]]:
        """Build the derived view's query on inputs without rows, and return it with the reasons why it cannot be
        computed."""
        return self._inspect([self._rows(schema.empty_table()) for schema in inputs])

    def _inspect(self, read: Sequence[DataFrame]) -> tuple[DataFrame, list[str]]:
        frame = build(self._spark, self.view, read)
        problems = [*key_problems(self.view, frame), *dict.fromkeys(repeat_problems(self.view, frame))]
        problems += function_problems(self._spark, frame)
        if self.view.function is not None and not problems and self._differs(frame, read):
            problems.append(
                "its function returns a different query on each call: the query must not depend on the clock, on "
                "random numbers, or on anything else outside the rows"
            )
        if self.view.function is not None and not problems:
            problems += building_problems(self.view)
        return frame, problems

    def _differs(self, frame: DataFrame, read: Sequence[DataFrame]) -> bool:
        """Return whether the derived view's query contains different constants when it is built a second time."""
        return literals(frame) != literals(build(self._spark, self.view, read))

    def _passes_key(self, read: DataFrame, frame: DataFrame) -> bool:
        """Return whether the derived view's key columns are passed on unchanged from the input. Spark numbers columns,
        and assigns a new number to any column that is computed or renamed."""
        before, after = (
            {
                str(column.name()): column.exprId().id()
                for column in items_of(df._jdf.queryExecution().analyzed().output())
            }
            for df in (read, frame)
        )
        return all(name in before and before[name] == after.get(name) for name in self.view.key)

    def frame(self, inputs: Sequence[pa.Table], *, together: bool = False) -> DataFrame:
        """Build the derived view's query on its inputs. With `together`, each input is declared to be in one partition,
        so Spark groups and joins rows without a shuffle."""
        frames = [self._rows(table) for table in inputs]
        return build(self._spark, self.view, [frame.coalesce(1) for frame in frames] if together else frames)

    def _rows(self, table: pa.Table) -> DataFrame:
        """Convert a table of input rows to a Spark DataFrame, like `createDataFrame`. `createDataFrame` first reads
        eight settings from the session, with about thirty calls to Java, which take most of its time; here the settings
        are known."""
        return self._spark._create_from_arrow_table(
            table,
            spark_schema(table.schema),
            timezone="UTC",
            prefer_timestamp_ntz=False,
            prefers_large_var_types=False,
            arrow_batch_size=BATCH_ROWS,
        )

    def compute(self, inputs: Sequence[pa.Table]) -> pa.Table:
        """Compute the derived view: run its query in Spark. Blocks for about 0.1 seconds for a few thousand rows.

        The same rows in the same order always give the same result, because each input is in one partition, in its
        original order.
        """
        try:
            built = self._learn(inputs)
            return fetch(self.frame(inputs, together=built.together), built.columns)
        except ViewError:
            raise
        except Exception as error:
            raise node_error(self.view, error) from error

    def _learn(self, inputs: Sequence[pa.Table]) -> Built:
        """Return the facts about the derived view's query. The query is built for this only if the input columns have
        changed."""
        read = [table.schema for table in inputs]
        if self._built is None or self._built.read != read:
            frame = self.frame(inputs)
            self._built = Built(read, columns_schema(frame), not _is_row_by_row(frame))
        return self._built


def _is_row_by_row(frame: DataFrame) -> bool:
    """Return whether each row of a derived view is computed from one input row, independently of all other rows."""
    pending = [frame._jdf.queryExecution().analyzed()]
    while pending:
        plan = pending.pop()
        if plan.getClass().getSimpleName() not in _ROW_BY_ROW or plan.subqueries().nonEmpty():
            return False
        if any(_gets_batches(part) for expression in items_of(plan.expressions()) for part in walk(expression)):
            return False
        pending += items_of(plan.children())
    return True


def _gets_batches(expression: Any) -> bool:
    """Return whether an expression of Spark's plan is a Python function that gets many rows at a time."""
    return expression.getClass().getSimpleName() == "PythonUDF" and expression.evalType() not in _CALLED_BY_ROW
