"""Joins of two streams in a view's plan: whether Spark can ever let their rows go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.declared import View

UNBOUNDED = (
    "it joins two streams without a bound, so every row would be kept for ever: give both streams late_after, and in "
    "the condition an interval of their times, as in b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES; or use @app.join"
)
SOME_TIME_MS = 1 << 40
"""Any watermark will do, but it must be too large for Java's int, or it would not come as a long."""
NOT_CLOSED = "it joins two streams, whose rows appear once: give emit='close'"


def join_problems(spark: SparkSession, view: View, frame: DataFrame) -> Iterator[str]:
    """What is wrong with a view that joins two streams."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    joins = [node for node in _nodes(plan) if node.nodeName() == "Join" and _of_streams(node)]
    if joins and view.emit != "close":
        yield NOT_CLOSED
    elif not all(_is_bounded(spark, node) for node in joins):
        yield UNBOUNDED


def _of_streams(join: Any) -> bool:
    return bool(join.left().isStreaming() and join.right().isStreaming())


def _is_bounded(spark: SparkSession, join: Any) -> bool:
    """Asked of Spark itself: it lets rows of a side go if their time is in the key, or bound by the other side's."""
    java: Any = spark._jvm
    helper = java.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if helper.isWatermarkInJoinKeys(join):
        return True
    left, right, some = join.left().outputSet(), join.right().outputSet(), java.scala.Option.apply(SOME_TIME_MS)
    return all(
        helper.getStateValueWatermark(mine, other, join.condition(), some).isDefined()
        for mine, other in ((left, right), (right, left))
    )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
