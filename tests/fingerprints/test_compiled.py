"""Edits of what windows, rollups, joins, patterns and the events that they read are declared with, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from penstock import App
from penstock.columns import to_batch
from penstock.contracts import StreamSpec
from penstock.event_shape import event_spec
from penstock.evolution import shape_of
from penstock.fingerprints.stored import HandlerPrint, PlanPrint, read_prints, write_prints
from penstock.fingerprints.verdicts import Kind, Verdict
from penstock.graph import check, order
from penstock.queue import EmbeddedLog
from penstock.runtime.comparison import Comparison
from penstock.runtime.directory import DataDirectory
from penstock.runtime.loading import load
from penstock.runtime.views import open_table
from penstock.settings import Settings
from tests.fingerprints.handled import handle_a_batch

APP = """
from datetime import datetime, timedelta

from penstock import App, Event, State, cep, windows

LATE = timedelta(seconds=10)


class Order(Event, id="oid", time="at", version=2):
    oid: str
    at: datetime
    sent: datetime
    shop: str
    amount: int

    @staticmethod
    def migrate(version, fields):
        return fields | {"amount": 1}


class Pay(Event, id="oid", time="at"):
    oid: str
    at: datetime
    shop: str


class Found(Event):
    shop: str


class Seen(State):
    count: int = 0


app = App("shop")
orders = app.stream("orders", Order, key="shop", late_after=LATE)
pays = app.stream("pays", Pay, key="shop", late_after=LATE)
app.sql("best", "SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")
app.window(
    "minutes", reads=orders, key="shop", over=windows.tumbling(timedelta(minutes=1)), late_after=timedelta(0),
    aggregate={"all": windows.collect("amount", most=100), "spread": windows.stddev("amount")},
    keep=timedelta(days=1),
)
app.rollup("sales", reads=orders, key="shop", by=["hour"], aggregate={"spread": windows.stddev("amount")})


@app.join("pairs", left=orders, right=pays, key="oid", within=timedelta(minutes=1), emits=Found)
def pairs(order, pay):
    return Found(shop=order.shop)


@app.enrich("priced", reads=pays, table=orders, key="shop", emits=Found)
def priced(pay, order):
    return Found(shop=pay.shop)


@app.match(
    "alarms", pattern=cep.on("a", Order).then(cep.on("b", Order)), reads=orders, key="shop",
    within=timedelta(minutes=5), emits=Found,
)
def alarms(match):
    return Found(shop=match.a.shop)


@app.handler("count", reads=orders, key="shop", state=Seen)
def count(state, order, ctx):
    state.count += 1
