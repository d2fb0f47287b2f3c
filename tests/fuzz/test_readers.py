"""A hundred clients that never read, on each live transport: bounded memory, and no effect on others."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.fuzz.gateway import RunningGateway, gateway
from tests.fuzz.good import good_client
from tests.harness import wait_for
from tests.serve.test_slow import frame, request

DEAF = 100
ROUNDS = 20
BATCH, SIZE = 100, 10_000
GROWTH_MIB_MAX = 100
"""Memory that the gateway may take for 20 MB of deliveries, held by 100 clients: far below 100 times 20 MB."""
GIVING_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Make the allocators return large pieces once they are freed: kept ones would be twice the held memory."""
LIVE_PATH = {"sse": b"GET /v1/streams/orders/live HTTP/1.1\r\nHost: localhost\r\n\r\n", "websocket": b""}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunningGateway]:
    with gateway(tmp_path / "data", **GIVING_BACK) as running:
        yield running


@contextmanager
def deaf(served: RunningGateway, transport: str) -> Iterator[None]:
    """Open a connection that requests everything and reads only the first answer."""
    client = socket.socket()
    with client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", served.port))
        client.sendall(LIVE_PATH[transport] or request("websocket", "stream").replace(b"Host: x", b"Host: localhost"))
        assert client.recv(1024).startswith(b"HTTP/1.1 ")
        if transport == "websocket":
            client.sendall(frame(0x81, b'{"op":"subscribe","id":"1","stream":"orders"}'))
        yield


def orders(mark: int) -> list[dict[str, object]]:
    return [{"order": f"{mark}-{number}", "buyer": "x" * SIZE} for number in range(BATCH)]


@pytest.mark.parametrize("transport", [pytest.param("sse", marks=pytest.mark.soak), "websocket"])
def test_a_hundred_that_never_read_cost_little_and_nobody_else(served: RunningGateway, transport: str) -> None:
    """A reader beside them gets every event, in order, and a producer every answer."""
    served.post("orders", json.dumps(orders(-1)).encode())
    sockets = served.descriptors("socket:")
    url = f"ws://127.0.0.1:{served.port}/v1/live"
    with ExitStack() as stack:
        for _ in range(DEAF):
            stack.enter_context(deaf(served, transport))
        wait_for(lambda: served.descriptors("socket:") >= sockets + DEAF, 20, "all connections")
        reader = stack.enter_context(connect(url, compression=None, max_size=None))
        reader.send('{"op":"subscribe","id":"1","stream":"orders"}')
        assert json.loads(reader.recv(20))["event"] == "subscribed"
        before = served.forget_peak()
        with good_client(served):
            for mark in range(ROUNDS):
                assert served.post("orders", json.dumps(orders(mark)).encode()).status_code == 200
                assert next_batch(reader) == [order["order"] for order in orders(mark)]
        assert served.peak_mib < before + GROWTH_MIB_MAX
    wait_for(lambda: served.descriptors("socket:") <= sockets + 1, 40, "the end of their connections")


def next_batch(reader: object) -> list[str]:
    """Return the next orders posted by this test, in the order of their arrival, without those of the good client."""
    names: list[str] = []
    while len(names) < BATCH:
        data = json.loads(reader.recv(20)).get("data", {})  # type: ignore[attr-defined]
        names += [event["order"] for event in data.get("events", ()) if len(event["buyer"]) == SIZE]
    return names
