"""Readers that never read: memory is bounded, no other reader waits, and at last they are disconnected."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest

from penstock.core.settings import Settings
from penstock.http.protocol import BoundedWebSocket
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections
from tests.alone import alone
from tests.clocks import until
from tests.serve.clients import events
from tests.serve.fakes import FakeLog, FakeView, make_deps, run, serving

MIB = 1024 * 1024
SETTINGS = Settings(heartbeat_s=600, page_events=20, buffered_changes=16)
READERS = 10
ROUNDS = 500
SUBSCRIBE = b'{"op":"subscribe","id":"1","%b":"x"}'


def frame(opcode: int, data: bytes) -> bytes:
    """Return a client's frame of less than 126 bytes; a mask of zeros leaves them unchanged."""
    return bytes([opcode, 0x80 | len(data)]) + bytes(4) + data


def request(transport: str, kind: str) -> bytes:
    if transport == "sse":
        return b"GET /v1/%bs/x/live HTTP/1.1\r\nHost: x\r\n\r\n" % kind.encode()
    if transport == "poll":
        return b"GET /v1/%bs/x?limit=all HTTP/1.1\r\nHost: x\r\n\r\n" % kind.encode()
    key = base64.b64encode(bytes(16))
    head = b"GET /v1/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return head + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key


@contextmanager
def requested(port: int, head_and_body: bytes) -> Iterator[socket.socket]:
    """Open a connection with a small buffer, send a request on it and read nothing."""
    client = socket.socket()
    with client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(head_and_body)
        yield client


@contextmanager
def connected(port: int, transport: str, kind: str) -> Iterator[socket.socket]:
    """Open a connection that requests everything and reads nothing."""
    with requested(port, request(transport, kind)) as client:
        if transport == "websocket":
            assert client.recv(4096).startswith(b"HTTP/1.1 101")
            client.sendall(frame(0x81, SUBSCRIBE % kind.encode()))
        yield client


@asynccontextmanager
async def mute(port: int, transport: str, kind: str) -> AsyncIterator[socket.socket]:
    stack = ExitStack()
    client = await asyncio.to_thread(stack.enter_context, connected(port, transport, kind))
    with stack:
        yield client


def most_of(held: tracemalloc.Snapshot) -> str:
    """Return where most of the memory was allocated."""
    return "\n".join(str(line) for line in held.statistics("lineno")[:10])


@pytest.mark.parametrize("transport", ["sse", "websocket"])
@alone
def test_those_who_do_not_read_cost_little_and_delay_no_one(transport: str) -> None:
    """10 MB of events for each of 10 mute readers use far less memory than that, while another reads them all."""

    async def main() -> None:
        log = FakeLog(1)
        source = StreamChannel("x", log, SETTINGS)
        deps = make_deps(streams={"x": source}, settings=SETTINGS)
        async with serving(deps) as port:
            async with AsyncExitStack() as stack:
                for _ in range(READERS):
                    await stack.enter_async_context(mute(port, transport, "stream"))
                await until(lambda: source._tail.row_filters.readers == READERS)
                async with events(port, "stream", "latest") as deliveries:
                    await anext(deliveries)
                    base = tracemalloc.get_traced_memory()[0]
                    seen = 0
                    for number in range(ROUNDS):
                        log.write(0, *range(20), text="x" * 1000)
                        log.trim(0, max(0, 20 * (number - 50)))
                        source.wake()
                        while seen < 20 * (number + 1):
                            seen += len((await anext(deliveries)).data.get("events", ()))
                    grown = tracemalloc.get_traced_memory()[0] - base
                assert grown < READERS * MIB / 2 + 4 * MIB, most_of(tracemalloc.take_snapshot())
                deps.closing.set()
                await until(lambda: deps.connections.open == 0)

    tracemalloc.start()
    run(main())


@pytest.mark.parametrize(("transport", "copies"), [("sse", 3), ("poll", 4)])
@alone
def test_a_mute_reader_of_a_large_snapshot_holds_a_slice_of_it(transport: str, copies: int) -> None:
    """It is sent in slices: a snapshot of 8 MB costs 10 mute readers far less than 10 copies. There are two copies at
    the reader, one for all followers, and one for all who poll."""

    async def main() -> None:
        view = FakeView()
        view.put({str(number): "x" * 10_000 for number in range(800)})
        source = ViewChannel("x", view, SETTINGS, key=["k"])
        async with serving(make_deps(views={"x": source}, settings=SETTINGS)) as port:
            async with AsyncExitStack() as stack:
                base = tracemalloc.get_traced_memory()[0]
                for _ in range(READERS):
                    await stack.enter_async_context(mute(port, transport, "view"))
                async with events(port, "view", None) as deliveries:
                    assert len((await anext(deliveries)).data["rows"]) == 800
                grown = tracemalloc.get_traced_memory()[0] - base
                assert grown < 8 * MIB * (copies + 0.5), most_of(tracemalloc.take_snapshot())

    tracemalloc.start()
    run(main())


@pytest.mark.parametrize("transport", ["sse", "websocket", "poll"])
def test_those_who_take_nothing_for_long_lose_their_place(transport: str) -> None:
    """After `stuck_s` without reading, the slot is free for another."""

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


def flood(port: int, frames: bytes, times: int, first: bytes = b"") -> bool:
    """Send frames and read nothing; False if the server closed or stopped reading."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(request("websocket", "view"))
        assert client.recv(4096).startswith(b"HTTP/1.1 101")
        client.sendall(first)
        try:
            for _ in range(times):
                client.sendall(frames)
        except OSError:
            return False
        return True


def waiting_bytes() -> int:
    """Return the bytes that the server's WebSockets have yet to send."""
    sockets = [
        websocket for websocket in gc.get_objects() if type(websocket) is BoundedWebSocket and websocket.transport
    ]
    return max((websocket.transport.get_write_buffer_size() for websocket in sockets), default=0)


def test_a_flood_of_pings_costs_no_memory() -> None:
    """Pongs for a client that does not read do not accumulate: of 16 MB, next to nothing waits."""

    async def main() -> None:
        async with serving(make_deps()) as port:
            flooding = asyncio.create_task(asyncio.to_thread(flood, port, frame(0x89, b"x" * 125) * 500, 250))
            most = 0
            while not flooding.done():
                most = max(most, waiting_bytes())
                await asyncio.sleep(0.02)
            assert 0 < most < MIB
            assert await flooding

    run(main())


def test_a_message_in_endless_fragments_is_cut_off() -> None:
    """Empty fragments have no size, so their number is bounded; the connection is closed, though they continue."""

    async def main() -> None:
        deps = make_deps()
        async with serving(deps) as port:
            assert not await asyncio.to_thread(flood, port, frame(0x00, b"") * 5_000, 10**6, first=frame(0x01, b""))
            await until(lambda: deps.connections.open == 0)

    run(main())
