"""A gateway that can be killed, a bad network before it, and a page that uses both."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from playwright.sync_api import Page

from penstock.core.clock import WallClock
from penstock.core.contracts import Output
from penstock.store.table import ViewTable
from tests.gateway import VIEW, RunningGateway, running_gateway
from tests.network import Proxy, listening

SCRIPT = Path(__file__).with_name("client") / "page.mjs"
OPEN = """
    async ([client, script, options]) => {
        const module = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
        (await import(module)).follow((await import(client)).connect, options);
    }
"""
COMPLETE = """
    ([count, rows]) =>
        seen.errors.length || (seen.notes.length >= count && JSON.stringify(seen.rows) === JSON.stringify(rows))
"""
BYTES_MAX = 6_000
"""Limit of one connection, both ways: room for a few messages only."""
DEADLINE_S = 60.0


@dataclass
class World:
    """The shared fixture. `notes` are the names of the acknowledged events, in order, `rows` the rows of the view."""

    gateway: RunningGateway
    proxy: Proxy
    table: ViewTable
    notes: list[str]
    rows: dict[str, int]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    def append(self, count: int) -> None:
        """Send events past the bad network; each is retried until it is acknowledged."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.gateway.port}", timeout=DEADLINE_S) as client:
            for _ in range(count):
                name = f"n{len(self.notes)}"
                answer = client.post("/v1/streams/notes", json={"name": name}, headers={"Idempotency-Key": name})
                assert answer.raise_for_status().json()["accepted"] == 1
                self.notes.append(name)

    def change(self, draw: random.Random, count: int) -> None:
        """Change the view as the engine would."""
        for _ in range(count):
            batch = (self.table.last().batch_id if self.table.last() else -1) + 1  # type: ignore[union-attr]
            names = draw.sample("abcdefghijkl", 3)
            self.rows |= dict.fromkeys(names, batch)
            rows = pa.table({"name": names, "n": [batch] * 3})
            self.table.commit(Output(batch, str(batch), str(batch + 1), 1, rows))

    def restart(self) -> None:
        self.gateway.kill()
        self.gateway.start()

    def open(self, page: Page, **options: Any) -> None:
        """Load a page at the gateway's own address, which follows the stream and the view."""
        calm, self.proxy.calm = self.proxy.calm, True
        page.goto(f"{self.address}/v1/health")
        page.evaluate(OPEN, [f"{self.address}/penstock.js", SCRIPT.read_text(), options])
        self.proxy.calm = calm

    def settled(self, page: Page) -> dict[str, Any]:
        """Return everything that the page has seen, once it is complete."""
        wanted = [[name, self.rows[name]] for name in sorted(self.rows)]
        page.wait_for_function(COMPLETE, arg=[len(self.notes), wanted], timeout=DEADLINE_S * 1000)
        seen: dict[str, Any] = page.evaluate("({...seen, transports: [...seen.transports]})")
        return seen


@contextmanager
def faulty(folder: Path, draw: random.Random, **environ: str) -> Iterator[World]:
    with running_gateway(folder, PENSTOCK_HEARTBEAT_S="1", **environ) as gateway:
        with _proxied(Proxy(lambda: gateway.port, draw, BYTES_MAX)) as proxy:
            gateway.view_file.parent.mkdir(parents=True, exist_ok=True)
            table = ViewTable(gateway.view_file, VIEW, clock=WallClock())
            table.describe(pa.schema({"name": pa.string(), "n": pa.int64()}))
            try:
                yield World(gateway, proxy, table, [], {})
            finally:
                table.close()


@contextmanager
def _proxied(proxy: Proxy) -> Iterator[Proxy]:
    """Run the proxy in a separate loop and thread: Playwright uses those of the test."""
    started: Future[asyncio.Event] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with listening(proxy):
            loops.append(asyncio.get_running_loop())
            started.set_result(stop)
            await stop.wait()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="proxy")
    thread.start()
    try:
        stop = started.result(DEADLINE_S)
        yield proxy
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
