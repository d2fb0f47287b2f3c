"""Derived views: a batch query over the rows of other views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.analyze.fetching import fetch
from penstock.analyze.frames import build, columns_schema, key_problems, node_error, spark_schema
from penstock.analyze.repeatable import each_of, literals, repeat_problems
from penstock.declared import View
from penstock.errors import ViewError

_ROW_BY_ROW = frozenset({"Project", "Filter", "SubqueryAlias", "View", "LocalRelation", "LogicalRDD"})
"""Steps of Spark's plans that take each row by itself, and inputs."""
_SESSION = {
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Small inputs are part of the plan, where filters are applied while it is optimized. Larger ones stay columns until
    # a task reads them; as part of the plan, each of their rows would be serialized with the task.
    "spark.sql.execution.arrow.localRelationThreshold": "64KB",
    # Rows are in one partition, so a join needs no shuffle, and sorting costs less than the job of a broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""Settings for queries over some ten thousand rows, all in this process."""
BATCH_ROWS = 10_000
"""Rows of an input that Java reads at a time: Spark's own default."""


@dataclass(frozen=True)
class Built:
    """What is known of a query since it was first built on inputs with certain columns."""

    read: Sequence[pa.Schema]
    columns: pa.Schema
    together: bool
    """Whether it groups, joins or sorts rows, for which they must come together."""


class Derived:
    """A derived view's query, in a session of its own: it names its inputs as the streaming views name theirs."""

    def __init__(self, spark: SparkSession, view: View) -> None:
        self.view = view
        self._spark = spark.newSession()
        for name, value in _SESSION.items():
            self._spark.conf.set(name, value)
        self._built: Built | None = None
        self.by_row = False
        """Whether each row is made of one row of the only view that it reads, and has its key columns from there: known
        with the columns."""

    def columns(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of the view, given those of what it reads. Raises `ViewError` if it cannot be computed."""
        read = [self._rows(schema.empty_table()) for schema in inputs]
        frame, problems = self._inspect(read)
        if problems:
            raise ViewError(f"{self.view.where}: view {self.view.name}: {problems[0]}", view=self.view.name)
        self.by_row = len(read) == 1 and _is_row_by_row(frame) and self._passes_key(read[0], frame)
        return columns_schema(frame)

    def check(self, inputs: Sequence[pa.Schema]) -> tuple[DataFrame, list[str]]:
        """The query on inputs without rows, and why it cannot be computed."""
        return self._inspect([self._rows(schema.empty_table()) for schema in inputs])

    def _inspect(self, read: Sequence[DataFrame]) -> tuple[DataFrame, list[str]]:
        frame = build(self._spark, self.view, read)
        problems = [*key_problems(self.view, frame), *dict.fromkeys(repeat_problems(self.view, frame))]
        if self.view.function is not None and not problems and self._differs(frame, read):
            problems.append(
                "its function gives another query each time that it is called: it must not depend on the clock, on "
                "random numbers, or on anything else outside of the rows"
            )
        return frame, problems

    def _differs(self, frame: DataFrame, read: Sequence[DataFrame]) -> bool:
        """Whether the query has other constants when it is built once more."""
        return literals(frame) != literals(build(self._spark, self.view, read))

    def _passes_key(self, read: DataFrame, frame: DataFrame) -> bool:
        """Whether the key columns are those of what is read, as they are. Spark numbers columns, and a column that is
        computed, or only has another name, has another number."""
        before, after = (
            {str(each.name()): each.exprId().id() for each in each_of(each._jdf.queryExecution().analyzed().output())}
            for each in (read, frame)
        )
        return all(name in before and before[name] == after.get(name) for name in self.view.key)

    def frame(self, inputs: Sequence[pa.Table], *, together: bool = False) -> DataFrame:
        """The query on its inputs, each of which is said to be in one place if `together`: then rows are grouped and
        joined where they are, and there is no shuffle."""
        frames = [self._rows(each) for each in inputs]
        return build(self._spark, self.view, [each.coalesce(1) for each in frames] if together else frames)

    def _rows(self, table: pa.Table) -> DataFrame:
        """A table as a DataFrame, as `createDataFrame` makes it. That asks the session for eight settings first, in
        some thirty questions to Java, which is most of its time; they are known here."""
        return self._spark._create_from_arrow_table(
            table,
            spark_schema(table.schema),
            timezone="UTC",
            prefer_timestamp_ntz=False,
            prefers_large_var_types=False,
            arrow_batch_size=BATCH_ROWS,
        )

    def compute(self, inputs: Sequence[pa.Table]) -> pa.Table:
        """Run the query. Blocks; about a tenth of a second for some thousand rows. The same rows in the same order give
        the same result, at the first time and later: rows of an input are in one partition, in their order."""
        try:
            built = self._learn(inputs)
            return fetch(self.frame(inputs, together=built.together), built.columns)
        except ViewError:
            raise
        except Exception as error:
            raise node_error(self.view, error) from error

    def _learn(self, inputs: Sequence[pa.Table]) -> Built:
        """What is known of the query on inputs with these columns."""
        read = [each.schema for each in inputs]
        if self._built is None or self._built.read != read:
            frame = self.frame(inputs)
            self._built = Built(read, columns_schema(frame), not _is_row_by_row(frame))
        return self._built


def _is_row_by_row(frame: DataFrame) -> bool:
    """Whether each row of the result is made of one row of the input, whatever the others are."""
    pending = [frame._jdf.queryExecution().analyzed()]
    while pending:
        plan = pending.pop()
        if plan.getClass().getSimpleName() not in _ROW_BY_ROW or plan.subqueries().nonEmpty():
            return False
        pending += each_of(plan.children())
    return True
