"""Derived views computed by Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App
from penstock.analyze.check import check_views
from penstock.analyze.deriving import Derived
from penstock.app.declared import View
from penstock.core.errors import ViewError
from penstock.core.settings import Settings
from tests.derived.layers import COLUMNS, STEPS, Item, Layer, Layers, Step, layered_app, layers

pytestmark = pytest.mark.spark


def built(spark: SparkSession, view: View) -> Derived:
    """Return a view's query, ready to be computed, as the engine prepares it."""
    derived = Derived(spark, view)
    derived.columns([COLUMNS for _ in view.reads])
    return derived


def take(spark: SparkSession, layers: list[Layer], steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        views = Layers(Path(folder), layered_app(layers, top=None if len(layers) % 2 else 3), partial(built, spark))
        try:
            for step in steps:
                views.take(step)
                views.require_right()
        finally:
            views.close()


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=layers(), steps=STEPS)
def test_random_views_on_views_equal_their_queries(spark: SparkSession, layers: list[Layer], steps: list[Step]) -> None:
    take(spark, layers, steps[:3])


@pytest.mark.soak
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=layers(most=6), steps=STEPS)
def test_many_random_views_on_views_equal_their_queries(
    spark: SparkSession, layers: list[Layer], steps: list[Step]
) -> None:
    take(spark, layers, steps)


def view_of(query: str, key: str = "k") -> View:
    app = App("derived")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")
    return app.sql("v", query, key=key)


PROBLEMS = {
    "SELECT k, n, now() AS at FROM v0": r"uses now\(\), but a derived view changes only when its rows do",
    "SELECT k, n FROM v0 WHERE n > year(current_date())": r"uses current_date\(\)",
    "SELECT k, rand() AS n FROM v0": r"uses rand\(\), whose value differs each time",
    "SELECT k, n FROM v0 WHERE n > (SELECT max(n) * rand() FROM v0)": r"uses rand\(\)",
    "SELECT k, nothing FROM v0": "nothing",
    "SELECT n FROM v0": "it has no column 'k' for its key",
    "SELECT k, n, count(*) AS c FROM v0 GROUP BY k, n": "it also groups by n",
}


@pytest.mark.parametrize(("query", "message"), PROBLEMS.items())
def test_a_query_that_cannot_be_that_of_a_derived_view_is_refused(
    spark: SparkSession, query: str, message: str
) -> None:
    with pytest.raises(ViewError, match=message):
        Derived(spark, view_of(query)).columns([COLUMNS])


BY_ROW = {
    "SELECT k, n FROM v0 WHERE n > 1": True,
    "SELECT k, 2 * n AS n FROM (SELECT * FROM v0 WHERE n > 1) AS t WHERE n < 9": True,
    "SELECT upper(k) AS k, n FROM v0": False,
    "SELECT CAST(n AS STRING) AS k, n FROM v0": False,
    "SELECT k, max(n) AS n FROM v0 GROUP BY k": False,
    "SELECT DISTINCT k, n FROM v0": False,
    "SELECT k, n FROM v0 ORDER BY n LIMIT 2": False,
    "SELECT k, row_number() OVER (ORDER BY n) AS n FROM v0": False,
    "SELECT k, n FROM v0 WHERE n = (SELECT max(n) FROM v0)": False,
    "SELECT k, n FROM v0 WHERE k IN (SELECT k FROM v0 WHERE n > 1)": False,
    "SELECT k, n FROM v0 UNION ALL SELECT concat('x', k) AS k, n FROM v0": False,
    "SELECT a.k, b.n FROM v0 AS a JOIN v0 AS b ON a.k = b.k": False,
    "SELECT k, explode(array(n)) AS n FROM v0": False,
    "SELECT k, n FROM VALUES ('a', 1) AS t(k, n) WHERE EXISTS (SELECT 1 FROM v0)": False,
}


@pytest.mark.parametrize(("query", "by_row"), BY_ROW.items())
def test_a_view_is_computed_by_row_only_if_each_row_is_made_of_one_with_its_key(
    spark: SparkSession, query: str, by_row: bool
) -> None:
    assert built(spark, view_of(query)).by_row == by_row


