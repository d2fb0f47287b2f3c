"""Turn declarations into DataFrames: the inputs of a view, and the view itself."""

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

from penstock.analyze.registered import registered, remove_added
from penstock.analyze.trees import items_of
from penstock.app.app import App
from penstock.app.declared import CHANGES_SUFFIX, Handler, Stream, Time, View, Where
from penstock.app.sql import describe_position
from penstock.core.columns import change_schema
from penstock.core.errors import HandlerError, ViewError
from penstock.core.schema import INGEST_COLUMN, KIND_EVENT, SYSTEM_COLUMNS, event_schema

Reader = Callable[[str, StructType], DataFrame]
"""A function that returns the raw rows of a stream, from the log or from a plain list."""


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to a Spark schema."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def stream_frame(stream: Stream, read: Reader, time: Time = "event") -> DataFrame:
    """Return a stream's events with their watermark, without system columns and without ticks, which only advance the
    watermark.

    With `time="ingest"`, the frame has a column for the ingest time. Its watermark allows no delay, because no event
    has an earlier ingest time than the events before it.
    """
    frame = read(stream.name, spark_schema(event_schema(stream.event)))
    if time == "ingest":
        return _without_ticks(
            frame.withColumn(INGEST_COLUMN, F.col("_ingest_time")).withWatermark(INGEST_COLUMN, "0 seconds")
        )
    if stream.late_after is not None and stream.event.__time_field__ is not None:
        delay = f"{round(stream.late_after.total_seconds() * 1000)} milliseconds"
        frame = frame.withWatermark(stream.event.__time_field__, delay)
    return _without_ticks(frame)


def changes_frame(stream: str, columns: pa.Schema, read: Reader) -> DataFrame:
    """Return the changes of a view with these columns. Each row is an event in the stream VIEW.changes."""
    return _without_ticks(read(stream, spark_schema(change_schema(columns))))


def _without_ticks(frame: DataFrame) -> DataFrame:
    """Remove ticks from a stream's DataFrame after they have passed the watermark operator. Spark would move an
    ordinary filter below the watermark, but not a filter that could depend on more than the row, for example on the
    task number."""
    never = F.spark_partition_id() < 0
    return frame.filter((frame["_kind"] == KIND_EVENT) | never).drop(*SYSTEM_COLUMNS)


def inputs(app: App, view: View, read: Reader, columns: Mapping[str, pa.Schema]) -> list[DataFrame]:
    """Return the DataFrames that a view of streams reads, in order. `columns` contains the columns of each view whose
    changes it reads."""
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    return [
        stream_frame(streams[name], read, view.time)
        if name in streams
        else changes_frame(name, columns[name.removesuffix(CHANGES_SUFFIX)], read)
        for name in view.reads
    ]


def build(spark: SparkSession, view: View, frames: Sequence[DataFrame]) -> DataFrame:
    """Build the view's DataFrame on its inputs. Raises `ViewError` for any mistake in the view, with the view's name,
    the line, and the column if it is known."""
    try:
        if view.query is not None:
            for name, frame in zip(view.reads, frames, strict=True):
                frame.createOrReplaceTempView(_quoted_column(name))
            output = DataFrame(spark._jsparkSession.sql(view.query), spark)  # one call to Java; `spark.sql` makes five
        else:
            output = _call_view(spark, view, frames)
    except ViewError:
        raise
    except Exception as error:
        raise node_error(view, error) from error
    if not isinstance(output, DataFrame):
        raise ViewError(
            f"{view.where}: view {view.name}: it returned {type(output).__name__}, not a DataFrame", view=view.name
        )
    return output


def _call_view(spark: SparkSession, view: View, frames: Sequence[DataFrame]) -> Any:
    """Call the view's function. Restores the settings of the session, and removes what the function has registered in
    it. Raises `ViewError` if there was anything to restore or remove: Spark's plans do not contain all of it, and other
    views use the same session."""
    before, names = _session_settings(spark), registered(spark)
    try:
        output = view(*frames)
    finally:
        changed, added = _restore_settings(spark, before), remove_added(spark, names)
    if added:
        name, advice = added[0]
        raise ViewError(
            f"{view.where}: view {view.name}: its function registers {name} in the Spark session, where other views "
            f"could use it without noticing that it has changed; {advice}",
            view=view.name,
        )
    if changed:
        raise ViewError(
            f"{view.where}: view {view.name}: its function changes the session's setting {changed[0]}, which would "
            "also apply to other views; use a function in the query instead, such as try_cast or from_utc_timestamp",
            view=view.name,
        )
    return output


def _session_settings(spark: SparkSession) -> Any:
    """Return a copy of the session's settings, as a map in Java. Takes a tenth of a millisecond."""
    return spark._jsparkSession.sessionState().conf().getAllConfs()


def _restore_settings(spark: SparkSession, before: Any) -> list[str]:
    """Restore the session's settings, and return the names of those that had changed."""
    after = _session_settings(spark)
    if after.equals(before):
        return []
    names = {str(entry._1()) for settings in (before, after) for entry in items_of(settings.toSeq())}
    changed = sorted(name for name in names if not before.get(name).equals(after.get(name)))
    for name in changed:
        old = before.get(name)
        if old.isDefined():
            spark.conf.set(name, str(old.get()))
        else:
            spark.conf.unset(name)
    return changed


