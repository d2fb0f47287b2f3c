"""Plans of views, built without data, for comparing fingerprints."""

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
from penstock.analyze.plan_print import plan_print
from penstock.analyze.plantree import Origins
from penstock.analyze.scratch import scratch_folder
from penstock.analyze.session import start_session
from penstock.analyze.source import read_stream, register
from penstock.app.app import App
from penstock.app.declared import Handler, View
from penstock.app.fingerprints.stored import PlanPrint
from penstock.app.graph import is_derived, order, upstream_views
from penstock.core.errors import ViewError
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings


def view_plans(app: App, names: Collection[str], settings: Settings, origins: Origins) -> dict[str, PlanPrint | str]:
    """Return for each of these views its plan, or the reason why it has none. Takes as long as starting Spark."""
    with tempfile.TemporaryDirectory(prefix="plan-", dir=scratch_folder()) as folder, silenced():
        spark = start_session(app.name, settings, logs=Path(folder) / "log", warehouse=Path(folder) / "warehouse")
        try:
            register(spark, EmptyLog)
            return plans_of(spark, app, names, origins)
        finally:
            spark.stop()


def plans_of(spark: SparkSession, app: App, names: Collection[str], origins: Origins) -> dict[str, PlanPrint | str]:
    """Return the plans of views like `view_plans`, using an existing session. A source named `penstock` must be
    registered."""
    needed = upstream_views(app, names)
    columns: dict[str, pa.Schema] = {handler.name: shown(event_schema(handler.row)) for handler in app.view_handlers}
    plans: dict[str, PlanPrint | str] = {}
    for view in order(app):
        if isinstance(view, Handler) or view.name not in needed:
            continue
        try:
            if view.name in names:
                plans[view.name] = plan_print(spark, app, view, columns, origins)[0]
            columns[view.name] = _plan_columns(spark, app, view, columns)
        except ViewError as error:
            plans[view.name] = error.message
        except KeyError as error:
            plans[view.name] = f"{error.args[0]} cannot be built"
    return {name: plans[name] for name in names}


def _plan_columns(spark: SparkSession, app: App, view: View, known: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of a view, given the columns of the views that it reads."""
    if is_derived(app, view):
        return Derived(spark, view).columns([known[name] for name in view.reads])

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1, wait_s=0)

    return columns_schema(build(spark, view, inputs(app, view, read, known)))