"""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Judged = Callable[..., dict[str, Verdict]]


def written(folder: Path, *edits: tuple[str, str]) -> Path:
    text = APP
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    file = folder / "shop.py"
    file.write_text(text)
    return file


def compare(file: Path, directory: DataDirectory) -> Comparison:
    sys.modules.pop("penstock_app_shop", None)
    return Comparison(load(str(file)).app, str(file), directory, Settings())


def fill(app: App, directory: DataDirectory) -> None:
    """Data of each declaration."""
    log = EmbeddedLog(directory.streams)
    for stream in app.streams:
        log.declare(StreamSpec.of(stream.name, event_spec(stream.event), 2))
        values = {"oid": "1", "at": NOW, "sent": NOW, "shop": "a", "amount": 1}
        event = stream.event(**{name: values[name] for name in stream.event.__struct_fields__})
        batch = to_batch(stream.event, [event], ids=[None], keys=[None], now=NOW)
        log.append(stream.name, 0, batch, producer="test", sequence=1)
    log.close()
    for view in app.queries:
        open_table(view, directory, Settings()).close()
        offsets = directory.checkpoint(view.name) / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "0").write_text("v1\n{}\n{}")
    for handler in app.handlers:
        handle_a_batch(directory, handler.name, shape_of(handler.state))


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    comparison = compare(written(tmp_path), directory)
    assert check(comparison.app) == []
    comparison.record_streams()
    for node in order(comparison.app):
        comparison.require(node, lambda: PlanPrint("a plan", (), {}, {}, {}))
        comparison.record(node)
    fill(comparison.app, directory)
    return directory


@pytest.fixture
def judged(tmp_path: Path, data: DataDirectory) -> Judged:
    """What is not unchanged after some edits, by name."""

    def judge(*edits: tuple[str, str]) -> dict[str, Verdict]:
        found = compare(written(tmp_path, *edits), data).verdicts()
        return {each.name: each for each in found if each.kind is not Kind.unchanged}

    return judge


def kinds(found: dict[str, Verdict]) -> dict[str, Kind]:
    return {name: each.kind for name, each in found.items()}


def test_nothing_is_told_of_an_app_that_is_as_it_was(judged: Judged) -> None:
    assert judged() == {}


def test_the_lateness_of_a_stream_is_told_of_whoever_waits_for_late_events_of_it(judged: Judged) -> None:
    found = judged(('Order, key="shop", late_after=LATE', 'Order, key="shop", late_after=6 * LATE'))
    found.pop("best")  # for Spark to decide
    assert kinds(found) == dict.fromkeys(("pairs", "priced", "alarms"), Kind.compatible)
    for each in found.values():
        assert "it took events of orders by at, up to 0:00:10 late, and now by at, up to 0:01:00 late" in each.reason
        assert "penstock rebuild" in str(each.command)


def test_another_event_time_is_told_of_whoever_goes_by_it(judged: Judged) -> None:
    found = judged(('id="oid", time="at", version', 'id="oid", time="sent", version'))
    found.pop("best")  # for Spark to decide
    names = ("orders", "minutes", "sales", "pairs", "priced", "alarms")
    assert kinds(found) == dict.fromkeys(names, Kind.compatible)
    assert "by at, and now by sent" in found["sales"].reason


def test_an_event_time_that_is_only_renamed_is_not_told_of_handlers(judged: Judged) -> None:
    edits = (
        ('id="oid", time="at", version=2', 'id="oid", time="when", version=2, renamed={"at": "when"}'),
        ("at: datetime\n    sent", "when: datetime\n    sent"),
    )
    found = judged(*edits)
    assert "sales" not in found
    assert not any("it took events" in each.reason for each in found.values())


def test_a_changed_migrate_is_told_of_stream_and_handlers_and_refused_for_views(judged: Judged) -> None:
    found = judged(('"amount": 1}', '"amount": 2}'))
    names = ("orders", "minutes", "sales", "pairs", "priced", "alarms", "count")
    assert kinds(found) == {"best": Kind.incompatible, **dict.fromkeys(names, Kind.compatible)}
    assert found["orders"].reason.endswith("read as something else: migrate has changed")
    assert found["count"].reason == "the stored events of orders are read as something else"
    assert "penstock rebuild" in str(found["count"].command)
    assert "penstock rebuild" in str(found["best"].command)


@pytest.mark.parametrize(
    ("edit", "column", "names"),
    [
        (("windows.stddev", "windows.variance"), "spread", {"minutes", "sales"}),
        (("most=100", "most=50"), "all", {"minutes"}),
    ],
)
def test_another_aggregate_in_a_column_is_refused_though_it_keeps_the_same(
    edit: tuple[str, str], column: str, names: set[str], judged: Judged
) -> None:
    found = judged(edit)
    assert kinds(found) == dict.fromkeys(names, Kind.incompatible)
    for each in found.values():
        assert f"the aggregate of its column {column} has changed" in each.reason
        assert "penstock rebuild" in str(each.command)


def test_data_that_was_recorded_without_times_readings_and_aggregates_goes_on(
    judged: Judged, data: DataDirectory
) -> None:
    stored = read_prints(data.declarations)
    assert stored is not None
    streams = {name: msgspec.structs.replace(each, reading=None) for name, each in stored.streams.items()}
    handlers = {name: first(each) for name, each in stored.handlers.items()}
    write_prints(data.declarations, msgspec.structs.replace(stored, streams=streams, handlers=handlers))
    assert judged() == {}


def first(made: HandlerPrint) -> HandlerPrint:
    """As the first form of fingerprints was."""
    versions = msgspec.structs.replace(made.versions, form=1)
    return msgspec.structs.replace(made, versions=versions, source=made.earlier, readings={}, times={}, columns={})
