"""Edits of the declarations of windows, rollups, joins and patterns, and of the events they read, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest

from penstock import App
from penstock.app.check import check
from penstock.app.fingerprints.stored import HandlerPrint, PlanPrint
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.app.graph import order
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.prints import read_prints, write_prints
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_table
from tests.fingerprints.handled import handle_a_batch
from tests.fingerprints.shelf import compare, write

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


written = partial(write, text=APP)


def fill(app: App, directory: DataDirectory) -> None:
    """Write data of each declaration."""
    log = EmbeddedLog(directory.streams)
    for stream in app.streams:
        log.declare(StreamSpec.of(stream.name, event_spec(stream.event), 2))
        values = {"oid": "1", "at": NOW, "sent": NOW, "shop": "a", "amount": 1}
        event = stream.event(**{name: values[name] for name in stream.event.__struct_fields__})
        batch = to_batch(stream.event, [event], ids=[None], keys=[None], now=NOW)
        log.append(stream.name, 0, batch, producer="test", sequence=1)
    log.close()
    for view in app.queries:
        open_table(view, EmbeddedStorage(directory), Settings()).close()
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
    """Return the declarations that changed by some edits, by name."""

    def judge(*edits: tuple[str, str]) -> dict[str, Verdict]:
        verdicts = compare(written(tmp_path, *edits), data).verdicts()
        return {verdict.name: verdict for verdict in verdicts if verdict.kind is not VerdictKind.unchanged}

    return judge


def kinds(verdicts: dict[str, Verdict]) -> dict[str, VerdictKind]:
    return {name: verdict.kind for name, verdict in verdicts.items()}


def test_nothing_is_told_of_an_app_that_is_as_it_was(judged: Judged) -> None:
    assert judged() == {}


def test_the_lateness_of_a_stream_is_told_of_whoever_waits_for_late_events_of_it(judged: Judged) -> None:
    verdicts = judged(('Order, key="shop", late_after=LATE', 'Order, key="shop", late_after=6 * LATE'))
    verdicts.pop("best")  # for Spark to decide
    assert kinds(verdicts) == dict.fromkeys(("pairs", "priced", "alarms"), VerdictKind.compatible)
    for verdict in verdicts.values():
        assert "it read orders by at, up to 0:00:10 late, and now reads it by at, up to 0:01:00 late" in verdict.reason
        assert "penstock rebuild" in str(verdict.command)


def test_another_event_time_is_told_of_whoever_goes_by_it(judged: Judged) -> None:
    verdicts = judged(('id="oid", time="at", version', 'id="oid", time="sent", version'))
    verdicts.pop("best")  # for Spark to decide
    names = ("orders", "minutes", "sales", "pairs", "priced", "alarms")
    assert kinds(verdicts) == dict.fromkeys(names, VerdictKind.compatible)
    assert "by at, and now reads it by sent" in verdicts["sales"].reason


def test_an_event_time_that_is_only_renamed_is_not_told_of_handlers(judged: Judged) -> None:
    edits = (
        ('id="oid", time="at", version=2', 'id="oid", time="when", version=2, renamed={"at": "when"}'),
        ("at: datetime\n    sent", "when: datetime\n    sent"),
    )
    verdicts = judged(*edits)
    assert "sales" not in verdicts
    assert not any("and now reads it by" in verdict.reason for verdict in verdicts.values())


def test_a_changed_migrate_is_told_of_stream_and_handlers_and_refused_for_views(judged: Judged) -> None:
    verdicts = judged(('"amount": 1}', '"amount": 2}'))
    names = ("orders", "minutes", "sales", "pairs", "priced", "alarms", "count")
    assert kinds(verdicts) == {"best": VerdictKind.incompatible, **dict.fromkeys(names, VerdictKind.compatible)}
    assert verdicts["orders"].reason.endswith("read differently, because migrate has changed")
    assert verdicts["count"].reason == "the stored events of orders are read differently"
    assert "penstock rebuild" in str(verdicts["count"].command)
    assert "penstock rebuild" in str(verdicts["best"].command)


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
    verdicts = judged(edit)
    assert kinds(verdicts) == dict.fromkeys(names, VerdictKind.incompatible)
    for verdict in verdicts.values():
        assert f"the aggregate for its column {column} has changed" in verdict.reason
        assert "penstock rebuild" in str(verdict.command)


def test_data_that_was_recorded_without_times_readings_and_aggregates_goes_on(
    judged: Judged, data: DataDirectory
) -> None:
    stored = read_prints(data.declarations)
    assert stored is not None
    streams = {name: msgspec.structs.replace(stream, reading=None) for name, stream in stored.streams.items()}
    handlers = {name: first(handler) for name, handler in stored.handlers.items()}
    write_prints(data.declarations, msgspec.structs.replace(stored, streams=streams, handlers=handlers))
    assert judged() == {}


def first(handler: HandlerPrint) -> HandlerPrint:
    """Return it in the first format of fingerprints."""
    versions = msgspec.structs.replace(handler.versions, form=1)
    return msgspec.structs.replace(
        handler, versions=versions, source=handler.sources[1], readings={}, times={}, columns={}
    )