def _quoted_column(name: str) -> str:
    return f"`{name}`"


def key_problems(view: View, frame: DataFrame) -> list[str]:
    """Return the mistakes in a view's key and ranking, given its columns."""
    columns = {field.name: field.dataType for field in frame.schema.fields}
    shown = ", ".join(columns)
    problems = [f"it has no column {name!r} for its key; it has {shown}" for name in view.key if name not in columns]
    problems += [
        f"the key {name!r} is of type {columns[name].simpleString()}, which cannot identify a row"
        for name in view.key
        if name in columns and _is_unusable_key(columns[name])
    ]
    if view.by is not None and view.by not in columns:
        problems.append(f"it has no column {view.by!r} for by=; it has {shown}")
    elif view.by is not None and isinstance(columns[view.by], StructType | ArrayType | MapType | BinaryType):
        problems.append(f"by={view.by!r} is of type {columns[view.by].simpleString()}, which cannot be ranked")
    if len(columns) != len(frame.columns):
        problems.append("two of its columns have the same name")
    missing = [name for name in _grouped_by(frame) if name in columns and name not in view.key]
    if missing and not problems:
        problems.append(
            f"it also groups by {', '.join(missing)}, which is not in its key: rows would overwrite each other"
        )
    return problems


def _is_unusable_key(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_unusable_key(field.dataType) for field in kind.fields)
    return isinstance(kind, ArrayType | MapType | BinaryType | DoubleType | FloatType)


def _grouped_by(frame: DataFrame) -> list[str]:
    """Return the output columns that come unchanged from a GROUP BY. Together, these columns identify a row."""
    plan = frame._jdf.queryExecution().analyzed()
    grouped: set[str] = set()
    pending = [plan]
    while pending:
        node = pending.pop()
        if node.nodeName() == "Aggregate":
            expressions = node.groupingExpressions()
            grouped |= {_attribute_id(expressions.apply(index)) for index in range(expressions.size())}
        children = node.children()
        pending += [children.apply(index) for index in range(children.size())]
    output = plan.output()
    attributes = [output.apply(index) for index in range(output.size())]
    return [attribute.name() for attribute in attributes if _attribute_id(attribute) in grouped]


def _attribute_id(expression: Any) -> str:
    """Return an identifier for an attribute of Spark's plan, which is the same where the attribute is computed and
    wherever it is used."""
    match = re.search(r"#\d+", str(expression.toString()))
    return match.group() if match else str(expression.toString())


def node_error(node: View | Handler, error: BaseException) -> ViewError | HandlerError:
    """Convert a failure in a view or handler to an error for its author: the view or handler, the line, the column if
    it is known, and one sentence."""
    where = _user_line(node, error)
    sentence = _spark_message(error)
    if isinstance(node, Handler):
        return HandlerError(f"{where}: handler {node.name}: {sentence}", handler=node.name)
    column, there = _unknown_column(error), _sql_position(node, error)
    message = f"{where}: view {node.name}: {sentence}" + (f" (in its SQL: {there})" if there is not None else "")
    return ViewError(message, view=node.name, file=where.file, line=where.line, column=column)


def _user_line(node: View | Handler, error: BaseException) -> Where:
    """Return the last line of the user's own file in the traceback of a view's or handler's error. If the file is not
    in the traceback, return Spark's call site, or the line of the declaration."""
    if node.function is not None:
        file = node.function.__code__.co_filename
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if lines and lines[-1] is not None:
            return Where(node.where.file, lines[-1])
    match = re.search(r"was called from\s+(\S+?):(\d+)", str(error))
    return Where(node.where.file, int(match.group(2))) if match and node.function else node.where


def _spark_message(error: BaseException) -> str:
    """Return the message of a Spark error without Spark's additions, such as the SQL state, the plan and the Java
    stack."""
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


def _sql_position(view: View, error: BaseException) -> str | None:
    """Return the position in a view's SQL where Spark found an error, or None. Spark reports a position for SQL that
    cannot be parsed and for unknown names."""
    if view.query is None or not isinstance(error, AnalysisException):
        return None
    java: Any = getattr(error, "_origin", None)
    if java is None or not (java.line().isDefined() and java.startPosition().isDefined()):
        return None
    return describe_position(view.query, int(java.line().get()), int(java.startPosition().get()))


def _unknown_column(error: BaseException) -> str | None:
    if isinstance(error, PySparkException):
        parameters = error.getMessageParameters() or {}
        name = parameters.get("objectName") or parameters.get("fieldName")
        return name.replace("`", "") if name else None
    return None


def columns_schema(frame: DataFrame) -> pa.Schema:
    """Return the Arrow types of a view's columns."""
    columns = to_arrow_schema(frame.schema, timezone="UTC")
    return pa.schema([field.with_nullable(True) for field in columns])
