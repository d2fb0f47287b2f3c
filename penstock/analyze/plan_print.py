"""Fingerprints of views: the contents of Spark's analysed plan, without the parts that change in every build.

The fingerprint uses two of Spark's formats, because neither is complete. JSON contains each node with its parameters
and the types of literals, but omits complex values. The text format contains most of these values, but shows `array('a,
b')` as `array('a', 'b')`. Values that would be ambiguous, such as a function's options, are read from Spark's objects
(`plan_values.py`). In both formats, each expression number is replaced by its place in the plan's order, and the name
of each input column by the names of the input and the column. Other names are left out, because the names of a view's
results are in its columns. Columns that the view passes on but nothing uses are also left out (`pruning.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.frames import build, columns_schema, inputs, spark_schema
from penstock.analyze.plantree import MARK, Origins, PlanTree
from penstock.analyze.pruning import Needed, needed_columns
from penstock.analyze.python_code import dynamic_names
from penstock.analyze.row_lifetimes import closings
from penstock.analyze.source import read_stream
from penstock.app.app import App
from penstock.app.declared import View
from penstock.app.fingerprints.declared import view_text
from penstock.app.fingerprints.stored import PLAN_FORM, PlanPrint
from penstock.app.fingerprints.verdicts import plan_differences
from penstock.app.graph import is_derived


def plan_print(
    spark: SparkSession,
    app: App,
    view: View,
    columns: Mapping[str, pa.Schema],
    origins: Origins = MappingProxyType({}),
) -> tuple[PlanPrint, tuple[str, ...]]:
    """Return the fingerprint of a view's plan, and the parts of its Python functions that cannot be compared.

    `columns` contains the columns of the views that it reads, and `origins` the original names of stream fields. Builds
    the view twice, on inputs without events. A source named `penstock` must be registered. Takes a few tenths of a
    second.
    """
    frame, needed = _on_placeholders(spark, app, view, columns)
    plan = PlanTree(spark, frame, needed, origins)
    functions = plan.functions()
    opaque = tuple(dict.fromkeys(part for function in functions for part in function.opaque))
    codes = tuple(function.code for function in functions)
    if opaque or plan.reads_other_data():
        codes += (view_text(view).code,)  # a part that cannot be compared counts as changed if the view's text changes
    names = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    types = {field.name: str(field.type) for field in columns_schema(frame)}
    query, first = plan.digests()
    lateness = _watermark_inputs(app, view, frame)
    earlier = {1: first}
    return PlanPrint(query, codes, names, plan.used, lateness, types, PLAN_FORM, earlier), opaque


def _on_placeholders(
    spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema]
) -> tuple[DataFrame, Needed]:
    """Build a view on marked inputs without events. Also returns the columns that it uses, as `_placeholders` does."""
    frames, needed = _placeholders(spark, app, view, columns)
    marked = [frame.alias(f"{MARK}{name}") for name, frame in zip(view.reads, frames, strict=True)]
    return build(spark, view, marked), needed


def _placeholders(
    spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema]
) -> tuple[list[DataFrame], Needed]:
    """Return inputs without events for a view, and the columns that the view uses, for each input where that is
    certain."""
    if is_derived(app, view):
        tables = [columns[name].empty_table() for name in view.reads]
        return [spark.createDataFrame(table, spark_schema(table.schema)) for table in tables], {}

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    needed = needed_columns(spark, lambda reader: build(spark, view, inputs(app, view, reader, columns)))
    return inputs(app, view, read, columns), needed


def plan_problems(spark: SparkSession, app: App, view: View, columns: Mapping[str, pa.Schema]) -> list[str]:
    """Return the reasons why the next start could not determine whether a view is unchanged."""
    first, opaque = plan_print(spark, app, view, columns)
    again, _ = plan_print(spark, app, view, columns)
    if opaque:
        return [
            f"a Python function in it uses {opaque[0]}, whose changes the next start cannot detect; "
            "pass the values that the function needs as plain values"
        ]
    frame, _ = _on_placeholders(spark, app, view, columns)
    dynamic = dynamic_names(spark, view, frame, derived=is_derived(app, view))
    if dynamic:
        where, _, name = dynamic[0].rpartition(": ")
        return [
            f"a Python function in it uses {name} ({where}), and the next start cannot detect whether its result has "
            "changed; use the names of variables and modules, or look the values up in a dict"
        ]
    parts = [part.removeprefix("its ").removesuffix(" has changed") for part in plan_differences(first, again)]
    if parts:
        return [
            f"its {parts[-1]} differs each time it is built: the view must not depend on the clock, on random numbers "
            "without a seed, or on anything else outside the file"
        ]
    return []


def _watermark_inputs(app: App, view: View, frame: DataFrame) -> dict[str, tuple[str, int]]:
    """Return a view's inputs whose watermark decides which events count, each with its time field and its `late_after`
    in milliseconds. Empty if the view closes nothing by watermark."""
    if view.time == "ingest" or not closings(frame).late:
        return {}
    streams = {stream.name: stream for stream in app.streams}
    lateness = {}
    for name in view.reads:
        late = streams[name].late_after if name in streams else None
        if late is not None:
            lateness[name] = (str(streams[name].event.__time_field__), round(late.total_seconds() * 1000))
    return lateness
