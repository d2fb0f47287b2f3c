"""The programs of docs/client.md, run as a user runs them."""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client, Timing
from tests.client.shop import running_shop
from tests.clocks import until
from tests.collect.support import in_loop
from tests.harness import ROOT
from tests.network import close

ORDERS = [
    {"order_id": f"o{number}", "at": "2026-01-01T10:00:00Z", "product": product, "pieces": 2}
    for number, product in enumerate(("tea", "milk", "tea"))
]


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/examples/clients/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@in_loop
async def test_a_program_reads_pages_and_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_shop(tmp_path) as shop:
        shop.sell(tea=4, milk=2, salt=1)
        async with Client(shop.url) as client:
            await client.publish("orders", ORDERS)
        async with asyncio.timeout(60):
            await example("reading").main(shop.url)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["tea 4", "milk 2"]
    assert said[2].startswith("3 orders up to ")
    assert said[-2:] == ["not_found there is no view 'sale'", "tea was ordered 2 times"]


@in_loop
async def test_a_program_keeps_a_board_of_sales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_shop(tmp_path) as shop:
        shop.sell(tea=1)
        async with asyncio.timeout(60):
            watching = asyncio.create_task(example("board").main(shop.url, "9"))
            await asyncio.to_thread(shop.sell, tea=4, milk=5)
            await watching
    assert capsys.readouterr().out.splitlines()[-1] == "pieces of tea: 4"


@in_loop
async def test_a_program_sends_orders(tmp_path: Path) -> None:
    with running_shop(tmp_path / "shop") as shop:
        async with asyncio.timeout(60):
            await example("till").main(shop.url, str(tmp_path / "outbox.db"))
        async with Client(shop.url) as client:
            events = [event async for page in client.events("orders") for event in page.events]
    assert sorted(event["product"] for event in events) == ["milk", "tea", "tea"]


@asynccontextmanager
async def a_carrier(taken: dict[str, bytes]) -> AsyncIterator[str]:
    """A service that fails the first time it receives a key, and accepts each key once."""
    heard: set[str] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
                body, key = await reader.readexactly(int(fields["content-length"])), fields["idempotency-key"]
                status = b"200 OK" if key in heard else b"503 Later"
                if key in heard:
                    taken.setdefault(key, body)
                heard.add(key)
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        await close(server)


@in_loop
async def test_a_program_packs_and_ships_each_order_once(tmp_path: Path) -> None:
    file, taken = tmp_path / "packer.db", dict[str, bytes]()
    with running_shop(tmp_path / "shop") as shop:
        async with Client(shop.url, timing=Timing(base_s=0.01)) as client, a_carrier(taken) as carrier:
            await client.publish("orders", ORDERS)
            for count in (3, 4):  # the second time it continues where it was
                packing = asyncio.create_task(example("packer").main(shop.url, str(file), carrier))
                await until(lambda: len(taken) == count or packing.done())  # noqa: B023
                packing.cancel()
                with suppress(asyncio.CancelledError):
                    await packing
                await client.publish("orders", ORDERS[0] | {"order_id": "another"})
    connection = sqlite3.connect(file)
    assert dict(connection.execute("SELECT product, pieces FROM packed")) == {"tea": 6, "milk": 2}
    connection.close()
