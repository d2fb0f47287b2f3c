"""From declarations to DataFrames: the inputs that a view reads, and the view on them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, DoubleType, FloatType, MapType, StructType

from penstock.app import App
from penstock.columns import change_schema
from penstock.declared import CHANGES_SUFFIX, Handler, Stream, Time, View, Where
from penstock.errors import HandlerError, ViewError
from penstock.schema import INGEST_COLUMN, KIND_EVENT, SYSTEM_COLUMNS, event_schema
from penstock.sql import place

Reader = Callable[[str, StructType], DataFrame]
"""Gives the raw rows of a stream: from the log, or from a plain list."""


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark face of an Arrow schema."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def stream_frame(stream: Stream, read: Reader, time: Time = "event") -> DataFrame:
    """A stream's events: with its watermark, without ticks (which move the watermark) and system columns.

    By ingest time, there is a column for it, with a watermark that leaves no time: what comes is never older than what
    has come.
    """
    frame = read(stream.name, spark_schema(event_schema(stream.event)))
    if time == "ingest":
        return _events(frame.withColumn(INGEST_COLUMN, F.col("_ingest_time")).withWatermark(INGEST_COLUMN, "0 seconds"))
    if stream.late_after is not None and stream.event.__time_field__ is not None:
        delay = f"{round(stream.late_after.total_seconds() * 1000)} milliseconds"
        frame = frame.withWatermark(stream.event.__time_field__, delay)
    return _events(frame)


def changes_frame(stream: str, columns: pa.Schema, read: Reader) -> DataFrame:
    """The changes of a view with these columns, each row an event of the stream VIEW.changes."""
    return _events(read(stream, spark_schema(change_schema(columns))))


def _events(frame: DataFrame) -> DataFrame:
    """Without ticks, which must come as far as the watermark. Spark would do this, and what the view filters, before:
    not with a condition that could depend on more than the row, as one on the number of the task."""
    never = F.spark_partition_id() < 0
    return frame.filter((frame["_kind"] == KIND_EVENT) | never).drop(*SYSTEM_COLUMNS)


def inputs(app: App, view: View, read: Reader, columns: Mapping[str, pa.Schema]) -> list[DataFrame]:
    """The DataFrames that a view of streams reads, in order. `columns` has those of each view."""
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    return [
        stream_frame(streams[name], read, view.time)
        if name in streams
        else changes_frame(name, columns[name.removesuffix(CHANGES_SUFFIX)], read)
        for name in view.reads
    ]


def build(spark: SparkSession, view: View, frames: Sequence[DataFrame]) -> DataFrame:
    """The view on its inputs. Whatever is wrong with it is a `ViewError` that names view, place and column."""
    try:
        if view.query is not None:
            for name, frame in zip(view.reads, frames, strict=True):
                frame.createOrReplaceTempView(_quoted(name))
            made = DataFrame(spark._jsparkSession.sql(view.query), spark)  # `spark.sql` makes five questions of it
        else:
            made = view(*frames)
    except Exception as error:
        raise node_error(view, error) from error
    if not isinstance(made, DataFrame):
        raise ViewError(
            f"{view.where}: view {view.name}: it returned {type(made).__name__}, not a DataFrame", view=view.name
        )
    return made


def _quoted(name: str) -> str:
    return f"`{name}`"


def key_problems(view: View, frame: DataFrame) -> list[str]:
    """What is wrong with the key and the ranking of a view, given its columns."""
    columns = {field.name: field.dataType for field in frame.schema.fields}
    shown = ", ".join(columns)
    found = [f"the key {name!r} is no column of it; it has {shown}" for name in view.key if name not in columns]
    found += [
        f"the key {name!r} is of type {columns[name].simpleString()}, which cannot identify a row"
        for name in view.key
        if name in columns and _unusable(columns[name])
    ]
    if view.by is not None and view.by not in columns:
        found.append(f"by={view.by!r} is no column of it; it has {shown}")
    elif view.by is not None and isinstance(columns[view.by], StructType | ArrayType | MapType | BinaryType):
        found.append(f"by={view.by!r} is of type {columns[view.by].simpleString()}, which cannot be ranked")
    if len(columns) != len(frame.columns):
        found.append("two of its columns have the same name")
    missing = [name for name in _grouped_by(frame) if name in columns and name not in view.key]
    if missing and not found:
        found.append(
            f"it groups by {', '.join(missing)} as well, which is not in its key: rows would overwrite each other"
        )
    return found


def _unusable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_unusable(field.dataType) for field in kind.fields)
    return isinstance(kind, ArrayType | MapType | BinaryType | DoubleType | FloatType)


def _grouped_by(frame: DataFrame) -> list[str]:
    """The output columns that come straight from a GROUP BY: together they identify a row."""
    plan = frame._jdf.queryExecution().analyzed()
    grouped: set[str] = set()
    pending = [plan]
    while pending:
        node = pending.pop()
        if node.nodeName() == "Aggregate":
            expressions = node.groupingExpressions()
            grouped |= {_identity(expressions.apply(index)) for index in range(expressions.size())}
        children = node.children()
        pending += [children.apply(index) for index in range(children.size())]
    output = plan.output()
    attributes = [output.apply(index) for index in range(output.size())]
    return [attribute.name() for attribute in attributes if _identity(attribute) in grouped]


def _identity(expression: Any) -> str:
    """A name that an attribute keeps from where it is made to where it is used."""
    found = re.search(r"#\d+", str(expression.toString()))
    return found.group() if found else str(expression.toString())


def node_error(node: View | Handler, error: BaseException) -> ViewError | HandlerError:
    """What a user needs of a failure in a view or handler: which one, which line, which column, one sentence."""
    where = _user_line(node, error)
    sentence = _sentence(error)
    if isinstance(node, Handler):
        return HandlerError(f"{where}: handler {node.name}: {sentence}", handler=node.name)
    column, there = _column(error), _sql_place(node, error)
    message = f"{where}: view {node.name}: {sentence}" + (f" (in its SQL: {there})" if there is not None else "")
    return ViewError(message, view=node.name, file=where.file, line=where.line, column=column)


def _user_line(node: View | Handler, error: BaseException) -> Where:
    """The last line of the user's own file on the way to the error; Spark's call site if it was not on the way."""
    if node.function is not None:
        file = node.function.__code__.co_filename
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if lines and lines[-1] is not None:
            return Where(node.where.file, lines[-1])
    found = re.search(r"was called from\s+(\S+?):(\d+)", str(error))
    return Where(node.where.file, int(found.group(2))) if found and node.function else node.where


def _sentence(error: BaseException) -> str:
    """The message without Spark's tail: no SQL state, no plan, no Java stack."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).splitlines()[0]
    if not isinstance(error, PySparkException):
        return f"{type(error).__name__}: {error}"
    text = str(error)
    python = re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception): .*)$", text, re.MULTILINE)
    if "Traceback (most recent call last)" in text and python:
        return str(python[-1])
    inner = re.findall(r"(\[[A-Z0-9_.]+\] .*)", text)
    line = str(inner[-1] if inner else text.splitlines()[0])
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line).strip()


def _sql_place(view: View, error: BaseException) -> str | None:
    """The place in the SQL of a view at which Spark found an error, if it says so: of a text that cannot be parsed, and
    of a name that is not there."""
    if view.query is None or not isinstance(error, AnalysisException):
        return None
    java: Any = getattr(error, "_origin", None)
    if java is None or not (java.line().isDefined() and java.startPosition().isDefined()):
        return None
    return place(view.query, int(java.line().get()), int(java.startPosition().get()))


def _column(error: BaseException) -> str | None:
    if isinstance(error, PySparkException):
        parameters = error.getMessageParameters() or {}
        name = parameters.get("objectName") or parameters.get("fieldName")
        return name.replace("`", "") if name else None
    return None


def columns_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow types of a view's columns."""
    columns = to_arrow_schema(frame.schema, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in columns])
