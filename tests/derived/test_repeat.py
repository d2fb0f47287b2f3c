"""A derived view is the same on the same rows: whenever it is computed, and in whatever order the rows have come."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App
from penstock.analyze.deriving import BATCH_ROWS, Derived
from penstock.declared import View
from penstock.errors import ViewError
from tests.derived.layers import COLUMNS, Item, Layer, Layers, Rows, Step, layered_app
from tests.derived.test_spark import built, view_of

pytestmark = pytest.mark.spark
LIMIT, CONSTANT, ROWS = (
    "LIMIT or OFFSET without ORDER BY",
    r"OVER \(ORDER BY a constant\)",
    r"OVER \(ROWS ...\) without",
)
REFUSED = {
    "SELECT k, n, date 'today' AS d FROM v0": r"has date 'today', for which Spark puts the time",
    "SELECT k, n FROM v0 WHERE TIMESTAMP /* of */ ' Now ' > '2020-01-01'": r"has TIMESTAMP ' Now '",
    'SELECT k, timestamp_ntz"yesterday" AS d FROM v0': "has timestamp_ntz 'yesterday'",
    "SELECT k, n FROM v0 WHERE n > (SELECT day(date 'tomorrow'))": "has date 'tomorrow'",
    "SELECT k, n FROM v0 TABLESAMPLE (50 PERCENT)": "takes a sample",
    "SELECT k, n FROM v0 TABLESAMPLE (50 PERCENT) REPEATABLE (7)": "takes a sample",
    "SELECT k, n FROM v0 TABLESAMPLE (1 ROWS)": LIMIT,
    "SELECT k, n FROM v0 LIMIT 1": LIMIT,
    "SELECT k, n FROM v0 OFFSET 1": LIMIT,
    "SELECT k, n FROM v0 ORDER BY 'n' LIMIT 1": LIMIT,
    "SELECT k, n FROM v0 SORT BY n LIMIT 1": LIMIT,
    "SELECT k, n FROM v0 WHERE n = (SELECT n FROM v0 LIMIT 1)": LIMIT,
    "WITH t AS (SELECT k, n FROM v0 LIMIT 1) SELECT k, n FROM t ORDER BY n": LIMIT,
    "SELECT k, sum(n) AS n FROM v0 GROUP BY k LIMIT 1": LIMIT,
    "SELECT k, row_number() OVER (ORDER BY 1) AS n FROM v0": CONSTANT,
    "SELECT k, lag(n) OVER (PARTITION BY n ORDER BY 'k') AS n FROM v0": CONSTANT,
    "SELECT k, sum(n) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS n FROM v0": ROWS,
}
ACCEPTED = (
    "SELECT k, n, date 'epoch' AS d, 'date ''today''' AS text FROM v0 -- not date 'today'",
    "SELECT k, n FROM v0 WHERE k = 'today'",
    "SELECT k FROM v0 ORDER BY n LIMIT 2 OFFSET 1",
    "SELECT k, n FROM (SELECT k, n FROM v0 ORDER BY n DESC, k) AS t WHERE n > 1 LIMIT 2",
    "SELECT 'all' AS k, sum(n) AS n FROM v0 LIMIT 1",
    "SELECT k, n FROM v0 WHERE n < (SELECT max(n) FROM v0 LIMIT 1)",
    "SELECT k, row_number() OVER (ORDER BY 1, n) AS n FROM v0",
    "SELECT k, sum(n) OVER (PARTITION BY n) AS n FROM v0",
)


@pytest.mark.parametrize(("query", "told"), REFUSED.items())
def test_a_query_that_depends_on_time_chance_or_the_order_of_rows_is_refused(
    spark: SparkSession, query: str, told: str
) -> None:
    with pytest.raises(ViewError, match=told):
        Derived(spark, view_of(query)).columns([COLUMNS])


@pytest.mark.parametrize("query", ACCEPTED)
def test_a_query_that_depends_on_its_rows_alone_is_not_refused(spark: SparkSession, query: str) -> None:
    Derived(spark, view_of(query)).columns([COLUMNS])


def functions() -> Iterator[tuple[View, str | None]]:
    """Views in Python, each with why it is refused."""
    app = App("derived")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")

    @app.view("today", reads="v0", key="k")
    def today(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("k", "date 'today' AS n")

    @app.view("counter", reads="v0", key="k")
    def counter(rows: DataFrame) -> DataFrame:
        return rows.withColumn("n", F.lit(time.perf_counter_ns()))

    @app.view("sample", reads="v0", key="k")
    def sample(rows: DataFrame) -> DataFrame:
        return rows.sample(0.5)

    @app.view("some", reads="v0", key="k")
    def some(rows: DataFrame) -> DataFrame:
        return rows.limit(2)

    @app.view("first", reads="v0", key="k")
    def first(rows: DataFrame) -> DataFrame:
        """The first two, and not those of date 'today'."""
        return rows.orderBy("n").select("k", F.transform(F.array("n"), lambda each: each + 1)).limit(2)

    yield today, "has date 'today'"
    yield counter, "its function gives another query each time that it is called"
    yield sample, "takes a sample"
    yield some, LIMIT
    yield first, None


@pytest.mark.parametrize(("view", "told"), [*functions()])
def test_a_function_that_depends_on_time_chance_or_the_order_of_rows_is_refused(
    spark: SparkSession, view: View, told: str | None
) -> None:
    if told is None:
        Derived(spark, view).columns([COLUMNS])
    else:
        with pytest.raises(ViewError, match=told):
            Derived(spark, view).columns([COLUMNS])


TIES = (
    "SELECT 'all' AS k, first(n) AS n FROM {0}",
    "SELECT 'all' AS k, last(n) AS n FROM {0}",
    "SELECT 'all' AS k, max_by(n, n % 2) AS n FROM {0}",
    "SELECT substr(k, 1, 1) AS k, CAST(hash(collect_list(n)) AS BIGINT) AS n FROM {0} GROUP BY substr(k, 1, 1)",
    "SELECT 'all' AS k, CAST(hash(sum(CAST(n AS DOUBLE) / 7)) AS BIGINT) AS n FROM {0}",
    "SELECT k, n FROM {0} ORDER BY n % 2 LIMIT 2",
    "SELECT k, CAST(row_number() OVER (ORDER BY n % 2) AS BIGINT) AS n FROM {0}",
    "SELECT 'all' AS k, last(n) AS n FROM (SELECT n FROM {0} WHERE n % 2 = 1 UNION ALL SELECT n FROM {0}) AS t",
    "SELECT a.k, first(b.n) AS n FROM {0} AS a JOIN {0} AS b ON a.n % 2 = b.n % 2 GROUP BY a.k",
)
"""Queries that leave open which of several rows counts, or in which order."""
ABOVE = (Layer("SELECT k, n FROM {0} WHERE n > 1", (0,)), Layer(TIES[0], (2,)))
"""A view whose rows are computed one by one as they change, and one above it."""


def test_ties_are_decided_alike_whatever_happened_to_the_rows_and_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows: Rows = {f"{letter}{number}": 7 * number + ord(letter) for number in range(5) for letter in "abc"}
    app = layered_app([*ABOVE, *(Layer(query, (0,)) for query in TIES)])
    names = [f"v{number}" for number in range(2, 2 + len(ABOVE) + len(TIES))]
    found = []
    for number, order in enumerate((sorted(rows), random.sample(sorted(rows), len(rows)))):
        layers = Layers(tmp_path / str(number), app, partial(built, spark))
        half = len(order) // 2 * number
        layers.take(Step(0, {key: rows[key] for key in order[half:]} | {"gone": 3}))
        layers.take(Step(0, {key: rows[key] for key in order[:half]}, deletes=["gone"]))
        found.append({name: layers.served(name) for name in names})
        versions = {name: layers.tables[name].version for name in names}
        layers.end()
        layers.open()
        layers.derivation.update()
        assert {name: layers.served(name) for name in names} == found[-1]
        assert {name: layers.tables[name].version for name in names} == versions
        layers.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("query", TIES[:-1])
def test_the_first_computation_decides_ties_as_later_ones_do(spark: SparkSession, query: str) -> None:
    """Of more rows than Java reads at a time."""
    rows = list(range(2 * BATCH_ROWS + 500))
    random.shuffle(rows)
    table = pa.table({"k": [f"{'abc'[row % 3]}{row}" for row in rows], "n": rows}, COLUMNS)
    made = Derived(spark, view_of(query.format("v0")))
    first, later = (made.compute([table]).sort_by("k") for _ in range(2))
    assert first.equals(later)
