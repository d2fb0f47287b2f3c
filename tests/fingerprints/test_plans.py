"""Fingerprints of plans: Spark's plans of a view, distinguished where they must be and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.analyze.check import EmptyLog
from penstock.analyze.deriving import Derived
from penstock.analyze.plan_print import plan_print, plan_problems
from penstock.analyze.plans import _plan_columns, plans_of
from penstock.analyze.source import register
from penstock.app.fingerprints.stored import PlanPrint
from penstock.app.fingerprints.verdicts import plan_differences
from penstock.runtime.changestreams import arrow_types

pytestmark = pytest.mark.spark
Make = Callable[..., DataFrame]


class Order(Event, id="oid", time="at"):
    oid: str
    at: datetime
    shop: str
    amount: int
    price: float
    note: str = ""


class Pay(Event, time="at"):
    at: datetime
    shop: str
    amount: int


app = App("plans")
orders = app.stream("orders", Order, key="shop", late_after=timedelta(minutes=1))
pays = app.stream("pays", Pay, key="shop", late_after=timedelta(minutes=1))
more = app.stream("more", Order, key="shop")


def printed(spark: SparkSession, given: str | Make, reads: Any = orders, **options: Any) -> PlanPrint:
    register(spark, EmptyLog)
    other = App("other")
    other._streams = list(app.streams)
    if isinstance(given, str):
        view = other.sql("view", given, key="shop")
    else:
        view = other.view("view", reads=reads, key="shop", **options)(given)
    return plan_print(spark, other, view, {})[0]


EQUAL: dict[str, tuple[str | Make, str | Make]] = {
    "SQL and a DataFrame": (
        "SELECT shop, max(amount) AS m FROM orders GROUP BY shop",
        lambda df: df.groupBy("shop").agg(F.max("amount").alias("m")),
    ),
    "an alias of a table": (
        "SELECT shop FROM orders WHERE amount > 1",
        "SELECT o.shop FROM orders o WHERE o.amount > 1",
    ),
    "a name within": (
        lambda df: df.select(F.col("amount").alias("a"), "shop").where("a > 1").select("shop"),
        lambda df: df.select(F.col("amount").alias("b"), "shop").where("b > 1").select("shop"),
    ),
    "the name of a UDF": (
        lambda df: df.select("shop", _udf(one)("amount").alias("x")),
        lambda df: df.select("shop", _udf(first)("amount").alias("x")),
    ),
}
UNEQUAL: dict[str, tuple[str | Make, str | Make]] = {
    "texts that Spark writes alike": (
        "SELECT shop, size(array('a, b')) AS n FROM orders",
        "SELECT shop, size(array('a', 'b')) AS n FROM orders",
    ),
    "a number and a text": ("SELECT shop, concat(1) AS n FROM orders", "SELECT shop, concat('1') AS n FROM orders"),
    "a character that JSON leaves out": (
        "SELECT shop FROM orders WHERE note LIKE 'a/_' ESCAPE '/'",
        "SELECT shop FROM orders WHERE note LIKE 'a/_' ESCAPE '!'",
    ),
    "options of a function": (
        lambda df: df.select("shop", F.from_json("note", "a int", {"mode": "FAILFAST"}).alias("n")),
        lambda df: df.select("shop", F.from_json("note", "a int", {"mode": "PERMISSIVE"}).alias("n")),
    ),
    "the last of many columns": (
        "SELECT shop, coalesce(" + ", ".join(f"'{n}'" for n in range(40)) + ", 'a') AS c FROM orders",
        "SELECT shop, coalesce(" + ", ".join(f"'{n}'" for n in range(40)) + ", 'b') AS c FROM orders",
    ),
    "the order of a sum of floats": (
        "SELECT shop, (price + 1.5D) + 0.1D AS p FROM orders",
        "SELECT shop, price + (1.5D + 0.1D) AS p FROM orders",
    ),
    "the order of aggregates": (
        lambda df: df.groupBy("shop").agg(F.max("amount").alias("a"), F.min("amount").alias("b")),
        lambda df: df.groupBy("shop").agg(F.min("amount").alias("b"), F.max("amount").alias("a")),
    ),
    "two aggregates that swap their columns": (
        lambda df: df.groupBy("shop").agg(F.max("amount").alias("a"), F.max("price").alias("b")),
        lambda df: df.groupBy("shop").agg(F.max("price").alias("a"), F.max("amount").alias("b")),
    ),
    "two UDFs that swap their places": (
        lambda df: df.select("shop", _udf(one)("amount").alias("a"), _udf(two)("amount").alias("b")),
        lambda df: df.select("shop", _udf(two)("amount").alias("a"), _udf(one)("amount").alias("b")),
    ),
    "a watermark of its own": (
        lambda df: df.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["oid"]).select("shop"),
        lambda df: df.withWatermark("at", "2 minutes").dropDuplicatesWithinWatermark(["oid"]).select("shop"),
    ),
    "rows in the text": (
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', 1), ('b', 2)) AS v(a, b) ON o.shop = v.a",
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', 1), ('b', 3)) AS v(a, b) ON o.shop = v.a",
    ),
    "rows of a list": (
        lambda df: df.join(df.sparkSession.createDataFrame([("a", 1)], "shop string, w int"), "shop"),
        lambda df: df.join(df.sparkSession.createDataFrame([("a", 2)], "shop string, w int"), "shop"),
    ),
    "rows with commas in the text": (
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', 'Tea, Ltd', 'x')) AS v(a, b, c) ON o.shop = v.a",
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', 'Tea', ' Ltd,x')) AS v(a, b, c) ON o.shop = v.a",
    ),
    "lists in rows": (
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', array('x,y'))) AS v(a, b) ON o.shop = v.a",
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', array('x', 'y'))) AS v(a, b) ON o.shop = v.a",
    ),
    "a null and the text null in rows": (
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', null), ('b', 'x')) AS v(a, b) ON o.shop = v.a",
        "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', 'null'), ('b', 'x')) AS v(a, b) ON o.shop = v.a",
    ),
    "patterns that look like numbers of columns": (
        "SELECT shop FROM orders WHERE note LIKE ANY ('%#1', '%#2')",
        "SELECT shop FROM orders WHERE note LIKE ANY ('%#3', '%#4')",
    ),
    "patterns that look like addresses": (
        "SELECT shop FROM orders WHERE note NOT LIKE ALL ('%@face.com', 'b')",
        "SELECT shop FROM orders WHERE note NOT LIKE ALL ('%@cafe.com', 'b')",
    ),
    "patterns with commas": (
        "SELECT shop FROM orders WHERE note LIKE ALL ('a, b', 'c')",
        "SELECT shop FROM orders WHERE note LIKE ALL ('a', 'b, c')",
    ),
    "options that look like numbers of columns": (
        "SELECT shop, from_json(note, 'a DATE', map('dateFormat', 'yyyy#1')).a AS a FROM orders",
        "SELECT shop, from_json(note, 'a DATE', map('dateFormat', 'yyyy#2')).a AS a FROM orders",
    ),
    "options that look like addresses": (
        "SELECT shop, from_csv(note, 'a STRING', map('nullValue', '@aaaa')).a AS a FROM orders",
        "SELECT shop, from_csv(note, 'a STRING', map('nullValue', '@bbbb')).a AS a FROM orders",
    ),
    "options of XML": (
        "SELECT shop, from_xml(note, 'a INT', map('rowTag', 'r#1')).a AS a FROM orders",
        "SELECT shop, from_xml(note, 'a INT', map('rowTag', 'r#2')).a AS a FROM orders",
    ),
    "values of a pivot": (
        lambda df: _pivoted(df, "#1"),
        lambda df: _pivoted(df, "#2"),
    ),
    "the slide of a window": (
        lambda df: df.groupBy("shop", F.window("at", "4 minutes", "2 minutes")).count(),
        lambda df: df.groupBy("shop", F.window("at", "4 minutes", "1 minute")).count(),
    ),
    "the sides of a join with itself": (
        lambda df: df.alias("a").join(df.alias("b"), F.expr("a.shop = b.shop")).select("a.shop", "a.amount"),
        lambda df: df.alias("a").join(df.alias("b"), F.expr("a.shop = b.shop")).select("a.shop", "b.amount"),
    ),
}  # fmt: skip


def _pivoted(rows: DataFrame, note: str) -> DataFrame:
    return rows.groupBy("shop").pivot("note", [note]).agg(F.max("amount")).toDF("shop", "n")


def one(x: int) -> int:
    return x + 1


def first(x: int) -> int:
    """Add one."""
    return x + 1


def two(x: int) -> int:
    return x + 2


def _udf(function: Any) -> Any:
    return F.udf(function, "long", useArrow=False)


@pytest.mark.parametrize("name", EQUAL)
def test_plans_that_compute_the_same_are_equal(spark: SparkSession, name: str) -> None:
    first, other = (printed(spark, query) for query in EQUAL[name])
    assert first == other


@pytest.mark.parametrize("name", UNEQUAL)
def test_plans_that_compute_something_else_differ(spark: SparkSession, name: str) -> None:
    first, other = (printed(spark, query) for query in UNEQUAL[name])
    assert list(plan_differences(first, other))


STABLE: dict[str, str | Make] = {
    "a common table": "WITH a AS (SELECT shop, amount FROM orders) SELECT shop, max(amount) AS m FROM a GROUP BY shop",
    "a function of a list": "SELECT shop, transform(split(note, ','), t -> upper(t)) AS u FROM orders",
    "the same in Python": lambda df: df.select("shop", F.transform(F.split("note", ","), F.upper).alias("u")),
    "a list": lambda df: df.join(df.sparkSession.createDataFrame([("a", 1)], "shop string, w int"), "shop"),
    "a session": "SELECT shop, session_window.start AS s, count(*) AS n FROM orders "
    "GROUP BY shop, session_window(at, '5 minutes')",
    "bytes in rows": "SELECT o.shop, v.b FROM orders o JOIN (VALUES ('a', X'AB')) AS v(a, b) ON o.shop = v.a",
    "a pattern that looks like a number of a column": "SELECT shop FROM orders WHERE note LIKE ANY ("
    + ", ".join(f"'%#{number}'" for number in range(500))
    + ")",
    "a union": "SELECT shop FROM orders UNION ALL SELECT shop FROM more",
    "the clock of Spark": lambda df: df.select("shop", F.current_timestamp().alias("now")),
}


@pytest.mark.parametrize("name", STABLE)
def test_a_query_has_the_same_plan_each_time_that_it_is_built(spark: SparkSession, name: str) -> None:
    assert list(plan_differences(printed(spark, STABLE[name]), printed(spark, STABLE[name]))) == []


def test_a_plan_that_was_stored_in_an_earlier_form_is_compared_in_that_form(spark: SparkSession) -> None:
    query = (
        "SELECT shop, from_json(note, 'a DATE', map('dateFormat', 'yyyy#{0}')).a AS a FROM orders WHERE amount > {1}"
    )
    now = printed(spark, query.format(1, 7))
    old = msgspec.structs.replace(now, query=now.queries[1], form=1, queries={})
    assert old.query != now.query
    assert list(plan_differences(old, now)) == []
    assert list(plan_differences(old, printed(spark, query.format(2, 7)))) == []  # form 1 does not contain the option
    assert list(plan_differences(old, printed(spark, query.format(1, 8)))) == ["its query has changed"]


def test_two_inputs_with_the_same_columns_are_told_apart(spark: SparkSession) -> None:
    def joined(a: DataFrame, b: DataFrame) -> DataFrame:
        return a.alias("a").join(b.alias("b"), F.expr("a.shop = b.shop")).select("a.shop", "a.amount")

    assert printed(spark, joined, [orders, more]).query != printed(spark, joined, [more, orders]).query


def test_only_the_used_columns_of_an_input_count(spark: SparkSession) -> None:
    def summed(rows: DataFrame) -> DataFrame:
        return rows.withColumn("double", F.col("amount") * 2).groupBy("shop").agg(F.sum("double").alias("total"))

    class Longer(Event, id="oid", time="at"):
        oid: str
        at: datetime
        shop: str
        amount: int
        price: float
        note: str = ""
        source: str = ""

    before = printed(spark, summed)
    assert before.inputs == {"orders": {"shop": "string", "amount": "long"}}
    other = App("other")
    longer = other.stream("orders", Longer, key="shop", late_after=timedelta(minutes=1))
    view = other.view("view", reads=longer, key="shop")(summed)
    assert plan_print(spark, other, view, {})[0] == before


def test_a_field_is_known_by_its_first_name_and_not_taken_for_another_that_had_it(spark: SparkSession) -> None:
    """`amount` was renamed to `net`, and later there is a new `amount`."""

    class Renamed(Event, id="oid", time="at"):
        oid: str
        at: datetime
        shop: str
        net: int
        amount: int = 0

    def most_of(field: str, origins: Mapping[str, str]) -> PlanPrint:
        other = App("other")
        other.stream("orders", Renamed, key="shop")
        view = other.sql("view", f"SELECT shop, max({field}) AS m FROM orders GROUP BY shop", key="shop")
        register(spark, EmptyLog)
        return plan_print(spark, other, view, {}, {"orders": origins})[0]

    before = printed(spark, "SELECT shop, max(amount) AS m FROM orders GROUP BY shop")
    assert most_of("net", {"net": "amount", "amount": "amount@3"}) == before
    assert most_of("amount", {"net": "amount", "amount": "amount@3"}).query != before.query


def test_a_function_that_looks_at_all_columns_counts_them(spark: SparkSession) -> None:
    def counted(rows: DataFrame) -> DataFrame:
        return rows.select("shop", F.lit(len(rows.columns)).alias("n"))

    class Shorter(Event, time="at"):
        at: datetime
        shop: str

    other = App("other")
    view = other.view("view", reads=other.stream("orders", Shorter), key="shop")(counted)
    register(spark, EmptyLog)
    assert plan_print(spark, other, view, {})[0].query != printed(spark, counted).query


def test_lateness_counts_where_a_view_keeps_something_until_the_watermark(spark: SparkSession) -> None:
    windowed = printed(spark, lambda df: df.groupBy("shop", F.window("at", "1 hour")).count())
    assert windowed.lateness == {"orders": ("at", 60_000)}
    assert printed(spark, lambda df: df.groupBy("shop").count()).lateness == {}
    by_ingest = lambda df: df.groupBy("shop", F.window("ingest_time", "1 hour")).count()  # noqa: E731
    assert printed(spark, by_ingest, time="ingest").lateness == {}


def problems(spark: SparkSession, function: Make) -> list[str]:
    register(spark, EmptyLog)
    other = App("other")
    other._streams = list(app.streams)
    return plan_problems(spark, other, other.view("view", reads=orders, key="shop")(function), {})


def test_check_refuses_a_view_that_differs_each_time_that_it_is_built(spark: SparkSession) -> None:
    (problem,) = problems(spark, lambda df: df.select("shop", F.lit(os.urandom(4).hex()).alias("now")))
    assert "differs each time it is built" in problem
    (problem,) = problems(spark, lambda df: df.select("shop", F.rand().alias("r")))
    assert "random numbers without a seed" in problem
    assert problems(spark, lambda df: df.select("shop", F.rand(7).alias("r"))) == []


def test_a_plan_has_the_types_that_the_changes_of_the_view_have(spark: SparkSession) -> None:
    register(spark, EmptyLog)
    other = App("typed")
    other._streams = list(app.streams)
    other.sql("sums", "SELECT shop, sum(amount) AS n, array(avg(price)) AS p FROM orders GROUP BY shop", key="shop")
    above = other.sql("above", "SELECT shop, CAST(n AS DOUBLE) AS n, p FROM sums", key="shop")
    plans = plans_of(spark, other, ["sums", "above"], {})
    columns = Derived(spark, above).columns([_plan_columns(spark, other, other.queries[0], {})])
    assert {name: plan.types for name, plan in plans.items() if isinstance(plan, PlanPrint)} == {
        "sums": arrow_types(columns) | {"n": "int64"},
        "above": arrow_types(columns),
    }
    assert arrow_types(columns)["n"] == "double"
