"""A small app as editable text, data that it has produced, and its views run on that data without the whole app."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock import App
from penstock.analyze.check import EmptyLog
from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.fetching import fetch
from penstock.analyze.frames import build, inputs
from penstock.analyze.plan_print import plan_print
from penstock.analyze.plans import plans_of
from penstock.analyze.pruning import prune
from penstock.analyze.source import read_stream, register
from penstock.analyze.streaming_query import SparkQuery
from penstock.app.declared import Handler, View
from penstock.app.loading import LoadedApp, load
from penstock.core.clock import WallClock
from penstock.core.columns import to_batch
from penstock.core.contracts import Output, StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.comparison import Comparison, Plans
from penstock.runtime.embedded.directory import DataDirectory, take
from penstock.runtime.embedded.handler import ShardOpener
from penstock.runtime.embedded.storage import EmbeddedStorage, open_storage
from penstock.runtime.engine import Engine
from penstock.runtime.events import event_classes, stored_origins
from penstock.runtime.purge import Purge
from penstock.runtime.rebuild import Rebuild
from penstock.store import ViewSpec, ViewTable, read_handled
from tests.handlers.pipe import HandlerPipe

FIRST, ALL = range(12), range(24)
"""The orders that a shop has at first, and all its orders."""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = Settings(partitions=2, disk_reserve_bytes=0)

APP = '''"""A shop."""

from datetime import datetime, timedelta

from pyspark.sql import functions as F

import rates
from penstock import App, Event, State
from rates import VAT


class Order(Event, id="oid", time="at"):
    oid: str
    at: datetime
    shop: str
    amount: int
    note: str = ""


class Refund(Event, id="rid"):
    rid: str
    shop: str
    amount: int


app = App("shop")
orders = app.stream("orders", Order, key="shop", late_after=timedelta(minutes=2))
refunds = app.stream("refunds", Refund, key="shop")

LIMIT = 10
LOW, HIGH = 0, 100

app.sql("best", "SELECT shop, max(amount) AS best, count(*) AS n FROM orders GROUP BY shop", key="shop")


@app.view("hours", reads=orders, key=["shop", "window"])
def hours(rows):
    return rows.groupBy("shop", F.window("at", "1 hour")).agg(F.sum("amount").alias("total"))


def gross_by(factor, extra=1):
    def gross_of(amount):
        return int(amount * factor + VAT + extra) if LOW <= amount <= HIGH else HIGH

    return F.udf(gross_of, "long", useArrow=False)


@app.view("gross", reads=orders, key="oid")
def gross(rows):
    return rows.select("oid", gross_by(3)("amount").alias("gross"))


@app.view("large", reads=orders, key="oid", top=2, by="amount")
def large(rows):
    return rows.where(F.col("amount") > LIMIT * rates.FACTOR).select("oid", "amount")


class Seen(State):
    count: int = 0

    def told(self):
        return self.count


class Told(Event):
    shop: str
    count: int


STEP = 1


class Options(dict):
    __getattr__ = dict.get


OPTIONS = Options(least=0)


@app.handler("tell", reads=orders, key="shop", state=Seen, emits=Told)
def tell(state, order, ctx):
    state.count += STEP if order.amount >= OPTIONS.least else 0
    yield Told(shop=order.shop, count=state.told())


app.feed("small", of="best", where="best < 20")
'''

RATES = """VAT = 2
FACTOR = 2
"""

Edit = tuple[str, str]


def write_app(folder: Path, edits: Sequence[Edit] = (), rates: Sequence[Edit] = ()) -> Path:
    """Write the app's file, edited, and its neighbour `rates.py`. An edit whose text does not occur fails."""
    folder.mkdir(parents=True)
    for name, text, changes in (("app.py", APP, edits), ("rates.py", RATES, rates)):
        edited = text
        for old, new in changes:
            assert old in edited, f"{old!r} is not in {name}"
            edited = edited.replace(old, new)
        (folder / name).write_text(edited)
    return folder / "app.py"


def load_app(file: Path) -> App:
    """Load a file as a fresh process would, though others of the same name were loaded before."""
    return _load(file).app


