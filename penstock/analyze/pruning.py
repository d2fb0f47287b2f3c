"""Read only the columns that a view uses.

Spark does not tell a Python source which columns it needs, so all of them would be copied into the JVM. The optimised
plan shows which columns are used, but a streaming plan cannot be optimised before it runs. So the view is first built
on an empty batch, whose plan can be optimised. Columns that no operator refers to are not read; they are null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from penstock.analyze.frames import Reader
from penstock.analyze.trees import items_of, walk
from penstock.core.errors import ViewError

Make = Callable[[Reader], DataFrame]
Needed = Mapping[str, frozenset[str]]
_BY_POSITION = {"Union", "Intersect", "Except"}
"""Operators that use their inputs' columns by position, not by name."""


def prune(spark: SparkSession, make: Make, read: Reader, always: frozenset[str] = frozenset()) -> DataFrame:
    """Call `make`, which builds a view, with a stream reader that reads only the columns that it uses and the columns
    in `always`."""
    needed = needed_columns(spark, make)
    return make(_narrowed(read, {stream: names | always for stream, names in needed.items()}))


def needed_columns(spark: SparkSession, make: Make) -> Needed:
    """Return the columns that are used from each stream. The result is empty if they cannot be determined with
    certainty."""
    origin: dict[int, tuple[str, str]] = {}

    def read(stream: str, schema: StructType) -> DataFrame:
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        for attribute in items_of(empty._jdf.queryExecution().analyzed().output()):
            origin[attribute.exprId().id()] = (stream, attribute.name())
        return empty

    try:
        plan = make(read)._jdf.queryExecution().optimizedPlan()
    except (PySparkException, ViewError):
        return {}  # the view works only on streams, or not at all; the caller will notice that
    return _used_columns(plan, origin)


def _used_columns(plan: Any, origin: Mapping[int, tuple[str, str]]) -> Needed:
    nodes = list(walk(plan))
    leaves = [
        attribute.exprId().id() for node in nodes if node.children().isEmpty() for attribute in items_of(node.output())
    ]
    if any(node.nodeName() in _BY_POSITION for node in nodes) or any(leaf not in origin for leaf in leaves):
        return {}
    used = _column_ids(plan.outputSet())
    for node in nodes:
        used |= _column_ids(node.references())
    return {
        stream: frozenset(name for number, (other, name) in origin.items() if other == stream and number in used)
        for stream in {stream for stream, _ in origin.values()}
    }


def _narrowed(read: Reader, needed: Needed) -> Reader:
    """Return a stream reader that reads only the needed columns from the log, but returns frames with all columns."""

    def narrow(stream: str, schema: StructType) -> DataFrame:
        wanted = needed.get(stream)
        if wanted is None or wanted >= set(schema.names):
            return read(stream, schema)
        kept = StructType([field for field in schema if field.name in wanted])
        return read(stream, kept).select([_pruned_column(field, kept) for field in schema])

    return narrow


def _pruned_column(field: StructField, kept: StructType) -> Column:
    if field.name in kept.names:
        return F.col(f"`{field.name}`")
    return F.lit(None).cast(field.dataType).alias(field.name)


def _column_ids(attributes: Any) -> set[int]:
    return {attribute.exprId().id() for attribute in items_of(attributes.toSeq())}
