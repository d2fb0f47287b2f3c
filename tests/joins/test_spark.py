"""Joins on Spark: as handlers they give the same as in plain Python, and Spark's own in views are bounded."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock import App, Event, gone
from penstock.analyze.check import EmptyLog, _check_all
from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.frames import build, inputs
from penstock.analyze.source import read_stream, register
from penstock.analyze.streaming_query import SparkQuery
from penstock.app.declared import View
from penstock.app.loading import load
from penstock.core.clock import WallClock
from penstock.core.columns import CHANGE_COLUMN, DELETE, UPSERT, change_schema, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import KIND_EVENT, KIND_TICK, event_schema, shown, system_fields
from penstock.handlers.samples import BEGIN
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.store import ViewSpec, ViewTable
from penstock.testing import STEP, run, tick
from tests.handlers.pipe import HandlerPipe, later
from tests.harness import ANSWER_S, START_S, running, wait_for
from tests.windows import sites

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
END = [tick(timedelta(hours=1)), tick(timedelta(seconds=1))]


def ads(app: App, seed: int, count: int) -> dict[str, list[Any]]:
    """Return impressions and clicks of some ads, slightly out of order. Both lists take the same log time."""
    print("seed", seed)
    random, events = Random(seed), {}
    for stream in app.streams:
        cls: Any = stream.event
        events[stream.name] = [
            cls(
                **{f"{stream.name.removesuffix('s')}_id": str(number), str(stream.key): f"ad-{random.randrange(6)}"},
                **({"price": 0.5} if stream.name == "impressions" else {}),
                at=NOON + timedelta(seconds=20 * number - random.randrange(400)),
            )
            for number in range(count)
        ]
    return events


def test_a_join_on_spark_comes_to_the_same_as_in_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    target = EXAMPLES / "ads.py"
    app = load(str(target)).app
    [joiner] = app.handlers
    given = {name: [*items, *END] for name, items in ads(app, seed=3, count=120).items()}
    expected = run(app, given)
    pipe = HandlerPipe(spark, tmp_path / "data", app, target, handler_events_max=40)
    for name, items in given.items():
        pipe.append(name, items[:60])
    pipe.run(joiner)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", app, target, handler_events_max=40)
    for name, items in given.items():
        moved.append(name, items[60:], first=BEGIN + later(items[:60]))
    assert moved.run(joiner).digest == expected.digest(joiner)
    events = [msgspec.json.encode(event) for event in expected.emitted(joiner)]
    assert moved.events("clicked") == sorted(events)
    assert len(moved.events("clicked.missed")) == len(expected.emitted("clicked.missed")) > 0
    assert moved.events("clicked.failed") == []
    assert {event.after_s is None for event in expected.emitted(joiner)} == {True, False}
    moved.close()


def test_a_join_by_two_fields_with_conditions_on_spark_comes_to_the_same_as_in_plain_python(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = load(str(sites.TARGET)).app
    [joiner] = [handler for handler in app.handlers if handler.name == "alarmed"]
    given = sites.items(app, seed=6, count=120)
    expected = run(app, given)
    pipe = HandlerPipe(spark, tmp_path / "data", app, sites.TARGET, handler_events_max=40)
    for name, items in given.items():
        pipe.append(name, items[:60])
    pipe.run(joiner)
    for name, items in given.items():
        pipe.append(name, items[60:], first=BEGIN + later(items[:60]))
    assert pipe.run(joiner).digest == expected.digest(joiner)
    assert pipe.events("alarmed") == sorted(msgspec.json.encode(event) for event in expected.emitted(joiner))
    assert len(pipe.events("alarmed.missed")) == len(expected.emitted("alarmed.missed")) > 0
    assert pipe.events("alarmed.failed") == []
    assert {event.watts is None for event in expected.emitted(joiner)} == {True, False}
    pipe.close()


def changes(schema: pa.Schema, items: list[Any]) -> list[pa.RecordBatch]:
    """Return rows of a view, at the log times that `testing.run` gives the same items."""
    batches, time = [], BEGIN
    for item in items:
        time += STEP if isinstance(item, dict) else item.by
        row = {**item, "_kind": KIND_EVENT} if isinstance(item, dict) else {"_kind": KIND_TICK}
        batches.append(pa.RecordBatch.from_pylist([row | {"_ingest_time": time}], schema=schema))
    return batches


def test_a_handler_on_spark_reads_a_view_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    target = EXAMPLES / "prices.py"
    app = load(str(target)).app
    handler = next(handler for handler in app.handlers if handler.name == "large-orders")
    order: Any = next(stream.event for stream in app.streams if stream.name == "orders")
    random, customers = Random(7), [f"c{number}" for number in range(5)]
    rows = [{"customer": random.choice(customers), "total": random.random() * 9} for _ in range(60)]
    orders = [
        order(order_id=str(number), at=NOON, sku=random.choice("abc"), customer=random.choice(customers), pieces=50)
        for number in range(60)
    ]
    schema = pa.schema([("orders", pa.int64()), ("customer", pa.string()), ("total", pa.float64()), *system_fields()])
    pipe = HandlerPipe(spark, tmp_path / "data", app, target)
    pipe.log.declare(StreamSpec("spent.changes", schema, 1))
    for number, batch in enumerate(changes(schema, [*rows, *END])):
        pipe.log.append("spent.changes", 0, batch, producer="test", sequence=number)
    pipe.append("orders", [*orders, *END])
    expected = run(app, {"spent": [*rows, *END], "orders": [*orders, *END]})
    assert pipe.run(handler).digest == expected.digest(handler)
    assert len(pipe.events("large-orders")) == len(expected.emitted(handler)) > 0
    pipe.close()


def test_a_handler_on_spark_reads_a_rollup_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    """This includes deleted rows, which come as changes of a separate kind."""
    target = EXAMPLES / "compared.py"
    app = load(str(target)).app
    handler = next(handler for handler in app.handlers if handler.name == "records")
    sale: Any = app.streams[0].event
    row: Any = handler.rows["sales"]
    random, shops = Random(8), ["north", "south", "west"]

    def change() -> dict[str, Any]:
        per, start = random.choice(["hour", "hour", "day"]), NOON - timedelta(hours=random.randrange(30))
        return {"per": per, "start": start, "shop": random.choice(shops), "largest": random.random() * 9}

    rows = [(change(), random.random() < 0.3) for _ in range(80)]
    sales = [sale(sale_id=str(n), at=NOON, shop=random.choice(shops), amount=random.random() * 30) for n in range(80)]
    schema = change_schema(pa.schema(list(shown(event_schema(row)))))
    pipe = HandlerPipe(spark, tmp_path / "data", app, target)
    pipe.log.declare(StreamSpec("sales.changes", schema, 1))
    time, given = BEGIN, list[Any]()
    for number, (fields, is_gone) in enumerate(rows):
        time += STEP
        key = {name: fields[name] for name in ("per", "start", "shop")}
        given.append(gone(row, **key) if is_gone else fields)
        change_row = {**key, CHANGE_COLUMN: DELETE} if is_gone else {**fields, CHANGE_COLUMN: UPSERT}
        batch = pa.RecordBatch.from_pylist([change_row | {"_kind": KIND_EVENT, "_ingest_time": time}], schema=schema)
        pipe.log.append("sales.changes", 0, batch, producer="test", sequence=number)
    for number, tick_at in enumerate((time + END[0].by, time + END[0].by + END[1].by), len(rows)):
        batch = pa.RecordBatch.from_pylist([{"_kind": KIND_TICK, "_ingest_time": tick_at}], schema=schema)
        pipe.log.append("sales.changes", 0, batch, producer="test", sequence=number)
    pipe.append("sold", [*sales, *END])
    expected = run(app, {"sales": [*given, *END], "sold": [*sales, *END]})
    assert pipe.run(handler).digest == expected.digest(handler)
    records = sorted(msgspec.json.encode(event) for event in expected.emitted(handler))
    assert pipe.events("records") == records
    assert len(records) > 5
    assert any(is_gone and fields["per"] == "hour" for fields, is_gone in rows)
    pipe.close()


def test_a_join_of_two_streams_in_a_view_gives_each_pair_once(spark: SparkSession, tmp_path: Path) -> None:
    app = load(str(EXAMPLES / "ads_view.py")).app
    [view] = app.views
    log = EmbeddedLog(tmp_path / "streams")
    for stream, items in zip(app.streams, ads(app, seed=4, count=60).values(), strict=True):
        log.declare(StreamSpec(stream.name, event_schema(stream.event), 1))
        nothing: list[str | None] = [None] * len(items)
        batch = to_batch(stream.event, items, ids=nothing, keys=nothing, now=NOON)
        log.append(stream.name, 0, batch, producer="test", sequence=1)
    register(spark, EmbeddedLogOpener(tmp_path / "streams"))

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1000, wait_s=0.01)

    table = ViewTable(
        tmp_path / "view.db", ViewSpec(view.name, view.key, None, None, None, 9, 10**6), clock=WallClock()
    )
    query = SparkQuery(view, Checkpoint(tmp_path / "checkpoint"), table, 1)
    query.start(build(spark, view, inputs(app, view, read, {})), trigger_ms=0, clean=True)
    assert query.query is not None
    query.query.processAllAvailable()
    query.stop()
    impressions, clicks = ads(app, seed=4, count=60).values()
    pairs = {
        (left.impression_id, right.click_id)
        for left in impressions
        for right in clicks
        if left.ad == right.ad_id and left.at <= right.at <= left.at + timedelta(minutes=10)
    }
    with closing(sqlite3.connect(tmp_path / "view.db")) as file:
        rows = [msgspec.json.decode(data) for (data,) in file.execute("SELECT data FROM rows")]
    assert {(row["impression_id"], row["click_id"]) for row in rows} == pairs
    assert len(rows) == len(pairs) > 0
    table.close()
    log.close()


def test_a_running_app_looks_up_a_view_that_is_kept_up_to_date(tmp_path: Path) -> None:
    def order(number: int, pieces: int) -> dict[str, Any]:
        at = (NOON + timedelta(minutes=number)).isoformat()
        return {"order_id": str(number), "at": at, "sku": "tea", "customer": "ada", "pieces": pieces}

    def events_of(stream: str) -> list[dict[str, Any]]:
        return list(httpx.get(f"{shop.url}/v1/streams/{stream}?since=earliest", timeout=ANSWER_S).json()["events"])

    with running(EXAMPLES / "prices.py", tmp_path / "data") as shop:
        for minute in (0, 10):  # the second one is so much newer that the first order need not wait
            shop.post(
                "prices", {"sku": "tea", "valid_from": (NOON + timedelta(minutes=minute)).isoformat(), "price": 4}
            )
        shop.post("orders", order(1, pieces=2))
        wait_for(lambda: shop.view("spent") == [{"customer": "ada", "total": 8.0, "orders": 1}], START_S, "the view")
        wait_for(lambda: shop.post("orders", order(2, pieces=100)).status_code == 200)
        wait_for(lambda: events_of("large-orders") != [], START_S, "the lookup")
        assert events_of("large-orders") == [{"customer": "ada", "order_id": "2", "spent": 8.0}]
        assert events_of("large-orders.failed") == []
        wait_for(lambda: sum(handler["lag"] for handler in shop.describe()["handlers"]) == 0, START_S, "all to be read")
        assert shop.stop() == 0


def test_a_running_app_compares_with_its_rollup_and_a_replay_proves_it(tmp_path: Path) -> None:
    def sale(number: int, amount: float) -> dict[str, Any]:
        return {
            "sale_id": str(number),
            "at": (NOON + timedelta(hours=number)).isoformat(),
            "shop": "a",
            "amount": amount,
        }

    def rows() -> list[float]:
        sales = httpx.get(f"{shop.url}/v1/views/sales", params={"per": "hour"}, timeout=ANSWER_S).json().get("rows", [])
        return [row["largest"] for row in sales]

    def records() -> list[dict[str, Any]]:
        return list(httpx.get(f"{shop.url}/v1/streams/records?since=earliest", timeout=ANSWER_S).json()["events"])

    target, data = EXAMPLES / "compared.py", tmp_path / "data"
    with running(target, data) as shop:
        shop.post("sold", [sale(0, 10.0), sale(1, 15.0)])
        wait_for(lambda: rows() == [10.0, 15.0], START_S, "the rollup")
        shop.post("sold", [sale(2, 29.0), sale(3, 31.0)])
        wait_for(lambda: records() != [], START_S, "the record")
        (record,) = records()
        assert (record["sale_id"], record["before"]) == ("3", 15.0)
        wait_for(lambda: sum(handler["lag"] for handler in shop.describe()["handlers"]) == 0, START_S, "all to be read")
        assert shop.stop() == 0
    command = [sys.executable, "-m", "penstock.cli", "replay", str(target), "--data", str(data), "--handler", "records"]
    process = subprocess.run([*command, "--verify"], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "bit for bit" in process.stdout


class Left(Event, time="at"):
    at: datetime
    key: str


class Right(Event, time="at"):
    at: datetime
    key: str


ON_KEY = "a.key = b.key"
INTERVAL = f"{ON_KEY} AND b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES"
BOUNDLESS = "it joins two streams without a time bound, so it would keep every row: set late_after on both streams"
VIEWS: dict[str, tuple[str, str, timedelta | None, Any, str | None]] = {
    "bounded": (INTERVAL, "inner", timedelta(minutes=1), "close", None),
    "bounded, outer": (INTERVAL, "left", timedelta(minutes=1), "close", None),
    "by time itself": (f"{ON_KEY} AND a.at = b.at", "inner", timedelta(minutes=1), "close", None),
    "no interval": (ON_KEY, "inner", timedelta(minutes=1), "close", BOUNDLESS),
    "bounded on one side": (f"{ON_KEY} AND b.at >= a.at", "inner", timedelta(minutes=1), "close", BOUNDLESS),
    "no lateness": (INTERVAL, "inner", None, "close", BOUNDLESS),
    "at every change": (INTERVAL, "inner", timedelta(minutes=1), "change", "set emit='close'"),
}


def joined(condition: str, how: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def function(left: DataFrame, right: DataFrame) -> DataFrame:
        pairs = left.alias("a").join(right.alias("b"), F.expr(condition), how)
        return pairs.select("a.key", F.col("a.at").alias("began"), F.col("b.at").alias("ended"))

    return function


def test_a_join_in_a_view_without_a_bound_is_refused_with_what_to_write(spark: SparkSession) -> None:
    register(spark, EmptyLog)
    for condition, how, late_after, emit, expected in VIEWS.values():
        app = App("bounds")
        reads = [app.stream(name, cls, late_after=late_after) for name, cls in (("lefts", Left), ("rights", Right))]
        view: View = app.view("both", reads=reads, key="key", emit=emit)(joined(condition, how))
        problems = [str(problem) for problem in _check_all(app, spark)]
        assert len(problems) == (0 if expected is None else 1), (condition, problems)
        assert expected is None or (expected in problems[0] and view.name in problems[0]), (condition, problems)


def test_the_check_holds_a_row_class_against_the_view(spark: SparkSession) -> None:
    register(spark, EmptyLog)
    app = load(str(EXAMPLES / "prices.py")).app
    assert _check_all(app, spark) == []

    class Spending(Event):
        customer: str
        sum: float

    orders = next(stream for stream in app.streams if stream.name == "orders")
    app.enrich("bad", reads=orders, table="spent", row=Spending, key="customer", emits=Left)(lambda one, two: None)
    [problem] = _check_all(app, spark)
    assert "Spending has a field 'sum', but the view spent has only the columns customer, total, orders" in str(problem)
