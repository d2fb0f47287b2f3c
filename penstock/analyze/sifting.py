"""What a view asks of the events it reads: so that one it would have left out anyway is not told as late.

Spark has the answer in its optimised plan, where conditions stand next to what they are about. As for the columns that
a view uses (`pruning.py`), the view is made on an empty batch for it. The condition is kept as SQL text, and asked of
events that seem to be late, which are few.
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
from penstock.errors import ViewError

ROW = "_row"


def sifter(spark: SparkSession, make: Callable[[Reader], DataFrame]) -> Sift:
    """Asks of rows what the view asks, as far as that is said in SQL of the columns of one stream. A stream that it
    reads twice, or with a function of Python, is not sifted."""
    conditions = _conditions(spark, make)

    def sift(stream: str, rows: pa.RecordBatch) -> list[int]:
        if stream not in conditions:
            return list(range(rows.num_rows))
        numbered = pa.Table.from_batches([rows]).append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
        frame = spark.createDataFrame(numbered, spark_schema(rows.schema).add(ROW, LongType()))
        return sorted(fetch(frame.filter(conditions[stream]).select(ROW)).column(ROW).to_pylist())

    return sift


def _conditions(spark: SparkSession, make: Callable[[Reader], DataFrame]) -> Mapping[str, str]:
    streams: dict[int, str] = {}
    empty: dict[str, list[DataFrame]] = {}

    def read(stream: str, schema: StructType) -> DataFrame:
        frame = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        empty.setdefault(stream, []).append(frame)
        streams.update((each.exprId().id(), stream) for each in _each(frame._jdf.queryExecution().analyzed().output()))
        return frame

    try:
        found = list(_asked(make(read)._jdf.queryExecution().optimizedPlan(), streams))
        alone = {stream: text for stream, text in found if len(empty[stream]) == 1}
        for stream, text in alone.items():
            empty[stream][0].filter(text)
    except (PySparkException, ViewError):
        return {}
    return alone


def _asked(node: Any, streams: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The conditions that are asked of a stream's rows before anything else is done with them."""
    children = list(_each(node.children()))
    if node.nodeName() == "Filter" and node.condition().deterministic() and _is_read(children[0]):
        references = list(_each(node.references().toSeq()))
        named = {streams.get(each.exprId().id()) for each in references}
        if len(named) == 1 and (stream := named.pop()) is not None:
            yield stream, _text(node.condition(), references)
    for child in children:
        yield from _asked(child, streams)


def _is_read(node: Any) -> bool:
    """Rows as they are read, without ticks."""
    while node.nodeName() == "Project" or (node.nodeName() == "Filter" and not node.condition().deterministic()):
        node = node.children().apply(0)
    return bool(node.children().isEmpty())


def _text(condition: Any, references: list[Any]) -> str:
    """As SQL, with columns by their names alone: what they were called in the view is not known to the rows."""
    text = str(condition.sql())
    for each in references:
        called = str(each.sql())
        if "." in called:
            text = re.sub(re.escape(called) + r"(?![\w`])", f"`{each.name()}`", text)
    return text


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
