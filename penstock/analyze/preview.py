"""A view on plain lists of events, as an ordinary batch DataFrame: for tests and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.frames import build, stream_frame
from penstock.analyze.session import start_session, temporary_folder
from penstock.app import App
from penstock.columns import to_batch
from penstock.declared import Stream, Time, View
from penstock.errors import ViewError
from penstock.schema import Event, wire_class
from penstock.settings import from_environment


def preview(app: App, view: View, events: Sequence[Iterable[Any]]) -> DataFrame:
    if len(events) != len(view.reads):
        wanted = ", ".join(view.reads)
        raise ViewError(f"view {view.name} reads {wanted}: give one list of events for each, not {len(events)}")
    spark = SparkSession.getActiveSession() or _session()
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    frames = [
        _stream_input(spark, streams[name], rows, view.time) if name in streams else spark.createDataFrame(list(rows))
        for name, rows in zip(view.reads, events, strict=True)
    ]
    return build(spark, view, frames)


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
    folder = temporary_folder("penstock-preview-")
    return start_session("preview", from_environment(), logs=folder / "log", warehouse=folder / "warehouse")
