"""A derived view is the same on the same rows, whenever it is computed and in whatever order the rows arrived."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App
from penstock.analyze.deriving import BATCH_ROWS, Derived
from penstock.app.declared import View
from penstock.core.errors import ViewError
from tests.derived.layers import COLUMNS, Item, Layer, Layers, Rows, Step, layered_app
from tests.derived.test_spark import built, view_of

pytestmark = pytest.mark.spark
LIMIT, CONSTANT, ROWS = (
    "LIMIT or OFFSET without ORDER BY",
    r"OVER \(ORDER BY a constant\)",
    r"OVER \(ROWS ...\) without",
)
REFUSED = {
    "SELECT k, n, date 'today' AS d FROM v0": r"has date 'today', which Spark replaces with the time",
    "SELECT k, n FROM v0 WHERE TIMESTAMP /* of */ ' Now ' > '2020-01-01'": r"has TIMESTAMP ' Now '",
    'SELECT k, timestamp_ntz"yesterday" AS d FROM v0': "has timestamp_ntz 'yesterday'",
    "SELECT k, n FROM v0 WHERE n > (SELECT day(date 'tomorrow'))": "has date 'tomorrow'",
    "SELECT k, n FROM v0 WHERE timestamp_seconds(n) >= ' Today '": "converts ' Today ' to a timestamp, which Spark",
    "SELECT k, n FROM v0 WHERE date_from_unix_date(n) IN ('2020-01-01', 'today')": "converts 'today' to a date",
    "SELECT k, datediff('tomorrow', date_from_unix_date(n)) AS n FROM v0": "converts 'tomorrow' to a date",
    "SELECT k, CAST('now' AS TIMESTAMP) AS n FROM v0": "converts 'now' to a timestamp",
    "SELECT k, try_cast(concat('no', 'w') AS TIMESTAMP_NTZ) AS n FROM v0": "converts 'now' to a timestamp_ntz",
    "SELECT k, CAST(nvl('yesterday UTC', 'x') AS DATE) AS n FROM v0": "converts 'yesterday UTC' to a date",
    "SELECT k, to_timestamp('now') AS n FROM v0": "converts 'now' to a timestamp",
    "SELECT k, n FROM v0 WHERE n > (SELECT day(to_date('today')))": "converts 'today' to a date",
    "SELECT k, uniform(0, 1000) AS n FROM v0": r"uses uniform\(\), whose value differs each time",
    "SELECT k, uniform(0, 1000, 5) AS n FROM v0": r"uses uniform\(\), whose value differs each time",
    "SELECT k, nvl(rand(), 1) AS n FROM v0": r"uses rand\(\), whose value differs each time",
    "SELECT k, aes_encrypt(k, '0000111122223333') AS n FROM v0": r"uses aes_encrypt\(\) with a random init",
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
    "SELECT k, n FROM v0 WHERE date_from_unix_date(n) > 'epoch' AND to_date('2020-01-01') < date_from_unix_date(n)",
    "SELECT k, CAST(if(n > 1, '2020-01-01', k) AS DATE) AS n FROM v0 WHERE CAST(CAST(1 / 0 AS STRING) AS DATE) IS NULL",
    "SELECT k, aes_encrypt(k, '0000111122223333', 'ecb') AS n FROM v0",
    "SELECT k, aes_encrypt(k, '0000111122223333', 'GCM', 'DEFAULT', unhex(substr(md5(k), 1, 24))) AS n FROM v0",
    "SELECT k FROM v0 ORDER BY n LIMIT 2 OFFSET 1",
    "SELECT k, n FROM (SELECT k, n FROM v0 ORDER BY n DESC, k) AS t WHERE n > 1 LIMIT 2",
    "SELECT 'all' AS k, sum(n) AS n FROM v0 LIMIT 1",
    "SELECT k, n FROM v0 WHERE n < (SELECT max(n) FROM v0 LIMIT 1)",
    "SELECT k, row_number() OVER (ORDER BY 1, n) AS n FROM v0",
    "SELECT k, sum(n) OVER (PARTITION BY n) AS n FROM v0",
)


@pytest.mark.parametrize(("query", "message"), REFUSED.items())
def test_a_query_that_depends_on_time_chance_or_the_order_of_rows_is_refused(
    spark: SparkSession, query: str, message: str
) -> None:
    with pytest.raises(ViewError, match=message):
        Derived(spark, view_of(query)).columns([COLUMNS])


@pytest.mark.parametrize("query", ACCEPTED)
def test_a_query_that_depends_on_its_rows_alone_is_not_refused(spark: SparkSession, query: str) -> None:
    Derived(spark, view_of(query)).columns([COLUMNS])


def functions() -> Iterator[tuple[View, str | None]]:
    """Yield views in Python, each with the reason why it is refused."""
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
        """Take the first two rows, without those of date 'today'."""
        return rows.orderBy("n").select("k", F.transform(F.array("n"), lambda number: number + 1)).limit(2)

    @app.view("cast", reads="v0", key="k")
    def cast(rows: DataFrame) -> DataFrame:
        return rows.where(F.timestamp_seconds("n") >= F.lit("today").cast("timestamp"))

    def dated(word: str, rows: DataFrame) -> DataFrame:
        return rows.selectExpr("k", f"date '{word}' AS n", "date 'today' AS d")

    yield app.view("dated", reads="v0", key="k")(partial(dated, "epoch")), "has date 'today'"
    yield today, "has date 'today'"
    yield cast, "converts 'today' to a timestamp"
    yield counter, "its function returns a different query on each call"
    yield sample, "takes a sample"
    yield some, LIMIT
    yield first, None


@pytest.mark.parametrize(("view", "message"), [*functions()])
def test_a_function_that_depends_on_time_chance_or_the_order_of_rows_is_refused(
    spark: SparkSession, view: View, message: str | None
) -> None:
    if message is None:
        Derived(spark, view).columns([COLUMNS])
    else:
        with pytest.raises(ViewError, match=message):
            Derived(spark, view).columns([COLUMNS])


def problems(spark: SparkSession, query: Callable[[DataFrame], DataFrame]) -> list[str]:
    """Return the reasons why a view of a view is refused."""
    app = App("derived")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")
    return Derived(spark, app.view("v", reads="v0", key="k")(query)).check([COLUMNS])[1]


def session(rows: DataFrame) -> SparkSession:
    return rows.sparkSession


def joined(other: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    def query(rows: DataFrame) -> DataFrame:
        return rows.join(other(rows), "k")

    return query


def test_data_outside_the_inputs_of_a_derived_view_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    path.write_text("k,w\na,1\n")
    spark.read.csv(str(path), header=True).createOrReplaceGlobalTempView("weights")
    others: dict[str, Callable[[DataFrame], DataFrame]] = {
        "csv data": lambda rows: session(rows).read.csv(str(path), header=True),
        "text data": lambda rows: session(rows).read.text(str(path)).selectExpr("value AS k"),
        "an RDD of other data": lambda rows: (
            session(rows).sparkContext.textFile(str(path)).map(lambda line: (line,)).toDF(["k"])
        ),
        "csv data ": lambda rows: session(rows).table("global_temp.weights"),
    }
    for name, other in others.items():
        (problem,) = problems(spark, joined(other))
        assert f"its query reads {name.strip()}, which is not one of its inputs" in problem
    (problem,) = problems(spark, lambda rows: rows.where(f"n > (SELECT count(*) FROM csv.`{path}`)"))
    assert "its query reads csv data" in problem


LARGE = {"k": [f"k{number}" for number in range(20_000)]}


def test_rows_in_the_app_can_be_joined_in_a_derived_view(spark: SparkSession) -> None:
    frames: list[Callable[[DataFrame], DataFrame]] = [
        lambda rows: session(rows).createDataFrame([("a", 1)], "k string, w int"),
        lambda rows: session(rows).createDataFrame(pa.table({"k": ["a"], "w": [1]})),
        lambda rows: session(rows).createDataFrame(pa.table(LARGE)),
        lambda rows: session(rows).createDataFrame([], "k string"),
        lambda rows: session(rows).range(3).selectExpr("CAST(id AS STRING) AS k"),
        lambda rows: session(rows).sql("SELECT * FROM VALUES ('a', 1) AS t(k, w)"),
        lambda rows: session(rows).sql("WITH a AS (SELECT 'a' AS k) SELECT k FROM a"),
        lambda rows: session(rows).sql("SELECT col AS k FROM explode(array('a', 'b'))"),
    ]
    for frame in frames:
        assert problems(spark, joined(frame)) == []


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
    runs = []
    for number, order in enumerate((sorted(rows), random.sample(sorted(rows), len(rows)))):
        layers = Layers(tmp_path / str(number), app, partial(built, spark))
        half = len(order) // 2 * number
        layers.take(Step(0, {key: rows[key] for key in order[half:]} | {"gone": 3}))
        layers.take(Step(0, {key: rows[key] for key in order[:half]}, deletes=["gone"]))
        runs.append({name: layers.served(name) for name in names})
        versions = {name: layers.tables[name].version for name in names}
        layers.end()
        layers.open()
        layers.derivation.update()
        assert {name: layers.served(name) for name in names} == runs[-1]
        assert {name: layers.tables[name].version for name in names} == versions
        layers.close()
    assert runs[0] == runs[1]


@pytest.mark.parametrize("query", TIES[:-1])
def test_the_first_computation_decides_ties_as_later_ones_do(spark: SparkSession, query: str) -> None:
    """This holds for more rows than Java reads at a time."""
    rows = list(range(2 * BATCH_ROWS + 500))
    random.shuffle(rows)
    table = pa.table({"k": [f"{'abc'[row % 3]}{row}" for row in rows], "n": rows}, COLUMNS)
    derived = Derived(spark, view_of(query.format("v0")))
    first, later = (derived.compute([table]).sort_by("k") for _ in range(2))
    assert first.equals(later)