def test_a_view_with_a_function_that_gets_many_rows_at_a_time_is_computed_whole(spark: SparkSession) -> None:
    """Otherwise, the mean of the rows that changed would be taken for the mean of all rows."""

    @F.arrow_udf("double")  # type: ignore[attr-defined, untyped-decorator]
    def centred(n: pa.Array) -> pa.Array:
        return pc.subtract(pc.cast(n, pa.float64()), pc.mean(n))

    def derived(function: Callable[..., Column]) -> Derived:
        app = App("derived")
        app.stream("items", Item, key="k")
        app.sql("v0", "SELECT k, n FROM items", key="k")
        view = app.view("v", reads="v0", key="k")(lambda rows: rows.select("k", (function("n") * 2).alias("n")))
        return built(spark, view)

    assert not (view := derived(centred)).by_row
    rows = pa.table({"k": ["a", "b"], "n": [1, 3]}, COLUMNS)
    assert view.compute([rows]).to_pylist() == [{"k": "a", "n": -2.0}, {"k": "b", "n": 2.0}]
    assert derived(F.udf(lambda n: n + 1, "bigint", useArrow=False)).by_row


def test_all_of_spark_sql_may_be_used(spark: SparkSession) -> None:
    rows = pa.table({"k": ["a", "b", "c"], "n": [3, 1, 2]}, COLUMNS)
    ranked = view_of("SELECT k, n, row_number() OVER (ORDER BY n DESC) AS place FROM v0 ORDER BY n LIMIT 2")
    ranks = Derived(spark, ranked).compute([rows]).to_pylist()
    assert ranks == [{"k": "b", "n": 1, "place": 3}, {"k": "c", "n": 2, "place": 2}]
    total = view_of("WITH t AS (SELECT sum(n) AS n FROM v0) SELECT 'all' AS k, n FROM t")
    assert Derived(spark, total).compute([rows]).to_pylist() == [{"k": "all", "n": 6}]
    assert Derived(spark, total).compute([rows.slice(3)]).to_pylist() == [{"k": "all", "n": None}]


def test_a_function_of_python_in_a_derived_view_runs_and_its_failure_names_it(spark: SparkSession) -> None:
    app = App("derived")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")

    @app.view("v", reads="v0", key="k")
    def v(rows: DataFrame) -> DataFrame:
        return rows.select("k", F.udf(lambda n: 60 // n, "bigint")("n").alias("n"))

    derived = Derived(spark, v)
    assert derived.compute([pa.table({"k": ["a"], "n": [3]}, COLUMNS)]).to_pylist() == [{"k": "a", "n": 20}]
    with pytest.raises(ViewError, match=rf"^{v.where.file}:\d+: view v: ZeroDivisionError"):
        derived.compute([pa.table({"k": ["a"], "n": [0]}, COLUMNS)])


def test_a_cast_that_fails_in_a_derived_view_names_its_line(spark: SparkSession) -> None:
    derived = Derived(spark, view := view_of("SELECT k, CAST(k AS INT) AS n FROM v0"))
    with pytest.raises(ViewError) as caught:
        derived.compute([pa.table({"k": ["a"], "n": [3]}, COLUMNS)])
    assert caught.value.message.startswith(f"{view.where}: view v: [CAST_INVALID_INPUT] The value 'a'")


def test_check_finds_what_is_wrong_with_views_on_views(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.analyze import check as module

    app = App("derived")
    items = app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")
    app.sql("late", "SELECT k, now() AS n FROM v0", key="k")
    app.sql("above", "SELECT k FROM late", key="k")  # skipped: its input has a problem
    app.sql("marked", "SELECT k, 1 AS _change FROM v0", key="k")
    app.sql("seen", "SELECT k, count(*) AS n FROM `marked.changes` GROUP BY k", key="k")
    app.sql("fine", "SELECT k, count(*) AS n FROM `v0.changes` WHERE _change = 'delete' GROUP BY k", key="k")
    assert items.name == "items"
    monkeypatch.setattr(module, "start_session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    messages = [str(problem).split(": ", 1)[1] for problem in check_views(app, Settings())]
    assert [message.split(",")[0].split(";")[0] for message in messages] == [
        "view late: its query uses now()",
        "view marked: its column _change has the same name as a column that marked.changes adds",
    ]
