"""A bad network between a client and a server: it cuts, delays and truncates."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

DELAY_S_MAX = 0.03
REFUSED = 0.15
"""The share of connections that are dropped before a byte goes through."""
_ports = random.SystemRandom()
"""The processes of a test run draw the same from their common seed, and ports must differ."""


@dataclass
class Asked:
    """One request, as the server got it."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


class Proxy:
    """Every connection lives for a random number of bytes, counted both ways. `calm` lets all through."""

    faults: tuple[str, ...] = ("cut", "truncate", "delay")

    def __init__(self, target: Callable[[], int], draw: random.Random, bytes_max: int = 5000) -> None:
        """`target` is called for the server's port at each connection."""
        self._target = target
        self._draw = draw
        self._bytes_max = bytes_max
        self.calm = False
        self.port = 0
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(self._serve(reader, writer))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            writer.transport.abort()
            return
        if not self.calm and self._draw.random() < REFUSED:
            writer.transport.abort()
        fault = self._draw.choice(self.faults)
        left = [self._draw.randrange(50, self._bytes_max)]
        ways = [
            asyncio.create_task(self._pass(reader, far_writer, left, fault, "up")),
            asyncio.create_task(self._pass(far_reader, writer, left, fault, "down")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            writer.transport.abort()
            far_writer.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int], fault: str, way: str
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(4096):
                if self.calm:
                    writer.write(chunk)
                    continue
                if fault == "delay":
                    await asyncio.sleep(self._draw.random() * DELAY_S_MAX)
                self.see(chunk, fault, way)
                left[0] -= len(chunk)
                if left[0] < 0:
                    self.cuts += 1
                    if fault == "truncate":
                        writer.write(chunk[: self._draw.randrange(len(chunk))])
                    return
                writer.write(chunk)

    def see(self, chunk: bytes, fault: str, way: str) -> None:
        """Called with each piece, for faults that know the protocol."""


@asynccontextmanager
async def listening(proxy: Proxy) -> AsyncIterator[None]:
    """Run the proxy on a free port of the loopback, while in the block."""
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, limit=4096)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        await close(server)
        await proxy.close()


async def close(server: asyncio.Server) -> None:
    """Stop listening. A connection that was just accepted is let in first: asyncio forgets those of a closed server."""
    await turns()
    server.close()


async def turns() -> None:
    """Let the loop run its pending callbacks."""
    for _ in range(10):
        await asyncio.sleep(0)


@contextmanager
def refusing() -> Iterator[int]:
    """Reserve a port of the loopback where nobody listens, while in the block: it is taken, so nobody else gets it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def unlikely_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a free port for a server that will have it later, and again after a restart: below those that the kernel
    gives to anyone who asks for any port, so that nobody gets it by chance meanwhile."""
    while True:
        port = _ports.randrange(15_000, 30_000)
        with socket.socket(type=kind) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
