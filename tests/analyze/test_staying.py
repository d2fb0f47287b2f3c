"""A query on a stream is refused if a row could stay although the query no longer produces it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions as udfs

from penstock import App, Event
from penstock.analyze.check import EmptyLog
from penstock.analyze.frames import build, inputs
from penstock.analyze.source import read_stream, register
from penstock.analyze.staying import staying_problems
from penstock.app.declared import View

pytestmark = pytest.mark.spark


class Move(Event, time="at"):
    at: datetime
    item: str
    depot: str
    pieces: int


def problems(spark: SparkSession, view: View, app: App) -> list[str]:
    register(spark, EmptyLog)
    read = inputs(app, view, lambda stream, schema: read_stream(spark, stream, schema, rows_max=1, wait_s=0), {})
    return staying_problems(view, build(spark, view, read))


def shop() -> App:
    app = App("shop")
    app.stream("moves", Move, key="item", late_after=timedelta(minutes=1))
    return app


REFUSED = {
    "SELECT item, sum(pieces) AS p FROM moves GROUP BY item HAVING sum(pieces) > 0": "a condition",
    "SELECT item, sum(pieces) AS p FROM moves GROUP BY item HAVING count(*) > 1": "a condition",
    "SELECT item, p + 1 AS q FROM (SELECT item, sum(pieces) AS p FROM moves GROUP BY item) WHERE p > 0": "a condition",
    "WITH t AS (SELECT item, sum(pieces) AS p FROM moves GROUP BY item) SELECT * FROM t WHERE p > 0": "a condition",
    "SELECT t.item, n FROM (SELECT item, sum(pieces) AS p FROM moves GROUP BY item) AS t "
    "JOIN VALUES (1, 'one'), (2, 'two') AS names(p, n) ON t.p = names.p": "a join",
    "SELECT item, explode(collect_set(depot)) AS depot FROM moves GROUP BY item": "explode",
    "SELECT max(pieces) AS item, item AS name FROM moves GROUP BY item": "its key 'item' is computed by an aggregate",
}


@pytest.mark.parametrize(("query", "message"), REFUSED.items())
def test_a_row_that_an_aggregate_may_take_away_is_refused(spark: SparkSession, query: str, message: str) -> None:
    app = shop()
    (problem,) = problems(spark, app.sql("levels", query, key="item"), app)
    assert problem.startswith(message)
    assert "would not be removed" in problem or "would stay" in problem


ALLOWED = (
    "SELECT item, sum(pieces) AS p FROM moves GROUP BY item",
    "SELECT item, sum(pieces) AS p FROM moves WHERE pieces > 0 GROUP BY item",
    "SELECT item, sum(pieces) AS p FROM moves GROUP BY item HAVING item <> 'tea'",
    "SELECT upper(item) AS item, max(pieces) - min(pieces) AS p FROM moves GROUP BY upper(item)",
    "SELECT item, p FROM (SELECT item, depot, sum(pieces) AS p FROM moves GROUP BY item, depot) WHERE depot = 'A'",
    "SELECT t.item, name, p FROM (SELECT item, sum(pieces) AS p FROM moves GROUP BY item) AS t "
    "JOIN VALUES ('tea', 'Tea') AS names(item, name) ON t.item = names.item",
    "SELECT item, pieces AS p FROM moves WHERE pieces > 0",
)


@pytest.mark.parametrize("query", ALLOWED)
def test_a_row_that_always_comes_again_is_allowed(spark: SparkSession, query: str) -> None:
    app = shop()
    assert problems(spark, app.sql("levels", query, key="item"), app) == []


def test_a_row_that_is_given_once_when_its_window_closes_may_depend_on_its_aggregates(spark: SparkSession) -> None:
    app = shop()
    query = "SELECT window, item, count(*) AS n FROM moves GROUP BY window(at, '1 minute'), item HAVING count(*) > 1"
    assert problems(spark, app.sql("busy", query, key=["window", "item"], emit="close"), app) == []
    assert problems(spark, app.sql("now", query, key=["window", "item"]), app) != []


@pytest.mark.parametrize(
    "above",
    [
        lambda rows: rows.where("p > 0"),
        lambda rows: rows.withColumn("q", F.col("p") * 2).filter("q > 0").drop("q"),
        lambda rows: rows.mapInArrow(lambda batches: batches, "item string, p bigint"),
    ],
)
def test_the_same_goes_for_dataframes(
    spark: SparkSession, above: Callable[[DataFrame], DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udfs, "require_minimum_pandas_version", lambda: None)  # not needed to build a plan
    app = shop()

    @app.view("levels", reads="moves", key="item")
    def levels(moves: DataFrame) -> DataFrame:
        return above(moves.groupBy("item").agg(F.sum("pieces").alias("p")))

    assert len(problems(spark, levels, app)) == 1
