"""A data directory as an app would have left it, built by hand in a moment: for tests without Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from penstock import App
from penstock.app.fingerprints.stored import PlanPrint
from penstock.app.graph import order
from penstock.app.loading import load
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.queue import EmbeddedLog
from penstock.runtime.comparison import Comparison
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_table
from tests.fingerprints.handled import handle_a_batch

APP = """
from penstock import App, Event, State

class Order(Event, id="oid"):
    oid: str
    shop: str
    amount: int

class Seen(State):
    count: int = 0

app = App("shop")
orders = app.stream("orders", Order, key="shop")

app.sql("best", "SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")
app.sql("rich", "SELECT shop, best FROM best WHERE best > 10", key="shop")

@app.handler("count", reads=orders, key="shop", state=Seen)
def count(state, order, ctx):
    state.count += 1
"""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = PlanPrint("a plan", (), {"shop": "string", "best": "bigint"}, {"orders": {"shop": "string"}}, {})


def write(folder: Path, *edits: tuple[str, str], text: str = APP) -> Path:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    file = folder / "shop.py"
    file.write_text(text)
    return file


def loaded(file: Path) -> App:
    sys.modules.pop("penstock_app_shop", None)
    return load(str(file)).app


def compare(file: Path, directory: DataDirectory) -> Comparison:
    return Comparison(loaded(file), str(file), EmbeddedStorage(directory), Settings())


def stock(file: Path, root: Path, *, record: bool = True) -> DataDirectory:
    """Return a directory in which every declaration has data. The plan of each view is `PLAN`."""
    directory = DataDirectory(root)
    directory.make()
    comparison = compare(file, directory)
    app = comparison.app
    log = EmbeddedLog(directory.streams)
    for stream in app.streams:
        log.declare(StreamSpec.of(stream.name, event_spec(stream.event), stream.partitions or 2))
        event = stream.event(oid="1", shop="a", amount=5)  # type: ignore[call-arg]
        batch = to_batch(stream.event, [event], ids=[None], keys=[None], now=NOW)
        log.append(stream.name, 0, batch, producer="test", sequence=1)
    log.close()
    if record:
        comparison.record_streams()
        for node in order(app):
            comparison.require(node, lambda: PLAN)
            comparison.record(node)
    for view in app.queries:
        open_table(view, EmbeddedStorage(directory), Settings()).close()
        offsets = directory.checkpoint(view.name) / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "0").write_text("v1\n{}\n{}")
    for handler in app.handlers:
        handle_a_batch(directory, handler.name, shape_of(handler.state))
    return directory
