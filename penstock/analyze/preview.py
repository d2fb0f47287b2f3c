"""A view on plain lists of events, as an ordinary batch DataFrame: for tests and notebooks."""

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
from penstock.app import App
from penstock.columns import CHANGE_COLUMN, UPSERT, VERSION_COLUMN, json_rows, require_one_row_each, to_batch
from penstock.declared import CHANGES_SUFFIX, Stream, Time, View
from penstock.errors import MissingTool, ViewError
from penstock.graph import is_derived, require_sound_view
from penstock.schema import Event, wire_class
from penstock.settings import from_environment


def preview(app: App, view: View, events: Sequence[Iterable[Any]]) -> DataFrame:
    """See `App.preview`. Raises what `penstock check` says of the view, if it would refuse it."""
    if len(events) != len(view.reads):
        wanted = ", ".join(view.reads)
        raise ViewError(f"view {view.name} reads {wanted}: give one list of events for each, not {len(events)}")
    require_sound_view(app, view)
    spark = SparkSession.getActiveSession() or _session()
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
    """Refuse a view that `penstock check` would refuse: a stream has no end, and not all that can be computed from a
    list can be computed from it."""
    given = zip(view.reads, frames, strict=True)
    columns = {name.removesuffix(CHANGES_SUFFIX): _row_columns(frame) for name, frame in given}
    register(spark, EmptyLog)
    _, problems = view_problems(spark, app, view, columns, unbounded=True)
    if problems:
        raise ViewError(f"{view.where}: view {view.name}: {problems[0]}", view=view.name)


def _row_columns(frame: DataFrame) -> pa.Schema:
    """The columns of a view, of which the rows or the changes are given."""
    added = {CHANGE_COLUMN, VERSION_COLUMN}
    return pa.schema([field for field in columns_schema(frame) if field.name not in added])


def _last_of_each(spark: SparkSession, frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """The last row of each key, as the view's file has it (`store.rows.to_rows`)."""
    table = frame.toArrow()
    last = {row: index for index, row in enumerate(json_rows(table, key))}
    if len(last) == table.num_rows:
        return frame
    return spark.createDataFrame(table.take(sorted(last.values())), frame.schema)


def _naming_pandas(frame: DataFrame) -> DataFrame:
    """Let `toPandas` say what to install, where Spark would only name the module."""
    if find_spec("pandas") is None:
        frame.toPandas = _no_pandas  # type: ignore[method-assign]
    return frame


def _no_pandas() -> NoReturn:
    raise MissingTool("toPandas() needs pandas: pip install 'penstock[pandas]'; toArrow() and collect() need nothing")


def _view_input(spark: SparkSession, name: str, rows: Iterable[Any]) -> DataFrame:
    """The rows of a view; or its changes, which set the row unless they say otherwise."""
    frame = spark.createDataFrame(list(rows))
    if name.endswith(CHANGES_SUFFIX) and CHANGE_COLUMN not in frame.columns:
        frame = frame.withColumn(CHANGE_COLUMN, F.lit(UPSERT))
    return frame


def _stream_input(spark: SparkSession, stream: Stream, rows: Iterable[Any], time: Time) -> DataFrame:
    values = [_value(stream.event, row) for row in rows]
    empty: list[str | None] = [None] * len(values)
    batch = to_batch(stream.event, values, ids=empty, keys=empty, now=datetime.now(UTC))

    def read(name: str, schema: StructType) -> DataFrame:
        return spark.createDataFrame(pa.Table.from_batches([batch]), schema)

    return stream_frame(stream, read, time)


def _value(cls: type[Event], row: Any) -> Any:
    """An event as it is; a mapping checked as if it had been posted."""
    return row if isinstance(row, cls) else msgspec.convert(row, wire_class(cls))


def _session() -> SparkSession:
    folder = scratch_folder()
    return start_session("preview", from_environment(), logs=folder / "log", warehouse=folder / "warehouse")
