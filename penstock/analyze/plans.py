"""Plans of views without data: for the comparison of fingerprints, and for what `penstock check` finds in them."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.analyze.check import EmptyLog, silenced
from penstock.analyze.deriving import Derived
from penstock.analyze.frames import build, columns_schema, inputs
from penstock.analyze.planning import plan_print
from penstock.analyze.plantree import Origins
from penstock.analyze.scratch import scratch_folder
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.app import App
from penstock.declared import CHANGES_SUFFIX, Handler, View
from penstock.errors import ViewError
from penstock.fingerprints.stored import PlanPrint
from penstock.graph import is_derived, order
from penstock.schema import event_schema, shown
from penstock.settings import Settings


def view_plans(app: App, names: Collection[str], settings: Settings, origins: Origins) -> dict[str, PlanPrint | str]:
    """The plans of these views, or the reason why there is none. Takes the time of a Spark start."""
    with tempfile.TemporaryDirectory(prefix="plan-", dir=scratch_folder()) as folder, silenced():
        spark = start_session(app.name, settings, logs=Path(folder) / "log", warehouse=Path(folder) / "warehouse")
        try:
            register(spark, EmptyLog)
            return plans_of(spark, app, names, origins)
        finally:
            spark.stop()


def plans_of(spark: SparkSession, app: App, names: Collection[str], origins: Origins) -> dict[str, PlanPrint | str]:
    """The same in a session that there is. A source named `penstock` must be registered."""
    needed = _upstream(app, names)
    columns: dict[str, pa.Schema] = {each.name: shown(event_schema(each.row)) for each in app.keepers}
    found: dict[str, PlanPrint | str] = {}
    for view in order(app):
        if isinstance(view, Handler) or view.name not in needed:
            continue
        try:
            if view.name in names:
                found[view.name] = plan_print(spark, app, view, columns, origins)[0]
            columns[view.name] = _columns(spark, app, view, columns)
        except ViewError as error:
            found[view.name] = error.message
        except KeyError as error:
            found[view.name] = f"{error.args[0]} cannot be built"
    return {name: found[name] for name in names}


def _columns(spark: SparkSession, app: App, view: View, known: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of a view, given those of the views that it reads."""
    if is_derived(app, view):
        return Derived(spark, view).columns([known[name] for name in view.reads])

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    return columns_schema(build(spark, view, inputs(app, view, read, known)))


def _upstream(app: App, names: Collection[str]) -> set[str]:
    """These views and the views that they read, by way of others too."""
    views, found, pending = {each.name: each for each in app.queries}, set(), list(names)
    while pending:
        name = pending.pop()
        if name in views and name not in found:
            found.add(name)
            pending += [each.removesuffix(CHANGES_SUFFIX) for each in views[name].reads]
    return found
