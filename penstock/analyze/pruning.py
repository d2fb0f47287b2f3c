"""Reading only the columns that a view uses.

Spark does not tell a Python source which columns it wants, so all of them would be copied into the JVM. The optimised
plan knows which are used, but a streaming one cannot be optimised before it runs. So the view is made a first time on
an empty batch, whose plan can: a column that no operator refers to is then left out of the read and stands as null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from penstock.analyze.frames import Reader
from penstock.errors import ViewError

Make = Callable[[Reader], DataFrame]
Needed = Mapping[str, frozenset[str]]
_BY_POSITION = {"Union", "Intersect", "Except"}
"""Operators that use their inputs' columns without naming them."""


def prune(spark: SparkSession, make: Make, read: Reader, always: frozenset[str] = frozenset()) -> DataFrame:
    """What `make` gives on a reader of just the columns that it uses, and of those named in `always`."""
    needed = needed_columns(spark, make)
    return make(_narrowed(read, {stream: names | always for stream, names in needed.items()}))


def needed_columns(spark: SparkSession, make: Make) -> Needed:
    """For each stream that the frame reads, the columns it uses; empty if that is not certain."""
    origin: dict[int, tuple[str, str]] = {}

    def read(stream: str, schema: StructType) -> DataFrame:
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        for each in _each(empty._jdf.queryExecution().analyzed().output()):
            origin[each.exprId().id()] = (stream, each.name())
        return empty

    try:
        plan = make(read)._jdf.queryExecution().optimizedPlan()
    except (PySparkException, ViewError):
        return {}  # it works on streams only, or not at all, which the caller will find
    return _uses(plan, origin)


def _uses(plan: Any, origin: Mapping[int, tuple[str, str]]) -> Needed:
    nodes = list(_walk(plan))
    leaves = [each.exprId().id() for node in nodes if node.children().isEmpty() for each in _each(node.output())]
    if any(node.nodeName() in _BY_POSITION for node in nodes) or any(leaf not in origin for leaf in leaves):
        return {}
    used = _ids(plan.outputSet())
    for node in nodes:
        used |= _ids(node.references())
    return {
        stream: frozenset(name for number, (other, name) in origin.items() if other == stream and number in used)
        for stream in {stream for stream, _ in origin.values()}
    }


def _narrowed(read: Reader, needed: Needed) -> Reader:
    """A reader that takes only the needed columns from the log and has the schema of them all."""

    def narrow(stream: str, schema: StructType) -> DataFrame:
        wanted = needed.get(stream)
        if wanted is None or wanted >= set(schema.names):
            return read(stream, schema)
        kept = StructType([field for field in schema if field.name in wanted])
        return read(stream, kept).select([_column(field, kept) for field in schema])

    return narrow


def _column(field: StructField, kept: StructType) -> Column:
    if field.name in kept.names:
        return F.col(f"`{field.name}`")
    return F.lit(None).cast(field.dataType).alias(field.name)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _each(node.children()):
        yield from _walk(child)


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _ids(attributes: Any) -> set[int]:
    return {each.exprId().id() for each in _each(attributes.toSeq())}
