"""The WebSocket of a caller that has to wait for its rate: what arrives is held as it is, and the session ends with its
connection."""

from __future__ import annotations

import asyncio
import gc
import json
import socket

import pytest

from penstock.core.access import Caller
from penstock.core.access.caller import Bucket
from penstock.core.access.grants import ALL
from penstock.core.settings import Settings
from penstock.http.protocol import BoundedWebSocket
from penstock.serve.channels.stream import StreamChannel
from tests.clocks import DEADLINE_S, until
from tests.serve.fakes import FakeLog, make_deps, run, serving
from tests.serve.test_slow import frame, request

TEXT, BINARY, CLOSE = 0x81, 0x82, 0x88


def command(**message: str) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


@pytest.mark.parametrize("more", [b"", frame(BINARY, b"") * 10_000, frame(CLOSE, b"")])
def test_a_session_that_waits_for_the_rate_ends_with_its_connection(more: bytes) -> None:
    """It gives back its place among the live connections. Frames of one read are not parsed before their turn."""

    async def main() -> None:
        caller = Caller("key:ann", ALL, Bucket(0.001))
        deps = make_deps(streams={"s": StreamChannel("s", FakeLog(), Settings(heartbeat_s=600))})
        async with asyncio.timeout(DEADLINE_S), serving(deps, caller) as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setblocking(False)
                loop, heard = asyncio.get_running_loop(), b""
                await loop.sock_sendall(client, request("websocket", "stream"))
                while b"\r\n\r\n" not in heard:
                    heard += await loop.sock_recv(client, 65536)
                await loop.sock_sendall(client, command(op="ping"))
                while b"pong" not in heard:
                    heard += await loop.sock_recv(client, 65536)
                protocol = next(
                    one for one in gc.get_objects() if type(one) is BoundedWebSocket and not one.disconnected
                )
                caller.spend(1000)
                await loop.sock_sendall(client, command(op="subscribe", id="1", stream="s") + more)
                if len(more) > 1000:
                    await until(lambda: protocol.read_paused)
                    assert protocol.queue.qsize() == 1
                assert deps.connections._own == {"key:ann": 1}
            await until(lambda: not deps.connections._own)
            await until(lambda: not protocol.tasks)

    run(main())