def _load(file: Path) -> LoadedApp:
    for name in ("rates", "penstock_app_app"):
        sys.modules.pop(name, None)
    sys.path[:] = [path for path in sys.path if not (Path(path) / "rates.py").exists()]
    loaded = load(str(file))
    cloudpickle.register_pickle_by_value(loaded.module)  # type: ignore[no-untyped-call]
    return loaded


def some_orders(app: App, numbers: Iterable[int]) -> list[Any]:
    """Return orders of the app's class, whatever its fields are called there."""
    order = next(stream.event for stream in app.streams if stream.name == "orders")
    return [
        order(**{name: _value(name, number) for name in order.__struct_fields__ if name != "source"})
        for number in numbers
    ]


def _value(field: str, number: int) -> Any:
    match field:
        case "oid":
            return str(number)
        case "at":
            return NOON + timedelta(minutes=number)
        case "shop" | "store":
            return f"s{number % 3}"
        case "amount" | "price":
            return (number * 37) % 50
    return "n"


def fill(app: App, streams: Path, numbers: range, sequence: int) -> None:
    """Append orders to the log, all of a shop to the same partition."""
    log = EmbeddedLog(streams)
    try:
        for stream in app.streams:
            log.declare(StreamSpec.of(stream.name, event_spec(stream.event), stream.partitions or 2))
        event = app.streams[0].event
        for partition in range(2):
            events = some_orders(app, [number for number in numbers if number % 3 % 2 == partition])
            nothing: list[str | None] = [None] * len(events)
            batch = to_batch(event, events, ids=nothing, keys=nothing, now=NOON)
            log.append("orders", partition, batch, producer="test", sequence=sequence)
    finally:
        log.close()


def run_view(spark: SparkSession, app: App, view: View, streams: Path, directory: DataDirectory) -> list[Any]:
    """Run a view over all of a log, from its checkpoint on, as the engine does; returns its rows."""
    register(spark, EmbeddedLogOpener(streams, event_classes(app)))
    table = ViewTable(directory.view_file(view.name), _spec(view), clock=WallClock())
    query = SparkQuery(view, Checkpoint(directory.checkpoint(view.name)), table, 1)

    def read(stream: str, schema: StructType) -> DataFrame:
        return read_stream(spark, stream, schema, rows_max=1000, wait_s=0.01)

    try:
        frame = prune(spark, lambda reader: build(spark, view, inputs(app, view, reader, {})), read, frozenset({"at"}))
        query.start(frame, trigger_ms=0, clean=True)
        assert query.query is not None
        query.query.processAllAvailable()
        query.stop()
    finally:
        table.close()
    return _rows(directory.view_file(view.name))


def fresh_rows(app: App, view: View, numbers: range, folder: Path) -> list[Any]:
    """Return the rows of a fresh run of a view over some orders: its query as a batch, stored as the engine stores
    them."""
    table = fetch(app.preview(view, some_orders(app, numbers)))
    kept = ViewTable(folder / "fresh.db", _spec(view), clock=WallClock())
    kept.commit(Output(0, "[]", "[]", 1, table))
    kept.close()
    return _rows(folder / "fresh.db")


def rebuild(spark: SparkSession, file: Path, directory: DataDirectory, name: str) -> None:
    """Prepare a view or handler of an edited file, as `penstock rebuild` does."""
    loaded = _load(file)
    nodes: list[View | Handler] = [*loaded.app.queries, *loaded.app.handlers]
    node = next(node for node in nodes if node.name == name)
    work = Rebuild(loaded, str(file), open_storage(directory.root), SETTINGS, [node])
    work._spark = spark
    try:
        work.prepare(lambda _: None, lambda _: None, kept=False)
    finally:
        work.log.close()


def engine_rows(spark: SparkSession, file: Path, directory: DataDirectory, view: str) -> list[Any]:
    """Return the rows of a view once the engine, which runs nothing else, has read everything."""
    app = load_app(file)
    owned = take(directory, app.name)
    engine = Engine(app, str(file), EmbeddedStorage(directory), SETTINGS, owned.epoch)
    engine.spark = spark
    try:
        engine._start(view_of(app, view), True)
        runner = engine.runners[view]
        assert runner.error is None, runner.error
        assert runner.query is not None
        assert runner.query.query is not None
        runner.query.query.processAllAvailable()
    finally:
        engine._stop(1)
        os.close(*owned.inherit)
    return _rows(directory.view_file(view))


