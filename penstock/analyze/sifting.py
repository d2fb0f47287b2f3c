"""A view's conditions for its events. An event that the view would have filtered out anyway is not reported as late.

The conditions come from Spark's optimised plan, where they are next to the data that they apply to. To get this plan,
the view is built on an empty batch, as in `pruning.py`. Conditions are kept as SQL text, and are applied only to the
few events that appear to be late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from penstock.analyze.fetching import fetch
from penstock.analyze.frames import Reader, spark_schema
from penstock.analyze.lateness import Sift
from penstock.analyze.trees import items_of
from penstock.core.errors import ViewError

ROW = "_row"


def sifter(spark: SparkSession, make: Callable[[Reader], DataFrame]) -> Sift:
    """Return a function that applies the view's conditions to rows. It applies conditions that are SQL over one
    stream's columns. If the view reads a stream twice, or filters it with a Python function, no rows are removed."""
    conditions = _view_conditions(spark, make)

    def sift(stream: str, rows: pa.RecordBatch) -> list[int]:
        if stream not in conditions:
            return list(range(rows.num_rows))
        numbered = pa.Table.from_batches([rows]).append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
        frame = spark.createDataFrame(numbered, spark_schema(rows.schema).add(ROW, LongType()))
        return sorted(fetch(frame.filter(conditions[stream]).select(ROW)).column(ROW).to_pylist())

    return sift


def _view_conditions(spark: SparkSession, make: Callable[[Reader], DataFrame]) -> Mapping[str, str]:
    streams: dict[int, str] = {}
    empty: dict[str, list[DataFrame]] = {}

    def read(stream: str, schema: StructType) -> DataFrame:
        frame = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        empty.setdefault(stream, []).append(frame)
        streams.update(
            (attribute.exprId().id(), stream) for attribute in items_of(frame._jdf.queryExecution().analyzed().output())
        )
        return frame

    try:
        conditions = list(_stream_conditions(make(read)._jdf.queryExecution().optimizedPlan(), streams))
        alone = {stream: text for stream, text in conditions if len(empty[stream]) == 1}
        for stream, text in alone.items():
            empty[stream][0].filter(text)
    except (PySparkException, ViewError):
        return {}
    return alone


def _stream_conditions(node: Any, streams: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Yield each stream that is filtered before anything else is done with its rows, with the condition as SQL."""
    children = list(items_of(node.children()))
    if node.nodeName() == "Filter" and node.condition().deterministic() and _is_unfiltered_input(children[0]):
        references = list(items_of(node.references().toSeq()))
        named = {streams.get(reference.exprId().id()) for reference in references}
        if len(named) == 1 and (stream := named.pop()) is not None:
            yield stream, _condition_sql(node.condition(), references)
    for child in children:
        yield from _stream_conditions(child, streams)


def _is_unfiltered_input(node: Any) -> bool:
    """Return whether a node of a view's plan returns the rows of an input as they were read, apart from removed
    ticks."""
    while node.nodeName() == "Project" or (node.nodeName() == "Filter" and not node.condition().deterministic()):
        node = node.children().apply(0)
    return bool(node.children().isEmpty())


def _condition_sql(condition: Any, references: list[Any]) -> str:
    """Return a view's condition as SQL with unqualified column names, because the names that the view gave its inputs
    are not defined for the rows."""
    text = str(condition.sql())
    for reference in references:
        called = str(reference.sql())
        if "." in called:
            text = re.sub(re.escape(called) + r"(?![\w`])", f"`{reference.name()}`", text)
    return text
