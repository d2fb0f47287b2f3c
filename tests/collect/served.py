"""The ingestion endpoints behind a real uvicorn on uvloop, set up as in the gateway, and a client that sends raw bytes.

The server runs in a separate thread, so that a test can block on its sockets.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.collect.http import PREFIX
from penstock.collect.protocol import post_protocol
from penstock.collect.publish import SUFFIX, PublishEndpoint
from penstock.core.access import Gate
from penstock.core.settings import Settings
from penstock.http.guard import guarded
from penstock.runtime.gateway import server_config
from tests.clocks import until
from tests.collect.support import Rig, opened
from tests.memory_log import DEADLINE_S, MemoryLog

_DATE = re.compile(rb"\r\ndate: [^\r]+ GMT\r\n")


@dataclass
class Served:
    """A running server. `asgi` has the method of each request on the slow path, `packets` the sizes of reads."""

    log: MemoryLog
    port: int = 0
    asgi: list[str] = field(default_factory=list, repr=False)
    packets: list[int] = field(default_factory=list, repr=False)
    errors: list[MutableMapping[str, Any]] = field(default_factory=list)
    window: int = 100
    gate: Gate = field(default_factory=Gate)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    rig: Rig = field(init=False)
    server: uvicorn.Server = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)

    @property
    def pending(self) -> int:
        return self.rig.ingress.stream_ingress("fixes").group_commit.pending_events

    @property
    def connections(self) -> list[Any]:
        return list(self.server.server_state.connections)

    def strain(self, reason: str | None) -> None:
        """Start or stop shedding events of `fixes`."""

        async def shed() -> None:
            self.rig.ingress.shed("fixes", reason)

        asyncio.run_coroutine_threadsafe(shed(), self.loop).result(DEADLINE_S)

    def close_door(self) -> None:
        asyncio.run_coroutine_threadsafe(self.rig.ingress.close(), self.loop).result(DEADLINE_S)

    async def answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle a request: posts to streams as in the gateway, WebSockets that send events, silent WebSockets,
        and 405 for the rest."""
        if scope["type"] == "websocket" and scope["path"].endswith(SUFFIX):
            endpoint = PublishEndpoint(self.rig.ingress, self.closing, window=self.window)
            await endpoint(scope["path"].removeprefix(PREFIX).removesuffix(SUFFIX), scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
            return
        if scope["method"] == "POST" and scope["path"].startswith(PREFIX):
            await self.rig.endpoint(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 405, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    def protocol(self, short: bool, settings: Settings) -> type[HttpToolsProtocol]:
        base: Any = post_protocol(self.rig.ingress, settings, self.gate)
        packets = self.packets

        class Observed(base):  # type: ignore[misc]
            stream_ingresses = base.stream_ingresses if short else {}

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                packets.append(len(data))

        return Observed


@contextmanager
def serving(
    *, short: bool = True, settings: Settings | None = None, gate: Gate | None = None, **options: Any
) -> Iterator[Served]:
    """Run a server on a free port of the loopback; with `short` false all requests go by ASGI. `fixes` has these
    options."""
    chosen, served = settings or Settings(), Served(MemoryLog(), gate=gate or Gate())
    started: Future[None] = Future()
    thread = threading.Thread(target=uvloop.run, args=(_serve(served, short, chosen, options, started),))
    thread.start()
    try:
        started.result(DEADLINE_S)
        yield served
    finally:
        served.log.gate.set()
        if hasattr(served, "server"):
            served.server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert served.errors == []


async def _serve(
    served: Served, short: bool, settings: Settings, options: dict[str, Any], started: Future[None]
) -> None:
    served.loop = asyncio.get_running_loop()
    served.loop.set_exception_handler(lambda _, context: served.errors.append(context))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that an unread answer shows soon
    served.port = listener.getsockname()[1]
    application = guarded(served.answer, served.gate)

    async def asgi(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        served.asgi.append(scope.get("method", scope["type"]))
        await application(scope, receive, send)

    async with opened(served.log, settings, **options) as served.rig:
        config = server_config(asgi, settings, served.protocol(short, settings), served.gate.tls)
        served.server = uvicorn.Server(config)
        running = asyncio.create_task(served.server._serve([listener]))
        await until(lambda: served.server.started and bool(served.server.server_state.default_headers))
        started.set_result(None)
        await running


class Client:
    """One connection. Answers are returned as received, without the time in their date."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", served.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        """Send each part after the server has read the one before."""
        for number, packet in enumerate(packets):
            read = sum(self._served.packets)
            self.socket.sendall(packet)
            if number < len(packets) - 1:
                wait_for(lambda: sum(self._served.packets) >= read + len(packet))  # noqa: B023

    def answer(self, *, head_only: bool = False) -> bytes:
        """Return the next answer, or the part of it received before the end of the connection."""
        lines = []
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            lines.append(line)
        lines.append(line)
        head = b"".join(lines)
        length = re.search(rb"content-length: (\d+)", head)
        content = self._reader.read(int(length[1])) if length and not head_only else b""
        return _DATE.sub(b"\r\ndate: now\r\n", head) + content

    def answers(self, count: int) -> list[bytes]:
        """Return `count` answers, and wait for the end of the connection if the last one announces it."""
        answers = [self.answer() for _ in range(count)]
        if b"connection: close" in answers[-1]:
            assert self.is_at_end()
        return answers

    def is_at_end(self) -> bool:
        """Return whether the server has closed; waits for that or for another byte."""
        try:
            return self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    def is_silent(self) -> bool:
        """Return whether everything received was read."""
        self.socket.setblocking(False)
        try:
            return not self._reader.peek(1)
        finally:
            self.socket.settimeout(DEADLINE_S)

    def reset(self) -> None:
        """Disconnect as a process does that is killed with bytes unread."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.__exit__()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.0005)


def request(
    content: bytes = b"",
    *headers: str,
    line: str = "POST /v1/streams/fixes HTTP/1.1",
    length: int | None = None,
    host: str = "127.0.0.1:8000",
) -> bytes:
    """Return the bytes of one request. Without a Content-Length if `length` is below 0."""
    declared = len(content) if length is None else length
    named = [f"Host: {host}", *headers, *([f"Content-Length: {declared}"] if declared >= 0 else [])]
    return "\r\n".join([line, *named, "", ""]).encode() + content


def exchange(served: Served, packets: Sequence[bytes], answers: int) -> list[bytes]:
    """Return the answers that a new connection gets for these packets."""
    with Client(served) as client:
        client.send(*packets)
        return client.answers(answers)