def purge(file: Path, directory: DataDirectory, command: str) -> None:
    """Run a printed command: `penstock purge FILE NAMES --data DIR --yes`."""
    names = command.removeprefix(f"penstock purge {file} ").partition(" --data")[0].split()
    work = Purge(compare(file, load_app(file), directory), str(file))
    work.require_purgeable(names)
    work.run(names, lambda _: None)


def run_handler(spark: SparkSession, file: Path, directory: DataDirectory) -> tuple[int, set[str]]:
    """Run the handler over all events; returns the digest of its state, and its keys."""
    app = load_app(file)
    handler = app.handlers[0]
    pipe = HandlerPipe(spark, directory.root, app, file)
    try:
        pipe.run(handler)
    finally:
        pipe.close()
    handled = read_handled(directory.handler_ledger(handler.name))
    assert handled is not None
    opened = ShardOpener(directory, handler.name)
    shards = [opened(handled.generation, number).load(shard.version) for number, shard in handled.shards.items()]
    return sum(shard.digest for shard in shards), {key for shard in shards for key in shard.records}


def new_shop(file: Path, root: Path) -> DataDirectory:
    """Return a data directory that has all orders as the edited file declares them, and no output."""
    directory = DataDirectory(root)
    directory.make()
    fill(load_app(file), directory.streams, ALL, 1)
    return directory


def _spec(view: View) -> ViewSpec:
    return ViewSpec(view.name, view.key, view.keep, view.top, view.by, 100, 10**6)


def _rows(file: Path) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        rows = [msgspec.json.decode(data) for (data,) in connection.execute("SELECT data FROM rows ORDER BY key")]
    return sorted(rows, key=str)


def view_of(app: App, name: str) -> View:
    return next(view for view in app.queries if view.name == name)


def compare(file: Path, app: App, directory: DataDirectory) -> Comparison:
    return Comparison(app, str(file), EmbeddedStorage(directory), Settings())


def spark_plans(spark: SparkSession, app: App, directory: DataDirectory, views: Sequence[str]) -> Plans:
    """Compute the plans that a process beside `penstock run` computes, in the existing session."""
    register(spark, EmptyLog)
    return plans_of(spark, app, views, stored_origins(app, EmbeddedStorage(directory)))


@dataclass(frozen=True)
class Shop:
    """Data that the app has produced: `directory` as of its stop, `longer` is the log with more events."""

    directory: DataDirectory
    longer: Path

    def copy(self, to: Path, view: str) -> DataDirectory:
        """Copy the state and rows of one view, to be continued."""
        directory = DataDirectory(to)
        directory.make()
        shutil.copytree(self.directory.checkpoint(view), directory.checkpoint(view))
        shutil.copy(self.directory.view_file(view), directory.view_file(view))
        return directory

    def whole_copy(self, to: Path) -> DataDirectory:
        """Copy all output of the app, with the events that it has not seen."""
        shutil.copytree(self.directory.root, to)
        shutil.rmtree(DataDirectory(to).streams)
        shutil.copytree(self.longer, DataDirectory(to).streams)
        return DataDirectory(to)


def make_shop(spark: SparkSession, root: Path) -> Shop:
    """Run the unedited app on some orders, and record it as the engine does."""
    file = write_app(root / "code")
    app = load_app(file)
    directory = DataDirectory(root / "data")
    directory.make()
    fill(app, directory.streams, FIRST, 1)
    run_handler(spark, file, directory)
    longer = root / "longer"
    shutil.copytree(directory.streams, longer)
    fill(app, longer, range(len(FIRST), len(ALL)), 2)
    comparison = compare(file, app, directory)
    comparison.record_streams()
    for view in app.queries:
        register(spark, EmptyLog)
        comparison.require(view, lambda view=view: plan_print(spark, app, view, {})[0])  # type: ignore[misc]
        comparison.record(view)
        run_view(spark, app, view, directory.streams, directory)
    return Shop(directory, longer)
