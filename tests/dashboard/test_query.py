"""The query page in a real browser, with real queries behind it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from penstock import dashboard
from penstock.core.access import ANYONE, CALLER
from penstock.http.problems import exception_handlers
from penstock.http.protocol import OPTIONS, BoundedWebSocket
from penstock.serve.http import routes
from tests.dashboard.market import app, stream, view
from tests.dashboard.test_safety import HOSTILE, watch
from tests.serve.fakes import FakeLog
from tests.serve.query.support import SETTINGS, Typed, queried

pytestmark = pytest.mark.browser
START_S_MAX = 20.0
READINGS = stream("readings", {"n": "int64", "text": "string"}, end=1, events=1)
BY_KEY = view("by-key", {"k": "string", "v": "bigint"}, ["k"], ["readings"], rows=3)


@dataclass
class Served:
    """An app whose view a test changes."""

    address: str
    loop: asyncio.AbstractEventLoop
    view: Typed

    def put(self, upserts: dict[str, Any]) -> None:
        self.call(lambda: self.view.put(upserts))

    def call(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S_MAX)


@contextmanager
def serving() -> Iterator[Served]:
    """Serve the gateway's routes and the dashboard's, with a stream `readings` and a view `by-key`."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready, gateways, stopped = threading.Event(), list[Served](), list[Callable[[], object]]()

    async def main() -> None:
        log, rows = FakeLog(1), Typed()
        log.write(0, 1, 2, 3, text="some text")
        rows.put({"a": 1, "b": 2, "c": 3})
        settings = replace(SETTINGS, heartbeat_s=5.0)
        async with queried(log, rows, settings) as deps:
            described = app("asking", [READINGS], [BY_KEY])
            served = replace(deps, describe=lambda: described)
            site = Starlette(routes=[*routes(served), *dashboard.routes()], exception_handlers=exception_handlers())

            async def as_anyone(scope: Scope, receive: Receive, send: Send) -> None:
                await site({**scope, CALLER: ANYONE}, receive, send)

            config = uvicorn.Config(as_anyone, ws=BoundedWebSocket, lifespan="off", log_config=None, **OPTIONS)
            server = uvicorn.Server(config)
            loop = asyncio.get_running_loop()

            def stop() -> None:
                deps.closing.set()
                server.should_exit = True

            stopped.append(lambda: loop.call_soon_threadsafe(stop))
            gateways.append(Served(f"http://127.0.0.1:{listener.getsockname()[1]}", loop, rows))
            ready.set()
            await server._serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="queried")
    thread.start()
    try:
        assert ready.wait(START_S_MAX)
        yield gateways[0]
    finally:
        for callback in stopped:
            callback()
        thread.join(START_S_MAX)
        listener.close()


@pytest.fixture
def asked() -> Iterator[Served]:
    with serving() as served:
        yield served


def cells(page: Page) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()]


def write(page: Page, sql: str) -> None:
    page.get_by_label("A SELECT in SQL").fill(sql)


def test_a_query_is_written_run_with_the_keyboard_and_answered(page: Page, asked: Served) -> None:
    """It is reached from the overview by its link; the count and the time are shown, and a reload runs it again."""
    seen = watch(page)
    page.goto(asked.address)
    page.get_by_role("link", name="Query").click()
    write(page, 'SELECT k, v * 2 AS twice FROM "by-key" ORDER BY k')
    page.keyboard.press("Control+Enter")
    expect(page.locator("tbody tr")).to_have_count(3)
    assert cells(page) == [["a", "2"], ["b", "4"], ["c", "6"]]
    expect(page.locator(".told")).to_contain_text("3 rows in")
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_label("A SELECT in SQL")).to_have_value('SELECT k, v * 2 AS twice FROM "by-key" ORDER BY k')
    assert (seen.dialogs, seen.errors) == ([], [])
    assert page.evaluate("window.violations") == []


def test_what_is_wrong_is_marked_where_it_stands(page: Page, asked: Served) -> None:
    """The word is marked in the text and selected, the error is announced, and typing removes the mark."""
    page.goto(f"{asked.address}/#/query")
    write(page, "SELECT n,\n  spead\nFROM readings")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("spead")
    expect(page.locator(".editor-mark mark")).to_have_text("spead")
    editor = page.get_by_label("A SELECT in SQL")
    expect(editor).to_have_attribute("aria-invalid", "true")
    expect(editor).to_be_focused()
    chosen = editor.evaluate("text => text.value.slice(text.selectionStart, text.selectionEnd)")
    assert chosen == "spead"
    mark, text = page.locator(".editor-mark").bounding_box(), editor.bounding_box()
    assert mark == text
    page.keyboard.type("'🔥🔥' AS fire, spead")
    expect(page.locator(".editor-mark mark")).to_have_count(0)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".editor-mark mark")).to_have_text("spead")
    page.keyboard.type("text")
    page.keyboard.press("Control+Enter")
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_query_that_is_kept_live_follows_its_view(page: Page, asked: Served) -> None:
    """Its answer changes with the view, changed rows flash, and it stops on request."""
    page.goto(f"{asked.address}/#/query")
    write(page, 'SELECT sum(v) AS total FROM "by-key"')
    toggle = page.get_by_role("button", name="Keep live")
    toggle.click()
    expect(page.locator("tbody td")).to_have_text("6")
    expect(page.locator(".told")).to_have_text("1 row, live")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    asked.put({"d": 4})
    expect(page.locator("tbody td")).to_have_text("10")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    asked.put({"e": 5})
    page.get_by_role("button", name="Run").click()
    expect(page.locator("tbody td")).to_have_text("15")


def test_examples_are_of_the_apps_own_views_and_streams_and_each_is_answered(page: Page, asked: Served) -> None:
    page.goto(f"{asked.address}/#/query")
    examples = page.get_by_label("Examples").get_by_role("button")
    expect(examples).to_have_text(["rows of by-key", "latest events from readings", "readings per minute"])
    for index in range(3):
        examples.nth(index).click()
        expect(page.locator(".told")).to_contain_text("rows in" if index < 2 else "row in")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_hostile_values_and_texts_are_shown_as_text(page: Page, asked: Served) -> None:
    seen = watch(page)
    texts = [text.replace("\x00", "") for text in HOSTILE]
    literals = ", ".join("('{}')".format(text.replace("'", "''")) for text in texts)
    sql = f'SELECT x AS "<b>bold</b>" FROM (VALUES {literals}) v(x)'
    page.goto(f"{asked.address}/#/query?sql={quote(sql)}")
    expect(page.locator("tbody tr")).to_have_count(len(texts))
    expect(page.locator("th")).to_have_text("<b>bold</b>")
    write(page, "SELECT <img src=x onerror=alert(1)>")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    assert (seen.dialogs, [error for error in seen.errors if "400" not in error]) == ([], [])
    assert page.evaluate("window.violations") == []
    assert page.locator("main img, main b").count() == 0


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 800)])
def test_the_page_fits_the_screen(page: Page, asked: Served, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{asked.address}/#/query")
    write(page, "SELECT n, text, _ingest_time AS came, repeat('long ', 100) AS long FROM readings -- " + "x" * 200)
    page.keyboard.press("Control+Enter")
    expect(page.locator("tbody tr")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
