"""An event class that changes under stored events, as a user meets it: every reader has old events as the new class,
and a change that does not allow that is refused before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from penstock.app.loading import load
from penstock.core.failpoints import VARIABLE
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.events import event_problems
from tests.harness import ROOT, RunningApp, running, wait_for

EXAMPLES = ROOT / "docs/examples"
ONE, TWO = EXAMPLES / "orders.py", EXAMPLES / "orders_changed.py"
OLD = [{"order_id": f"o{n}", "customer": f"c{n % 2}", "text": f"t{n}", "cents": n * 10, "note": "x"} for n in range(24)]
NEW = [{"order_id": "o24", "customer": "c0", "body": "t24", "amount": "2.40", "currency": "CHF"}]
READ = [
    {"order_id": f"o{n}", "customer": f"c{n % 2}", "body": f"t{n}", "amount": Decimal(n) / 10, "currency": "EUR"}
    for n in range(24)
]


def command(name: str, file: Path, data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "penstock.cli", name, str(file), "--data", str(data), *more]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory in which the first version of the app has run."""
    data = tmp_path_factory.mktemp("orders") / "data"
    with running(ONE, data) as app:
        app.ready()
        assert app.post("orders", OLD).status_code == 200
        wait_for(lambda: state(app, "milestones", "c1") == {"orders": 12}, what="the handler to have read all")
        wait_for(lambda: sum(row["n"] for row in app.view("busiest")) == 24, what="the view to have read all")
        assert app.stop() == 0
    return data


def state(app: RunningApp, handler: str, key: str) -> Any:
    answer = httpx.get(f"{app.url}/v1/handlers/{handler}/state/{key}")
    return answer.json()["state"] if answer.status_code == 200 else None


def live(app: RunningApp, count: int) -> list[dict[str, Any]]:
    """Return the events of the stream by WebSocket, from the first on."""
    events: list[dict[str, Any]] = []
    with connect(f"{app.url.replace('http', 'ws')}/v1/live") as socket:
        socket.send(json.dumps({"op": "subscribe", "id": "a", "stream": "orders", "since": "earliest"}))
        while len(events) < count:
            message = json.loads(socket.recv(timeout=60))
            events += message["data"]["events"] if message["event"] == "change" else []
    return events


def by_id(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    typed = [{**event, "amount": Decimal(event["amount"])} for event in events]
    return sorted(typed, key=lambda event: int(event["order_id"][1:]))


def written(data: Path) -> dict[Path, bytes]:
    """Return the content of each file, except those by which the readers of SQLite know of each other."""
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.suffix != ".db-shm"}
    return {path: content for path, content in files.items() if content}


EDITS = {
    "renamed": ([("    text: str\n", "    body: str\n")], "its events have a field 'text', but Order does not"),
    "required": ([("    text: str\n", "    text: str\n    currency: str\n")], "Order.currency is new"),
    "type": ([("    cents: int\n", "    cents: float\n")], "Order.cents was int and is float"),
    "optional": ([("    note: str | None = None\n", '    note: str = ""\n')], "Order.note was str | null and is str"),
}


@pytest.mark.spark
@pytest.mark.parametrize("edit", EDITS)
def test_a_change_that_events_cannot_follow_is_refused_at_the_start(data: Path, tmp_path: Path, edit: str) -> None:
    """Once it was served as null, or accepted no event at all, and reported that it was ready."""
    edits, says = EDITS[edit]
    text = ONE.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "orders.py"
    file.write_text(text)
    line = next(number for number, source_line in enumerate(text.splitlines(), 1) if "app.stream(" in source_line)
    before = written(data)
    run = command("run", file, data, "--port", "0")
    assert run.returncode == 1
    assert f"{file}:{line}: stream orders: incompatible: {says}" in run.stderr
    assert "ready" not in run.stdout
    assert written(data) == before
    assert [
        problem.partition(": ")[2]
        for problem in event_problems(load(str(file)).app, EmbeddedStorage(DataDirectory(data)))
    ] == [line.partition(": ")[2].replace("incompatible: ", "") for line in run.stderr.splitlines()]


@pytest.mark.spark
def test_every_reader_has_old_events_as_the_new_class(data: Path, tmp_path: Path) -> None:
    """By the API on every transport, in queries and filters, in views and handlers, whose workers migrate; even if the
    gateway is killed while it declares the new version."""
    marker = tmp_path / "killed"
    refused = command("run", TWO, data, "--port", "0")
    reason = "the stored events of orders are now read as a different version"
    assert f"view busiest: incompatible: {reason}" in refused.stderr
    assert command("purge", TWO, data, "busiest", "--yes").returncode == 0
    with running(TWO, data, **{VARIABLE: f"queue.before_commit=kill:{marker}"}) as app:
        app.ready()
        assert marker.exists()
        assert app.post("orders", NEW).json()["accepted"] == 1
        assert app.post("orders", {**NEW[0], "order_id": "o3"}).json()["duplicates"] == 1
        newest = {**NEW[0], "amount": Decimal("2.4")}
        page = httpx.get(f"{app.url}/v1/streams/orders", params={"since": "earliest", "limit": 100}).json()
        assert by_id(page["events"]) == [*READ, newest]
        assert by_id(live(app, 25)) == [*READ, newest]
        chosen: dict[str, str | int] = {
            "since": "earliest",
            "limit": 100,
            "where": "body = 't7' AND amount > 0.5",
            "select": "currency",
        }
        assert httpx.get(f"{app.url}/v1/streams/orders", params=chosen).json()["events"] == [{"currency": "EUR"}]
        query = {"sql": "SELECT currency, count(*) AS n FROM orders GROUP BY currency ORDER BY n"}
        rows = httpx.post(f"{app.url}/v1/query", json=query).json()["rows"]
        assert [(row["currency"], row["n"]) for row in rows] == [("CHF", 1), ("EUR", 24)]
        total = {"EUR": Decimal("27.6"), "CHF": Decimal("2.4")}
        wait_for(
            lambda: {row["currency"]: Decimal(row["total"]) for row in app.view("revenue")} == total,
            what="a new view to have read old and new events",
        )
        wait_for(lambda: (state(app, "accounts", "c0") or {}).get("last") == "t24, CHF", what="a new handler")
        assert float(state(app, "accounts", "c1")["spent"]) == sum(range(1, 24, 2)) / 10
        wait_for(lambda: state(app, "milestones", "c0") == {"orders": 13}, what="a handler that was there before")
        assert app.stop() == 0
    events = {"milestones": "1 event", "accounts": "25 events"}
    for handler, read in events.items():
        verified = command("replay", TWO, data, "--handler", handler, "--verify")
        assert f"{handler}: {read}," in verified.stdout, verified.stderr
        assert "bit for bit" in verified.stdout, verified.stderr
    older = command("run", ONE, data, "--port", "0")
    assert older.returncode == 1
    assert (
        "stream orders: incompatible: its events have version 2, but Order is version 1: run the newer code"
        in older.stderr
    )
