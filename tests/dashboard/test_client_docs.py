"""The page in docs/browser.md is run, and so is every piece of code there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from penstock.app.loading import load
from penstock.core.access import Policy
from penstock.core.clock import WallClock
from penstock.core.contracts import Output
from penstock.store import StoredView, ViewSpec
from tests.dashboard.site import Site
from tests.harness import ROOT, wait_for
from tests.runtime.guarded import Running, running

EXAMPLE = ROOT / "docs/examples/shop.html"
DOCUMENT = (ROOT / "docs/browser.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
SALES = ViewSpec("sales", ("product",), None, None, None, changes_kept=10_000, changes_bytes=2**30)

KEPT = """
    () => new Promise((resolve) => {
        indexedDB.open("penstock").onsuccess = ({ target: { result } }) => {
            const asking = result.transaction("rows").objectStore("rows").count();
            asking.onsuccess = () => resolve((result.close(), asking.result));
        };
    })
"""


def test_the_page_in_the_documentation_is_the_file() -> None:
    [shown] = re.findall(r"<!-- file: docs/examples/shop.html -->\n```html\n(.*?)```\n", DOCUMENT, re.DOTALL)
    assert shown == EXAMPLE.read_text()


@contextmanager
def shop(folder: Path, *pages: Site) -> Iterator[tuple[Running, StoredView]]:
    """The app of the README without Spark: its view has what the test writes."""
    app = load(str(ROOT / "docs/examples/shop.py")).app
    with running(folder, Policy(origins=frozenset(page.address for page in pages)), app=app) as gateway:
        table = gateway.gateway.storage.view_table(SALES, WallClock())
        try:
            yield gateway, table
        finally:
            table.close()


def commit(table: StoredView, batch: int, **pieces: int) -> None:
    columns = {"product": list(pieces), "orders": [1] * len(pieces), "pieces": list(pieces.values())}
    table.commit(Output(batch, str(batch), str(batch + 1), 1, pa.table(columns)))


def events(gateway: Running) -> list[dict[str, Any]]:
    orders: list[dict[str, Any]] = gateway.get("/v1/streams/orders").json()["events"]
    return orders


@pytest.mark.browser
def test_the_example_shows_the_view_takes_orders_and_survives_a_reload(page: Page, tmp_path: Path) -> None:
    """It runs on a separate site that the gateway lists. Without the gateway it still shows its stored rows."""
    files = {"shop.html": EXAMPLE.read_bytes()}
    with Site(files) as site:
        with shop(tmp_path, site) as (gateway, table):
            address = f"http://127.0.0.1:{gateway.port}"
            files["shop.html"] = EXAMPLE.read_text().replace(ADDRESS, address).encode()
            page.goto(f"{site.address}/shop.html")
            commit(table, 0, tea=2, rice=5)
            expect(page.locator("tbody tr")).to_have_text(["rice15", "tea12"])
            commit(table, 1, tea=7)
            expect(page.locator("tbody tr")).to_have_text(["tea17", "rice15"])
            expect(page.locator("#state")).to_have_text("live")
            page.get_by_label("Product").fill("<b>salt</b>")
            page.get_by_role("button", name="Order").click()
            expect(page.locator("output")).to_have_text("ordered")
            assert [(order["product"], order["pieces"]) for order in events(gateway)] == [("<b>salt</b>", 1)]
            commit(table, 2, **{"<b>salt</b>": 1})
            expect(page.locator("tbody td").nth(6)).to_have_text("<b>salt</b>")
            assert page.locator("tbody b").count() == 0
            wait_for(lambda: page.evaluate(KEPT) == 3, what="three rows in the storage")
            page.reload()
            expect(page.locator("tbody tr")).to_have_count(3)
            client = gateway.get("/penstock.js").content
        files["penstock.js"] = client
        files["shop.html"] = EXAMPLE.read_text().replace(ADDRESS, "").replace("undefined", f'"{address}"').encode()
        page.reload()
        expect(page.locator("tbody tr")).to_have_text(["tea17", "rice15", "<b>salt</b>11"])
        expect(page.locator("#state")).to_have_text("waiting")


@pytest.mark.browser
def test_every_piece_of_code_in_the_documentation_runs(page: Page, tmp_path: Path) -> None:
    pieces = re.findall(r"^```js\n(.*?)^```\n", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert len(pieces) == 4
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with shop(tmp_path) as (gateway, table):
        table.describe(pa.schema({"product": pa.string(), "orders": pa.int64(), "pieces": pa.int64()}))
        commit(table, 0, tea=2)
        page.goto(f"http://127.0.0.1:{gateway.port}/v1/streams/orders")
        script = "".join(piece.replace("https://plant.example:8080", "/") for piece in pieces)
        begin = "const { connect } = await import('/penstock.js');"
        end = "while (!sales.get('tea')) await new Promise((again) => setTimeout(again, 50)); return receipt"
        page.on("console", lambda message: errors.append(message.text) if "Penstock" in message.text else None)
        receipt = page.evaluate(f"async () => {{ {begin} {script} {end} }}")
        assert receipt["accepted"] == 1
        assert [order["order_id"] for order in events(gateway)] == ["1"]
    assert errors == []
