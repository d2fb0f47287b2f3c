"""Build a view as a streaming DataFrame on the log, the same way for the engine and for a rebuild."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.deriving import Derived
from penstock.analyze.frames import Reader, build, columns_schema, inputs, key_problems
from penstock.analyze.grouping import group_problems
from penstock.analyze.lateness import Sift
from penstock.analyze.pruning import prune
from penstock.analyze.python_code import function_problems
from penstock.analyze.row_lifetimes import Closings, closings
from penstock.analyze.sifting import sifter
from penstock.analyze.source import LogOpener, read_stream, register
from penstock.analyze.staying import staying_problems
from penstock.app.app import App
from penstock.app.declared import CHANGES_SUFFIX, View
from penstock.app.graph import is_derived
from penstock.core.errors import ViewError
from penstock.core.schema import event_schema, shown

IDLE_WAIT_S = 1.0
SHARED_WAIT_S = 0.02
"""Maximum time that a poll of the log blocks: long for a query with one input, short if it has several inputs."""


@dataclass(frozen=True)
class StreamingView:
    """A view built on the log. `make_sift` creates the function that finds the late events that pass the view's
    conditions."""

    frame: DataFrame
    columns: pa.Schema
    closings: Closings
    make_sift: Callable[[], Sift]


def stream_view(
    spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema], opener: LogOpener, *, rows_max: int
) -> StreamingView:
    """Build a view on the log that `opener` opens. `columns` contains the columns of each view whose changes it reads.

    Raises `ViewError` if the view cannot be built, or its key is invalid. The source is registered for this query only:
    Spark writes to a map that belongs to a registered source, and two queries that start at the same time can corrupt
    that map permanently.
    """
    register(spark, opener)
    wait_s = IDLE_WAIT_S if len(view.reads) == 1 else SHARED_WAIT_S
    ordered = view.time == "ingest" or bool(timed_streams(app, view))

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=rows_max, wait_s=wait_s, ordered=ordered)

    times = frozenset(filter(None, (stream.event.__time_field__ for stream in app.streams)))
    times |= {"_ingest_time"} if view.time == "ingest" else set()

    def make(reader: Reader) -> DataFrame:
        return build(spark, view, inputs(app, view, reader, columns))

    frame = prune(spark, make, read, times)
    problems = key_problems(view, frame) or staying_problems(view, frame) or group_problems(view, frame)
    problems = problems or function_problems(spark, frame)
    if problems:
        raise ViewError(f"{view.where}: view {view.name}: {problems[0]}", view=view.name)
    return StreamingView(frame, columns_schema(frame), closings(frame), partial(sifter, spark, make))


def read_columns(spark: SparkSession, app: App, view: View, opener: LogOpener) -> dict[str, pa.Schema]:
    """Return the columns, as declared in the code, of each view whose rows or changes this view reads."""
    register(spark, opener)

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    def columns_of(other: View) -> pa.Schema:
        known = read_columns(spark, app, other, opener)
        if is_derived(app, other):
            return Derived(spark, other).columns([known[name] for name in other.reads])
        return columns_schema(build(spark, other, inputs(app, other, read, known)))

    rows = {view_handler.name: shown(event_schema(view_handler.row)) for view_handler in app.view_handlers}
    names = {name.removesuffix(CHANGES_SUFFIX) for name in view.reads}
    return {
        other.name: rows[other.name] if other.name in rows else columns_of(other)
        for other in app.views
        if other.name in names
    }


def timed_streams(app: App, view: View) -> dict[str, str]:
    """Return the streams that a view reads by event time, each with the column that contains the event time."""
    streams = {stream.name: stream for stream in app.streams if stream.name in view.reads and view.time == "event"}
    return {
        name: stream.event.__time_field__
        for name, stream in streams.items()
        if stream.late_after is not None and stream.event.__time_field__ is not None
    }
