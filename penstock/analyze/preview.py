"""Run a view on plain lists of events, as an ordinary batch DataFrame, for tests and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.analyze.check import EmptyLog, view_problems
from penstock.analyze.frames import build, columns_schema, stream_frame
from penstock.analyze.scratch import scratch_folder
from penstock.analyze.session import start_session
from penstock.analyze.source import register
from penstock.app.app import App
from penstock.app.check import require_sound_view
from penstock.app.declared import CHANGES_SUFFIX, Stream, Time, View
from penstock.app.graph import is_derived
from penstock.core.columns import CHANGE_COLUMN, UPSERT, VERSION_COLUMN, json_rows, require_one_row_each, to_batch
from penstock.core.errors import MissingTool, ViewError
from penstock.core.schema import Event, wire_class
from penstock.core.settings import from_environment


def preview(app: App, view: View, events: Sequence[Iterable[Any]]) -> DataFrame:
    """Implement `App.preview`. Raises `ViewError` if `penstock check` would report a problem with the view."""
    if len(events) != len(view.reads):
        wanted = ", ".join(view.reads)
        raise ViewError(f"view {view.name} reads {wanted}: pass one list of events for each; got {len(events)}")
    require_sound_view(app, view)
    spark = SparkSession.getActiveSession() or _preview_session()
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    frames = [
        _stream_input(spark, streams[name], rows, view.time) if name in streams else _view_input(spark, name, rows)
        for name, rows in zip(view.reads, events, strict=True)
    ]
    _require_runnable(spark, app, view, frames)
    frame = build(spark, view, frames)
    if is_derived(app, view):
        require_one_row_each(view.name, [key.decode() for key in json_rows(frame.toArrow(), view.key)])
        return _naming_pandas(frame)
    return _naming_pandas(_last_of_each(spark, frame, view.key))


def _require_runnable(spark: SparkSession, app: App, view: View, frames: Sequence[DataFrame]) -> None:
    """Reject a view that `penstock check` would reject, because some queries that work on a list do not work on an
    endless stream."""
    given = zip(view.reads, frames, strict=True)
    columns = {name.removesuffix(CHANGES_SUFFIX): _row_columns(frame) for name, frame in given}
    register(spark, EmptyLog)
    _, problems = view_problems(spark, app, view, columns, unbounded=True)
    if problems:
        raise ViewError(f"{view.where}: view {view.name}: {problems[0]}", view=view.name)


def _row_columns(frame: DataFrame) -> pa.Schema:
    """Return a view's columns, given a frame of its rows or changes."""
    added = {CHANGE_COLUMN, VERSION_COLUMN}
    return pa.schema([field for field in columns_schema(frame) if field.name not in added])


def _last_of_each(spark: SparkSession, frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Keep only the last row of each key of a previewed view, as the view's file does (`store.rows.to_rows`)."""
    table = frame.toArrow()
    last = {row: index for index, row in enumerate(json_rows(table, key))}
    if len(last) == table.num_rows:
        return frame
    return spark.createDataFrame(table.take(sorted(last.values())), frame.schema)


def _naming_pandas(frame: DataFrame) -> DataFrame:
    """If pandas is missing, make `toPandas` raise an error that says how to install it. Spark's own error only names
    the module."""
    if find_spec("pandas") is None:
        frame.toPandas = _no_pandas  # type: ignore[method-assign]
    return frame


def _no_pandas() -> NoReturn:
    raise MissingTool("toPandas() needs pandas: pip install 'penstock[pandas]'; toArrow() and collect() do not")


def _view_input(spark: SparkSession, name: str, rows: Iterable[Any]) -> DataFrame:
    """Return a DataFrame of a view's rows or changes. Changes without a change column count as upserts."""
    frame = spark.createDataFrame(list(rows))
    if name.endswith(CHANGES_SUFFIX) and CHANGE_COLUMN not in frame.columns:
        frame = frame.withColumn(CHANGE_COLUMN, F.lit(UPSERT))
    return frame


def _stream_input(spark: SparkSession, stream: Stream, rows: Iterable[Any], time: Time) -> DataFrame:
    values = [_preview_event(stream.event, row) for row in rows]
    empty: list[str | None] = [None] * len(values)
    batch = to_batch(stream.event, values, ids=empty, keys=empty, now=datetime.now(UTC))

    def read(name: str, schema: StructType) -> DataFrame:
        return spark.createDataFrame(pa.Table.from_batches([batch]), schema)

    return stream_frame(stream, read, time)


def _preview_event(cls: type[Event], row: Any) -> Any:
    """Return an event passed to a preview unchanged. Convert a mapping to an event, with the same validation as for a
    POST."""
    return row if isinstance(row, cls) else msgspec.convert(row, wire_class(cls))


def _preview_session() -> SparkSession:
    folder = scratch_folder()
    return start_session("preview", from_environment(), logs=folder / "log", warehouse=folder / "warehouse")
