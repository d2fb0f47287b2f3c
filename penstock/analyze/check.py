"""The part of `penstock check` that needs Spark: does every view analyse, and can it run as a stream."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.deriving import Derived
from penstock.analyze.fitting import row_problems
from penstock.analyze.frames import build, columns_schema, inputs, key_problems, node_error
from penstock.analyze.joined import UNBOUNDED, join_problems
from penstock.analyze.planning import plan_problems
from penstock.analyze.query import output_mode
from penstock.analyze.scratch import scratch_folder
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.analyze.staying import staying_problems
from penstock.analyze.summaries import stream_problems
from penstock.app import App
from penstock.columns import CHANGE_COLUMN, VERSION_COLUMN
from penstock.declared import CHANGES_SUFFIX, Handler, View, Where
from penstock.errors import ViewError
from penstock.graph import Problem, change_streams, feed_problems, is_derived, order
from penstock.schema import event_schema, shown
from penstock.settings import Settings


class EmptyLog:
    """A log in which every stream is there and has no events."""

    def generation(self, stream: str) -> int:
        return 0

    def starts(self, stream: str) -> Mapping[int, int]:
        return {0: 0}

    def ends(self, stream: str) -> Mapping[int, int]:
        return {0: 0}

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return iter(())

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        return {0: 0}

    def close(self) -> None:
        pass


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Standard error to nowhere, for Java and Spark's Python processes too: they talk while they start and stop."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_views(app: App, settings: Settings) -> list[Problem]:
    """The problems of each view that only Spark can find. Takes the time of a Spark start; needs no data."""
    with tempfile.TemporaryDirectory(prefix="check-", dir=scratch_folder()) as folder, silenced():
        spark = start_session(app.name, settings, logs=Path(folder) / "log", warehouse=Path(folder) / "warehouse")
        try:
            register(spark, EmptyLog)
            return _check_all(app, spark)
        finally:
            spark.stop()


def _check_all(app: App, spark: SparkSession) -> list[Problem]:
    found: list[Problem] = []
    columns: dict[str, pa.Schema] = {each.name: shown(event_schema(each.row)) for each in app.keepers}
    views = {name for each in app.views for name in (each.name, each.changes.name)}
    for view in order(app):
        if isinstance(view, Handler):
            continue
        if any(name in views and name.removesuffix(CHANGES_SUFFIX) not in columns for name in view.reads):
            continue  # it reads a view that has a problem of its own
        try:
            frame, problems = view_problems(spark, app, view, columns)
        except ViewError as error:
            found.append(_problem(view, error))
            continue
        problems = problems or [*_changes_problems(app, view, frame)] or plan_problems(spark, app, view, columns)
        found += [Problem(view.where, f"view {view.name}: {each}") for each in problems]
        if not problems:
            columns[view.name] = columns_schema(frame)
            feeds = [feed for feed in app.feeds if feed.of == view.name]
            found += [each for feed in feeds for each in feed_problems(feed, columns[view.name])]
    for name, schema in columns.items():
        found += row_problems(app, name, schema)
    return found


def view_problems(
    spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema], *, unbounded: bool = False
) -> tuple[DataFrame, list[str]]:
    """A view's query on inputs without events, and why it cannot run. `columns` has those of the views that it reads.
    A join that keeps every row is passed over if `unbounded`: what it gives is right.

    Raises `ViewError` if it cannot be built. A source named `penstock` must be registered.
    """
    if is_derived(app, view):
        return Derived(spark, view).check([columns[name] for name in view.reads])

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    frame = build(spark, view, inputs(app, view, read, columns))
    problems = key_problems(view, frame) or staying_problems(view, frame)
    problems = problems or [each for each in join_problems(spark, view, frame) if not unbounded or each != UNBOUNDED]
    return frame, problems or stream_problems(frame) or _support_problems(spark, view, frame)


def _changes_problems(app: App, view: View, frame: DataFrame) -> Iterator[str]:
    """Why the changes of a view cannot be read as a stream."""
    if view.name in change_streams(app):
        for name in {CHANGE_COLUMN, VERSION_COLUMN} & set(frame.columns):
            yield f"its column {name} has the name of one that {view.changes.name} adds; give it another name"


def _problem(view: View, error: ViewError) -> Problem:
    where = Where(error.fields.get("file", view.where.file), error.fields.get("line", view.where.line))
    return Problem(where, error.message.removeprefix(f"{where}: "))


def _support_problems(spark: SparkSession, view: View, frame: DataFrame) -> list[str]:
    """Return what Spark does not support on a stream, as it says when a query is started."""
    java: Any = spark._jvm
    mode = getattr(java.org.apache.spark.sql.streaming.OutputMode, output_mode(view).capitalize())()
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except Exception as error:
        return [node_error(view, error).message.split(f"view {view.name}: ", 1)[-1]]
    return []
