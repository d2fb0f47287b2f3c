"""A view's function must not change the settings of the session, or register anything in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import App, Event
from penstock.analyze.check import EmptyLog, view_problems
from penstock.analyze.frames import build
from penstock.analyze.registered import registered
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


def function_of_rows(rows: DataFrame) -> None:
    rows.sparkSession.udf.register("net", lambda n: n * 2, "long")


def function_in_sql(rows: DataFrame) -> None:
    rows.sparkSession.sql("CREATE OR REPLACE TEMPORARY FUNCTION net(n BIGINT) RETURNS BIGINT RETURN n * 2")


def table_function(rows: DataFrame) -> None:
    rows.sparkSession.sql("CREATE OR REPLACE TEMPORARY FUNCTION net() RETURNS TABLE(n INT) RETURN SELECT 1 AS n")


REGISTERED: Mapping[str, tuple[Callable[[DataFrame], Any], str]] = {
    "a function": (function_of_rows, r"the function net in the .*; use the function directly in the query"),
    "a function in SQL": (function_in_sql, "the function net in"),
    "a table function": (table_function, "the function net in"),
    "a view": (
        lambda rows: rows.createOrReplaceTempView("Small"),
        r"the temporary view small in .*; pass the DataFrame",
    ),
    "an input": (lambda rows: rows.createOrReplaceTempView("items"), "the temporary view items in"),
    "a shared view": (lambda rows: rows.createOrReplaceGlobalTempView("small"), "the temporary view small in"),
    "a variable": (
        lambda rows: rows.sparkSession.sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 5"),
        "a variable in",
    ),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_a_function_that_registers_a_name_is_refused_each_time_and_the_name_is_removed(
    spark: SparkSession, name: str
) -> None:
    register_name, message = REGISTERED[name]

    def query(rows: DataFrame) -> DataFrame:
        register_name(rows)
        return rows.select("k", "n")

    register(spark, EmptyLog)
    app, streamed, derived = declared(query)
    view_problems(spark, app, app.sql("counted", "SELECT k, count(*) AS n FROM items GROUP BY k", key="k"), {})
    before = registered(spark)
    for _ in range(2):
        for view in (streamed, derived):
            with pytest.raises(ViewError, match=f"view {view.name}: its function registers {message}"):
                view_problems(spark, app, view, {"v0": COLUMNS})
    assert registered(spark) == before


def test_a_query_with_a_dataframe_as_an_argument_registers_nothing(spark: SparkSession) -> None:
    def query(rows: DataFrame) -> DataFrame:
        return rows.sparkSession.sql("SELECT k, n FROM {rows} WHERE n > {least}", rows=rows, least=1)

    register(spark, EmptyLog)
    app, streamed, derived = declared(query)
    for view in (streamed, derived):
        assert view_problems(spark, app, view, {"v0": COLUMNS})[1] == []
