"""Sketches and Spark: the bytes are the same, Spark's sketches can be queried, and views run as streams."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.analyze.check import EmptyLog, _check_all
from penstock.analyze.source import register
from penstock.app.app import App
from penstock.app.loading import load
from penstock.handlers.samples import BEGIN
from penstock.sketches import Bloom, Hll, Kll, Reservoir, TDigest, Theta, TopK
from penstock.sketches import columns as S
from penstock.sketches.spark import SparkBloom, SparkCountMin
from penstock.testing import run
from tests.analyze.pipe import Pipe, fix, fixes
from tests.handlers.pipe import HandlerPipe, later

pytestmark = pytest.mark.spark
N, DISTINCT = 3_000, 700
NANOSECONDS = 1_700_000_000_000_000_000
PAGES = Path(__file__).parents[2] / "docs/examples/pages.py"


@pytest.fixture(scope="module")
def items(spark: SparkSession) -> DataFrame:
    """Return numbers, with a text that recurs, and as doubles."""
    text = F.concat(F.lit("é "), (F.col("id") % DISTINCT).cast("string"))
    return spark.range(N, numPartitions=2).select("id", text.alias("text"), F.col("id").cast("double").alias("number"))


@pytest.fixture(scope="module")
def aggregates(items: DataFrame) -> dict[str, Any]:
    """Return Spark's sketches of the items."""
    exact = (F.lit(0.01), F.lit(0.95), F.lit(7))
    columns: dict[str, Column] = {
        "hll": F.hll_sketch_agg("text", 12),
        "theta": F.theta_sketch_agg("text", 12),
        "full_theta": F.theta_sketch_agg("id", 8),
        "kll": F.kll_sketch_agg_double("number", 200),
        "kll_times": F.kll_sketch_agg_bigint(F.col("id") + F.lit(NANOSECONDS), 200),
        "count_min": F.count_min_sketch("text", *exact),
        "count_min_of_ids": F.count_min_sketch("id", *exact),
        "top": F.expr("approx_top_k_accumulate(text, 100)"),
        "top_ids": F.expr("approx_top_k_accumulate(id % 7, 100)"),
        "bloom": S.bloom("text", 1_000),
        "bloom_of_ids": S.bloom("id", N),
        "sample": S.reservoir("text", by="id", k=10),
        "digest": S.tdigest("number", 100),
    }
    [row] = (
        items.repartition(1)
        .agg(*(column.alias(name) for name, column in columns.items() if name != "digest"))
        .collect()
    )
    [digest] = items.agg(columns["digest"].alias("digest")).collect()
    return {**row.asDict(), **digest.asDict()}


def texts() -> list[str]:
    return [f"é {number % DISTINCT}" for number in range(N)]


def test_a_distinct_count_of_spark_has_the_bytes_of_ours(aggregates: dict[str, Any]) -> None:
    hll, theta, full = Hll(12), Theta(12), Theta(8)
    for number, text in enumerate(texts()):
        hll.add(text)
        theta.add(text)
        full.add(number)
    assert Hll.from_bytes(bytes(aggregates["hll"])).to_bytes()[40:] == hll.to_bytes()[40:], "the registers"
    assert bytes(aggregates["theta"]) == theta.to_bytes()
    assert bytes(aggregates["full_theta"]) == full.to_bytes()


def test_what_spark_makes_is_read(aggregates: dict[str, Any]) -> None:
    assert abs(Kll.from_bytes(bytes(aggregates["kll"]), items="double").quantile(0.5).value - N / 2) <= 0.04 * N
    top = TopK.from_bytes(bytes(aggregates["top_ids"]["sketch"]), of=int)
    assert [(item, count.value) for item, count in top.top(2)] == [(0, 429), (1, 429)]
    assert TopK.from_bytes(bytes(aggregates["top"]["sketch"])).total == N
    assert TDigest.from_bytes(bytes(aggregates["digest"])).n == N


def test_what_spark_makes_of_whole_numbers_is_never_taken_for_doubles(
    spark: SparkSession, aggregates: dict[str, Any]
) -> None:
    for name in ("kll", "kll_times"):
        with pytest.raises(ValueError, match=r"items='double'.* items='long'"):
            Kll.from_bytes(bytes(aggregates[name]))
    frame = spark.createDataFrame([(bytearray(aggregates["kll_times"]),)], "kll binary")
    [row] = frame.select(S.kll_quantile("kll", 0.5, items="long").alias("median")).collect()
    assert abs(row.median.value - NANOSECONDS - N / 2) <= 0.04 * N
    with pytest.raises(TypeError, match="items"):
        S.kll_quantile("kll", 0.5)  # type: ignore[call-arg]


