"""Readers that never read: bounded memory, nobody else waits, and in the end they are let go."""

from __future__ import annotations

import asyncio
import base64
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest

from penstock.serve.connections import Connections
from penstock.serve.stream import StreamChannel
from penstock.serve.view import ViewChannel
from penstock.settings import Settings
from tests.serve.clients import events
from tests.serve.fakes import FakeLog, FakeView, make_deps, run, serving, until

MIB = 1024 * 1024
SETTINGS = Settings(heartbeat_s=600, page_events=20, buffered_changes=16)
READERS = 10
ROUNDS = 500
SUBSCRIBE = b'{"op":"subscribe","id":"1","%b":"x"}'


def masked(text: bytes) -> bytes:
    """A client's text frame; a mask of zeros leaves the bytes as they are."""
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


def request(transport: str, kind: str) -> bytes:
    if transport == "sse":
        return b"GET /v1/%bs/x/live HTTP/1.1\r\nHost: x\r\n\r\n" % kind.encode()
    key = base64.b64encode(bytes(16))
    head = b"GET /v1/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return head + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key


@contextmanager
def connected(port: int, transport: str, kind: str) -> Iterator[None]:
    """A connection that asks for everything and reads nothing."""
    client = socket.socket()
    with client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(request(transport, kind))
        if transport == "websocket":
            assert client.recv(4096).startswith(b"HTTP/1.1 101")
            client.sendall(masked(SUBSCRIBE % kind.encode()))
        yield


@asynccontextmanager
async def mute(port: int, transport: str, kind: str) -> AsyncIterator[None]:
    stack = ExitStack()
    await asyncio.to_thread(stack.enter_context, connected(port, transport, kind))
    with stack:
        yield


@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_those_who_do_not_read_cost_little_and_delay_no_one(transport: str) -> None:
    """10 MB of events for each of 10 mute readers stay far below that in memory, while another reads them all."""

    async def main() -> None:
        log = FakeLog(1)
        source = StreamChannel("x", log, SETTINGS)
        deps = make_deps(streams={"x": source}, settings=SETTINGS)
        async with serving(deps) as port:
            async with AsyncExitStack() as stack:
                for _ in range(READERS):
                    await stack.enter_async_context(mute(port, transport, "stream"))
                await until(lambda: source._tail._followers == READERS)
                async with events(port, "stream", "latest") as deliveries:
                    await anext(deliveries)
                    base = tracemalloc.get_traced_memory()[0]
                    seen = 0
                    for number in range(ROUNDS):
                        log.write(0, *range(20), text="x" * 1000)
                        log.trim(0, max(0, 20 * (number - 50)))
                        log.forget()
                        source.wake()
                        while seen < 20 * (number + 1):
                            seen += len((await anext(deliveries)).data.get("events", ()))
                    grown = tracemalloc.get_traced_memory()[0] - base
                assert grown < READERS * MIB / 2 + 4 * MIB
                deps.closing.set()
                await until(lambda: deps.connections.open == 0)

    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()


def test_a_mute_reader_of_a_large_snapshot_holds_a_slice_of_it() -> None:
    """Server-sent events go out in slices: a snapshot of 8 MB costs 10 mute readers far less than 10 copies."""

    async def main() -> None:
        view = FakeView()
        view.put({str(number): "x" * 10_000 for number in range(800)})
        source = ViewChannel("x", view, SETTINGS, key=["k"])
        async with serving(make_deps(views={"x": source}, settings=SETTINGS)) as port:
            async with AsyncExitStack() as stack:
                base = tracemalloc.get_traced_memory()[0]
                for _ in range(READERS):
                    await stack.enter_async_context(mute(port, "sse", "view"))
                async with events(port, "view", None) as deliveries:
                    assert len((await anext(deliveries)).data["rows"]) == 800
                grown = tracemalloc.get_traced_memory()[0] - base
                assert grown < 8 * MIB * 3.5

    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_those_who_take_nothing_for_long_lose_their_place(transport: str) -> None:
    """After `stuck_s` without taking what was sent, the place is free for another."""

    async def main() -> None:
        view = FakeView()
        view.put({str(number): "x" * 10_000 for number in range(800)})
        source = ViewChannel("x", view, SETTINGS, key=["k"])
        connections = Connections(10, stuck_s=0.2)
        async with serving(make_deps(views={"x": source}, connections=connections)) as port:
            async with mute(port, transport, "view"):
                await until(lambda: connections.open == 1)
                while connections.open:
                    view.put({"a": "x" * 10_000})
                    await asyncio.sleep(0.01)

    run(main())
