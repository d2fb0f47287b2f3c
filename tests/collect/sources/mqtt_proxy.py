"""A bad network between an MQTT client and its broker: it cuts, delays, truncates, and connects a second time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.collect.sources.mqtt_broker import Mosquitto


class Proxy:
    """Every connection lives for a random number of bytes. `calm` lets all through."""

    def __init__(self, broker: Mosquitto, draw: random.Random) -> None:
        self._broker = broker
        self._draw = draw
        self.calm = False
        self.port = 0
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(self._serve(reader, writer))

    async def close(self) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        except OSError:
            writer.transport.abort()
            return
        if not self.calm and self._draw.random() < 0.15:
            writer.transport.abort()  # dropped before a byte went through
        fault = self._draw.choice(("cut", "truncate", "delay", "twice"))
        left = [self._draw.randrange(50, 5000)]
        ways = [
            asyncio.create_task(self._pass(reader, far_writer, left, fault, "up")),
            asyncio.create_task(self._pass(far_reader, writer, left, fault, "down")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ways:
                each.cancel()
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
                    await asyncio.sleep(self._draw.random() * 0.03)
                if fault == "twice" and way == "up" and chunk[0] == 0x10:
                    asyncio.get_running_loop().call_later(0.2 * self._draw.random(), self._again, chunk)
                left[0] -= len(chunk)
                if left[0] < 0:
                    self.cuts += 1
                    if fault == "truncate":
                        writer.write(chunk[: self._draw.randrange(len(chunk))])
                    return
                writer.write(chunk)

    def _again(self, hello: bytes) -> None:
        """The same CONNECT a second time, as a network may that sends late what it held back: it takes the session."""
        self._keep(self._stay(hello))

    async def _stay(self, hello: bytes) -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
            writer.write(hello)
            try:
                await asyncio.sleep(self._draw.random() * 0.1)
            finally:
                writer.transport.abort()


@asynccontextmanager
async def bad_network(broker: Mosquitto, draw: random.Random) -> AsyncIterator[Proxy]:
    proxy = Proxy(broker, draw)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, limit=4096)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