def test_sparks_own_formats_are_asked_as_spark_would(aggregates: dict[str, Any]) -> None:
    counts, of_ids = (SparkCountMin.from_bytes(bytes(aggregates[name])) for name in ("count_min", "count_min_of_ids"))
    answers = [counts.count(f"é {number}") for number in range(DISTINCT)]
    assert all(answer.value >= 4 and answer.low <= 5 for answer in answers)
    assert sum(answer.value for answer in answers) / DISTINCT < 4.3 + 0.01 * N
    assert all(1 <= of_ids.count(number).value <= 1 + 0.01 * N for number in range(N))
    assert counts.inner(counts).high >= sum(
        (N // DISTINCT + (number < N % DISTINCT)) ** 2 for number in range(DISTINCT)
    )
    seen, ids = (
        SparkBloom.from_bytes(bytes(aggregates["bloom"])),
        SparkBloom.from_bytes(bytes(aggregates["bloom_of_ids"])),
    )
    assert all(text in seen for text in texts())
    assert all(number in ids for number in range(N))
    for filtered in (seen, ids):
        claimed = sum(f"never {number}" in filtered for number in range(5_000)) / 5_000
        assert claimed == pytest.approx(filtered.false_positive_rate, abs=0.01)


def test_columns_give_answers_with_bounds(spark: SparkSession, aggregates: dict[str, Any]) -> None:
    binary = ["hll", "theta", "kll", "count_min", "bloom", "digest"]
    schema = ", ".join(f"{name} binary" for name in binary) + ", top struct<sketch: binary>"
    values = tuple(bytearray(aggregates[name]) for name in binary)
    frame = spark.createDataFrame([(*values, (bytearray(aggregates["top_ids"]["sketch"]),)), (None,) * 7], schema)
    row, nothing = frame.select(
        S.hll_count("hll").alias("hll"),
        S.theta_count("theta").alias("theta"),
        S.kll_quantile("kll", 0.5, items="double").alias("kll"),
        S.kll_rank("kll", 1_500.0, items="double").alias("rank"),
        S.count_min_count("count_min", F.lit("é 3")).alias("count"),
        S.count_min_inner("count_min", "count_min").alias("inner"),
        S.bloom_contains("bloom", F.lit("é 3")).alias("in"),
        S.bloom_rate("bloom").alias("rate"),
        S.tdigest_quantile("digest", 0.99).alias("p99"),
        S.top_items("top", 2, int).alias("top"),
    ).collect()
    assert row.hll.low <= DISTINCT <= row.hll.high
    assert row.theta.asDict() == {"value": DISTINCT, "low": DISTINCT, "high": DISTINCT, "confidence": 1.0}
    assert row.kll.low <= N / 2 <= row.kll.high
    assert row["rank"].low <= 0.5 <= row["rank"].high
    assert row["count"].low <= 5 <= row["count"].high
    assert row["in"] is True
    assert 0 < row.rate < 0.01
    assert abs(row.p99.value - 0.99 * N) < 5
    assert row.p99.confidence is None
    assert [(entry["item"], entry["count"].value) for entry in row.top] == [(0, 429), (1, 429)]
    assert all(value is None for value in nothing)


def test_java_reads_our_bytes(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    package, strings = jvm.org.apache.datasketches, jvm.org.apache.datasketches.common.ArrayOfStringsSerDe()
    bloom, sample, top, kll, digest = Bloom(1_000, seed=7), Reservoir(10, 3), TopK(100), Kll(200, 1), TDigest(100)
    for number in range(5_000):
        bloom.add(f"é {number % 500}")
        sample.add(f"é {number}")
        top.add(f"é {number % (1 + number % 300)}")
        kll.add(number)
        digest.add(number)

    def memory(data: bytes) -> Any:
        return package.memory.Memory.wrap(bytearray(data))

    read = package.filters.bloomfilter.BloomFilter.heapify(memory(bloom.to_bytes()))
    assert all(read.query(f"é {number}") for number in range(500))
    assert bytes(read.toByteArray()) == bloom.to_bytes()
    java_bloom = package.filters.bloomfilter.BloomFilterBuilder.createBySize(bloom.bits, bloom.hashes, 7)
    for number in range(500):
        java_bloom.update(f"é {number}")
    assert Bloom.from_bytes(bytes(java_bloom.toByteArray())) == bloom, "though Java leaves the bits to be counted"
    drawn = package.sampling.ReservoirItemsSketch.heapify(memory(sample.to_bytes()), strings)
    assert bytes(drawn.toByteArray(strings)) == sample.to_bytes()
    counted = package.frequencies.ItemsSketch.getInstance(memory(top.to_bytes()), strings)
    assert all(counted.getUpperBound(item) == count.high for item, count in top.top(5))
    assert package.kll.KllDoublesSketch.heapify(memory(kll.to_bytes())).getQuantile(0.5) == kll.quantile(0.5).value
    assert package.tdigest.TDigestDouble.heapify(memory(digest.to_bytes())).getTotalWeight() == 5_000


def test_spark_goes_on_with_what_a_handler_made(spark: SparkSession) -> None:
    hll, theta, kll = Hll(12), Theta(12), Kll(200)
    for number in range(2_000):
        hll.add(number)
        theta.add(number)
        kll.add(number)
    data = [(bytearray(hll.to_bytes()), bytearray(theta.to_bytes()), bytearray(kll.to_bytes()))]
    frame = spark.createDataFrame(data, "hll binary, theta binary, kll binary")
    [row] = frame.select(
        F.hll_sketch_estimate(F.hll_union("hll", "hll")).alias("hll"),
        F.theta_sketch_estimate(F.theta_union("theta", "theta")).alias("theta"),
        F.kll_sketch_get_n_double(F.kll_sketch_merge_double("kll", "kll")).alias("kll"),
    ).collect()
    assert (abs(row.hll - 2_000) < 80, row.theta, row.kll) == (True, 2_000, 4_000)


app = App("figures")
app._streams.append(fixes)


@app.view("figures", reads=fixes, key="vehicle")
def figures(fixes: DataFrame) -> DataFrame:
    sketches = fixes.groupBy("vehicle").agg(
        F.hll_sketch_agg("fix_id").alias("ids"),
        F.theta_sketch_agg("fix_id").alias("theta"),
        F.kll_sketch_agg_double("speed").alias("speeds"),
        F.count_min_sketch("fix_id", F.lit(0.1), F.lit(0.9), F.lit(1)).alias("counts"),
        F.expr("approx_top_k_accumulate(fix_id, 50)").alias("top"),
        S.bloom("fix_id", 100).alias("seen"),
        S.reservoir("fix_id", by="fix_id", k=3).alias("some"),
    )
    return sketches.select(
        "vehicle",
        S.hll_count("ids").value.alias("ids"),
        S.theta_count("theta").value.alias("theta"),
        S.kll_quantile("speeds", 0.5, items="double").alias("median"),
        S.count_min_count("counts", F.lit("3")).value.alias("threes"),
        F.size(S.top_items("top", 5)).alias("top"),
        S.bloom_contains("seen", F.lit("3")).alias("three"),
        "some",
    )


@app.view("digests", reads=fixes, key="vehicle")
def digests(fixes: DataFrame) -> DataFrame:
    return fixes.groupBy("vehicle").agg(S.tdigest("speed").alias("speeds"))


def test_a_view_with_an_aggregate_that_cannot_run_as_a_stream_is_refused(spark: SparkSession) -> None:
    register(spark, EmptyLog)
    [problem] = _check_all(app, spark)
    assert problem.where == digests.where
    assert "use one of Spark's own (for quantiles, kll_sketch_agg_double instead of tdigest)" in problem.message


def test_a_streaming_view_has_all_of_them_and_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    pipe = Pipe(spark, tmp_path, figures)
    pipe.append(1, *(fix(number, "v1", number) for number in range(20)))
    pipe.run()
    pipe.restart()
    pipe.append(2, *(fix(number, "v1", number) for number in range(20, 41)))
    pipe.run()
    pipe.close()
    with closing(sqlite3.connect(tmp_path / "view.db")) as file:
        [row] = [msgspec.json.decode(data) for (data,) in file.execute("SELECT data FROM rows")]
    assert round(row["ids"]) == row["theta"] == 41
    assert row["median"]["value"] == 20
    assert (row["threes"], row["top"], row["three"], len(row["some"])) == (1, 5, True, 3)


def test_a_digest_is_not_for_streaming_views(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = stream.agg(S.tdigest(F.col("value").cast("double"))).writeStream.format("noop").outputMode("update").start()
    with pytest.raises(StreamingQueryException, match="doesn't support group aggregate"):
        query.processAllAvailable()


def test_a_handler_with_sketches_on_spark_comes_to_the_same_bits_as_in_plain_python(
    spark: SparkSession, tmp_path: Path
) -> None:
    pages = load(str(PAGES)).app
    [handler], [stream] = pages.handlers, pages.streams
    event: Any = stream.event
    visits = [
        event(visit_id=str(number), page=f"/{number % 3}", person=f"p{number % 97}", took_ms=number * 7_919 % 1_009)
        for number in range(900)
    ]
    pipe = HandlerPipe(spark, tmp_path / "data", pages, PAGES, handler_events_max=170)
    pipe.append(stream.name, visits[:400])
    pipe.run(handler)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", pages, PAGES, handler_events_max=170)
    moved.append(stream.name, visits[400:], first=BEGIN + later(visits[:400]))
    assert moved.run(handler).digest == run(pages, {stream: visits}).digest(handler)
    moved.close()


def test_the_view_of_the_page_runs_on_a_list(spark: SparkSession) -> None:
    pages = load(str(PAGES)).app
    [view] = pages.views
    visits = [
        {"visit_id": str(number), "page": "/", "person": f"p{number % 30}", "took_ms": number} for number in range(100)
    ]
    [row] = pages.preview(view, visits).collect()
    assert round(row.people.value) == 30
    assert row.p99_ms.value == 98
    assert len(row.some) == 5
