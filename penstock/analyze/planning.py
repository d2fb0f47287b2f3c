"""Fingerprints of views: what Spark's analysed plan of a view says, without what changes from build to build.

The plan is taken from two of Spark's own renderings, since neither says everything. As JSON it has each node with its
parameters and the types of literals, but leaves out what is not a plain value, such as the options of a function. As
text it has those, but `array('a, b')` reads as `array('a', 'b')`. Of both, numbers of expressions are replaced by their
order, names of columns of the inputs by the input's name and the column's, and other names are left out: what a view
calls its results is in its columns. Columns that the view passes on and nobody uses are left out (`pruning.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.closing import closings
from penstock.analyze.frames import build, columns_schema, inputs, spark_schema
from penstock.analyze.plantree import MARK, Origins, PlanTree
from penstock.analyze.pruning import Needed, needed_columns
from penstock.analyze.source import read_stream
from penstock.app import App
from penstock.declared import View
from penstock.fingerprints.declared import view_text
from penstock.fingerprints.stored import PlanPrint
from penstock.fingerprints.verdicts import plan_differences
from penstock.graph import is_derived


def plan_print(
    spark: SparkSession,
    app: App,
    view: View,
    columns: Mapping[str, pa.Schema],
    origins: Origins = MappingProxyType({}),
) -> tuple[PlanPrint, tuple[str, ...]]:
    """The fingerprint of a view's plan, and what in its Python functions cannot be compared. `columns` has those of the
    views that it reads, `origins` the first names of the fields of streams. Builds the view twice, on inputs without
    events; a source named `penstock` must be registered. Some tenths of a second."""
    frames, needed = _placeholders(spark, app, view, columns)
    marked = [each.alias(f"{MARK}{name}") for name, each in zip(view.reads, frames, strict=True)]
    frame = build(spark, view, marked)
    plan = PlanTree(spark, frame, needed, origins)
    functions = plan.functions()
    opaque = tuple(dict.fromkeys(each for found in functions for each in found.opaque))
    codes = tuple(each.code for each in functions)
    if opaque or plan.reads_other_data():
        codes += (view_text(view).code,)  # what cannot be looked into counts as changed with the text around it
    names = {each.name: each.dataType.simpleString() for each in frame.schema.fields}
    types = {each.name: str(each.type) for each in columns_schema(frame)}
    made = PlanPrint(plan.digest(), codes, names, plan.used, _lateness(app, view, frame), types)
    return made, opaque


def _placeholders(
    spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema]
) -> tuple[list[DataFrame], Needed]:
    """Inputs without events for a view, and the columns that it uses of each, as far as that is certain."""
    if is_derived(app, view):
        tables = [columns[name].empty_table() for name in view.reads]
        return [spark.createDataFrame(each, spark_schema(each.schema)) for each in tables], {}

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    needed = needed_columns(spark, lambda reader: build(spark, view, inputs(app, view, reader, columns)))
    return inputs(app, view, read, columns), needed


def plan_problems(spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema]) -> list[str]:
    """Why it could not be told, at the next start, whether a view is still the same."""
    first, opaque = plan_print(spark, app, view, columns)
    again, _ = plan_print(spark, app, view, columns)
    if opaque:
        return [
            f"a Python function in it uses {opaque[0]}, and whether that has changed cannot be told at the next start; "
            "give the function what it needs of it as plain values"
        ]
    found = [each.removeprefix("its ").removesuffix(" has changed") for each in plan_differences(first, again)]
    if found:
        return [
            f"its {found[-1]} differs each time that it is built: it must not depend on the clock, on random numbers "
            "without a seed, or on anything else outside the file"
        ]
    return []


def _lateness(app: App, view: View, frame: DataFrame) -> dict[str, tuple[str, int]]:
    """The inputs whose watermark decides which events count, because the view keeps something until it has passed."""
    if view.time == "ingest" or not closings(frame).late:
        return {}
    streams = {stream.name: stream for stream in app.streams}
    found = {}
    for name in view.reads:
        late = streams[name].late_after if name in streams else None
        if late is not None:
            found[name] = (str(streams[name].event.__time_field__), round(late.total_seconds() * 1000))
    return found
