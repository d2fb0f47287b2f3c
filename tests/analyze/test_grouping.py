"""The groups of a view of streams do not overwrite each other: its key determines the group, or the view is refused."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.analyze.check import EmptyLog, view_problems
from penstock.analyze.source import register
from penstock.app.declared import View

pytestmark = pytest.mark.spark


class Order(Event, id="order_id", time="at"):
    order_id: str
    at: datetime
    shop: str
    product: str
    amount: int


HOURLY = "SELECT shop, window, count(*) AS n FROM orders GROUP BY shop, window(at, '1 hour')"


def problems(spark: SparkSession, app: App, view: View) -> list[str]:
    register(spark, EmptyLog)
    return view_problems(spark, app, view, {})[1]


def orders() -> App:
    app = App("shop")
    app.stream("orders", Order, key="shop", late_after=timedelta(seconds=5))
    return app


@pytest.mark.parametrize(
    ("query", "key", "says"),
    [
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop, product", "shop", "it groups by product, which is not"),
        (
            "SELECT upper(shop) AS shop, count(*) AS n FROM orders GROUP BY shop",
            "shop",
            "it groups by shop, but its key column shop is computed",
        ),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop, window(at, '1 hour')", "shop", "it groups by window,"),
        (
            "SELECT shop, window.start AS s, count(*) AS n FROM orders GROUP BY shop, window(at, '1 hour')",
            "shop",
            "it groups by window,",
        ),
        ("SELECT tinyint(amount) AS a, count(*) AS n FROM orders GROUP BY amount", "a", "it groups by amount,"),
        (
            "SELECT shop, count(*) AS n FROM orders WHERE product > 'b' GROUP BY shop, product",
            "shop",
            "it groups by product,",
        ),
        (
            "WITH t AS (SELECT shop, product, count(*) AS n FROM orders GROUP BY 1, 2) SELECT shop AS s, n FROM t",
            "s",
            "it groups by product,",
        ),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY ROLLUP(shop, product)", "shop", "it groups by product,"),
        (
            "SELECT shop, count(*) AS n FROM orders GROUP BY shop, product "
            "UNION ALL SELECT shop, amount AS n FROM orders",
            "shop",
            "it groups by product,",
        ),
    ],
)
def test_a_view_is_refused_if_two_of_its_groups_can_have_the_same_key(
    spark: SparkSession, query: str, key: str, says: str
) -> None:
    app = orders()
    (problem,) = problems(spark, app, app.sql("v", query, key=key))
    assert problem.startswith(says)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (HOURLY, ["shop", "window"]),
        (f"SELECT shop, window.start AS s, window.end AS e, n FROM ({HOURLY})", ["shop", "s", "e"]),
        (f"SELECT shop, window.end AS e, n FROM ({HOURLY})", ["shop", "e"]),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop, 'x'", ["shop"]),
        ("SELECT 'all' AS bank, count(*) AS n FROM orders GROUP BY 'all'", ["bank"]),
        ("SELECT 'all' AS bank, count(*) AS n FROM orders", ["bank"]),
        ("SELECT upper(shop) AS shop, count(*) AS n FROM orders GROUP BY 1", ["shop"]),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop, upper(shop)", ["shop"]),
        ("SELECT string(amount) AS a, count(*) AS n FROM orders GROUP BY amount", ["a"]),
        ("SELECT struct(shop, product) AS id, count(*) AS n FROM orders GROUP BY shop, product", ["id"]),
        ("SELECT shop, count(*) AS n FROM orders WHERE product = 'tea' GROUP BY shop, product", ["shop"]),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop, product HAVING product = 'tea'", ["shop"]),
        ("SELECT DISTINCT shop, product FROM orders", ["shop", "product"]),
        ("SELECT shop, product, count(*) AS n FROM orders GROUP BY ROLLUP(shop, product)", ["shop", "product"]),
        ("WITH t AS (SELECT shop AS s, count(*) AS n FROM orders GROUP BY shop) SELECT s AS k, n FROM t", ["k"]),
        (
            "SELECT order_id, b FROM orders JOIN (SELECT a, max(b) AS b FROM VALUES ('x', 1) AS v(a, b) GROUP BY a) "
            "ON shop = a",
            ["order_id"],
        ),
    ],
)
def test_a_view_whose_key_determines_the_group_in_any_form_is_accepted(
    spark: SparkSession, query: str, key: list[str]
) -> None:
    app = orders()
    assert problems(spark, app, app.sql("v", query, key=key)) == []


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (
            f"SELECT window(w.window, '1 day').start AS d, max(n) AS n FROM ({HOURLY}) AS w "
            "GROUP BY window(w.window, '1 day')",
            ["d"],
        ),
        (
            "SELECT shop, session_window.start AS s, count(*) AS n FROM orders "
            "GROUP BY shop, session_window(at, '5 minutes')",
            ["shop", "s"],
        ),
        (
            f"SELECT a.shop, a.window, a.n, b.n AS m FROM ({HOURLY}) AS a JOIN ({HOURLY}) AS b "
            "ON a.shop = b.shop AND a.window = b.window",
            ["shop", "window"],
        ),
    ],
)
def test_only_the_outermost_groups_of_a_view_that_emits_closed_windows_count(
    spark: SparkSession, query: str, key: list[str]
) -> None:
    app = orders()
    assert problems(spark, app, app.sql("v", query, key=key, emit="close")) == []


def test_a_group_that_is_computed_from_the_key_below_the_aggregation_is_accepted(spark: SparkSession) -> None:
    app = orders()

    @app.view("days", reads="orders", key=["shop", "day"])
    def days(orders: DataFrame) -> DataFrame:
        marked = orders.withColumn("day", F.to_date("at")).withColumn("one", F.lit(1))
        return marked.groupBy("shop", "day", "one").agg(F.count("*").alias("n")).select("shop", "day", "n")

    @app.view("shops", reads="orders", key="shop")
    def shops(orders: DataFrame) -> DataFrame:
        daily = orders.withColumn("day", F.to_date("at")).groupBy("shop", "day").agg(F.count("*").alias("n"))
        return daily.select("shop", "n")

    assert problems(spark, app, days) == []
    (problem,) = problems(spark, app, shops)
    assert problem.startswith("it groups by day,")
