"""A view's function must not change the settings of the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import App, Event
from penstock.analyze.check import EmptyLog, view_problems
from penstock.analyze.frames import build
from penstock.analyze.source import register
from penstock.analyze.streaming import stream_view
from penstock.app.declared import View
from penstock.core.errors import ViewError

pytestmark = pytest.mark.spark
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Item(Event):
    k: str
    n: int


def declared(query: Callable[..., DataFrame]) -> tuple[App, View, View]:
    """Return an app, with a view of a stream and a view of a view that have the same function."""
    app = App("settings")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")
    streamed = app.view("streamed", reads="items", key="k")(query)
    return app, streamed, app.view("derived", reads="v0", key="k")(query)


SETTINGS: Mapping[str, Callable[[DataFrame], Any]] = {
    "spark.sql.ansi.enabled": lambda rows: rows.sparkSession.conf.set("spark.sql.ansi.enabled", "false"),
    "spark.sql.session.timeZone": lambda rows: rows.sparkSession.sql("SET TIME ZONE 'Asia/Tokyo'"),
    "spark.sql.shuffle.partitions": lambda rows: rows.sparkSession.conf.unset("spark.sql.shuffle.partitions"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_function_that_changes_a_setting_is_refused_each_time_and_the_setting_is_restored(
    spark: SparkSession, name: str
) -> None:
    def query(rows: DataFrame) -> DataFrame:
        SETTINGS[name](rows)
        return rows.selectExpr("k", "CAST(k AS INT) AS n")

    register(spark, EmptyLog)
    app, streamed, derived = declared(query)
    before = {key: spark.conf.get(key) for key in SETTINGS}
    for _ in range(2):
        for view in (streamed, derived):
            with pytest.raises(ViewError, match=f"view {view.name}: its function changes the session's setting {name}"):
                view_problems(spark, app, view, {"v0": COLUMNS})
    with pytest.raises(ViewError, match=f"changes the session's setting {name}"):
        stream_view(spark, app, streamed, {}, EmptyLog, rows_max=1)
    assert {key: spark.conf.get(key) for key in SETTINGS} == before


def test_a_setting_is_restored_after_a_function_that_raises(spark: SparkSession) -> None:
    def query(rows: DataFrame) -> DataFrame:
        rows.sparkSession.conf.set("spark.sql.ansi.enabled", "false")
        raise RuntimeError("broken")

    _, _, view = declared(query)
    with pytest.raises(ViewError, match="broken"):
        build(spark, view, [spark.range(1)])
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
