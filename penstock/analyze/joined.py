"""Check for each join of two streams in a view's plan whether Spark can ever drop the rows that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.app.declared import View

UNBOUNDED = (
    "it joins two streams without a time bound, so it would keep every row: set late_after on both streams, and limit "
    "their times in the condition, as in b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES; or use @app.join"
)
SOME_TIME_MS = 1 << 40
"""The watermark used for the check. Any value works if it is too large for Java's int, because a smaller value would
not arrive as a long."""
NOT_CLOSED = "it joins two streams, so each of its rows is emitted once: set emit='close'"


def join_problems(spark: SparkSession, view: View, frame: DataFrame) -> Iterator[str]:
    """Yield the problems with a view that joins two streams."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    joins = [node for node in _plan_nodes(plan) if node.nodeName() == "Join" and _joins_streams(node)]
    if joins and view.emit != "close":
        yield NOT_CLOSED
    elif not all(_is_bounded(spark, node) for node in joins):
        yield UNBOUNDED


def _joins_streams(join: Any) -> bool:
    return bool(join.left().isStreaming() and join.right().isStreaming())


def _is_bounded(spark: SparkSession, join: Any) -> bool:
    """Return whether Spark considers the join of two streams bounded. Spark drops rows from one side if the time of
    these rows is part of the key, or if the other side's time limits it."""
    java: Any = spark._jvm
    helper = java.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if helper.isWatermarkInJoinKeys(join):
        return True
    left, right, some = join.left().outputSet(), join.right().outputSet(), java.scala.Option.apply(SOME_TIME_MS)
    return all(
        helper.getStateValueWatermark(mine, other, join.condition(), some).isDefined()
        for mine, other in ((left, right), (right, left))
    )


def _plan_nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _plan_nodes(children.apply(index))
