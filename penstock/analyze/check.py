"""The part of `penstock check` that needs Spark: it checks that each view can be analysed and can run as a stream."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.deriving import Derived
from penstock.analyze.frames import build, columns_schema, inputs, key_problems, node_error
from penstock.analyze.grouping import group_problems
from penstock.analyze.joined import UNBOUNDED, join_problems
from penstock.analyze.plan_print import plan_problems
from penstock.analyze.python_code import function_problems
from penstock.analyze.scratch import scratch_folder
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.analyze.staying import staying_problems
from penstock.analyze.streaming_query import output_mode
from penstock.analyze.summaries import stream_problems
from penstock.app.app import App
from penstock.app.check import Problem, feed_problems
from penstock.app.declared import CHANGES_SUFFIX, Handler, View, Where
from penstock.app.graph import change_streams, is_derived, order
from penstock.core.columns import CHANGE_COLUMN, VERSION_COLUMN
from penstock.core.contracts import ChangeWatch
from penstock.core.errors import BadCursor, ViewError
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings
from penstock.handlers.fitting import row_problems


class _NoWatch:
    """A watch on a stream that never changes."""

    def arm(self) -> bool:
        return False

    def close(self) -> None:
        pass


class EmptyLog:
    """A `BlockingLogReader` for a log where every stream exists, with one partition and no events."""

    def generation(self, stream: str) -> int:
        return 0

    def starts(self, stream: str) -> Mapping[int, int]:
        return {0: 0}

    def ends(self, stream: str) -> Mapping[int, int]:
        return {0: 0}

    def rows_between(self, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        return 0

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if (partition, start, end) != (0, 0, 0):
            raise BadCursor(f"stream {stream} has no events")
        return iter(())

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        ends = self.ends(stream)
        if seen == ends:
            time.sleep(timeout_s)
        return ends

    def watch(self, stream: str, wake: Callable[[], None]) -> ChangeWatch:
        return _NoWatch()

    def close(self) -> None:
        pass


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discard standard error, including the output of Java and Spark's Python processes, which print while they start
    and stop."""
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
    """Return the problems that only Spark can find, for each view. Takes as long as starting Spark, and does not need
    data."""
    with tempfile.TemporaryDirectory(prefix="check-", dir=scratch_folder()) as folder, silenced():
        spark = start_session(app.name, settings, logs=Path(folder) / "log", warehouse=Path(folder) / "warehouse")
        try:
            register(spark, EmptyLog)
            return _check_all(app, spark)
        finally:
            spark.stop()


def _check_all(app: App, spark: SparkSession) -> list[Problem]:
    all_problems: list[Problem] = []
    columns: dict[str, pa.Schema] = {handler.name: shown(event_schema(handler.row)) for handler in app.view_handlers}
    views = {name for view in app.views for name in (view.name, view.changes.name)}
    for view in order(app):
        if isinstance(view, Handler):
            continue
        if any(name in views and name.removesuffix(CHANGES_SUFFIX) not in columns for name in view.reads):
            continue  # it reads a view whose problem has already been reported
        try:
            frame, problems = view_problems(spark, app, view, columns)
        except ViewError as error:
            all_problems.append(_view_error_problem(view, error))
            continue
        problems = problems or [*_changes_problems(app, view, frame)] or plan_problems(spark, app, view, columns)
        all_problems += [Problem(view.where, f"view {view.name}: {problem}") for problem in problems]
        if not problems:
            columns[view.name] = columns_schema(frame)
            feeds = [feed for feed in app.feeds if feed.of == view.name]
            all_problems += [problem for feed in feeds for problem in feed_problems(feed, columns[view.name])]
    for name, schema in columns.items():
        all_problems += row_problems(app, name, schema)
    return all_problems


def view_problems(
    spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema], *, unbounded: bool = False
) -> tuple[DataFrame, list[str]]:
    """Build a view's query on inputs without events, and return it with the reasons why it cannot run. `columns`
    contains the columns of the views that it reads. With `unbounded`, a join that keeps every row is not reported,
    because its result is correct.

    Raises `ViewError` if the query cannot be built. A source named `penstock` must be registered.
    """
    if is_derived(app, view):
        return Derived(spark, view).check([columns[name] for name in view.reads])

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    frame = build(spark, view, inputs(app, view, read, columns))
    problems = key_problems(view, frame) or staying_problems(view, frame) or group_problems(view, frame)
    problems = problems or [
        problem for problem in join_problems(spark, view, frame) if not unbounded or problem != UNBOUNDED
    ]
    problems = problems or stream_problems(frame) or _support_problems(spark, view, frame)
    return frame, problems or function_problems(spark, frame)


def _changes_problems(app: App, view: View, frame: DataFrame) -> Iterator[str]:
    """Yield the reasons why the changes of a view cannot be read as a stream."""
    if view.name in change_streams(app):
        for name in {CHANGE_COLUMN, VERSION_COLUMN} & set(frame.columns):
            yield f"its column {name} has the same name as a column that {view.changes.name} adds; rename it"


def _view_error_problem(view: View, error: ViewError) -> Problem:
    where = Where(error.fields.get("file", view.where.file), error.fields.get("line", view.where.line))
    return Problem(where, error.message.removeprefix(f"{where}: "))


def _support_problems(spark: SparkSession, view: View, frame: DataFrame) -> list[str]:
    """Return Spark's error message if the query uses something that Spark does not support on a stream. Starting the
    query would fail with the same message."""
    java: Any = spark._jvm
    mode = getattr(java.org.apache.spark.sql.streaming.OutputMode, output_mode(view).capitalize())()
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except Exception as error:
        return [node_error(view, error).message.split(f"view {view.name}: ", 1)[-1]]
    return []
