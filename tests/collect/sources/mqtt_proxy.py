"""A bad network between an MQTT client and its broker: besides the usual faults, it connects a second time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests import network
from tests.collect.sources.mqtt_broker import Mosquitto

CONNECT = 0x10


class Proxy(network.Proxy):
    faults = (*network.Proxy.faults, "twice")

    def see(self, chunk: bytes, fault: str, way: str) -> None:
        """Send the same CONNECT a second time, as a network may that delays packets: that takes over the session."""
        if fault == "twice" and way == "up" and chunk[0] == CONNECT:
            delay_s = 0.2 * self._draw.random()
            asyncio.get_running_loop().call_later(delay_s, lambda: self._keep(self._stay(chunk)))

    async def _stay(self, hello: bytes) -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._target())
            writer.write(hello)
            try:
                await asyncio.sleep(self._draw.random() * 0.1)
            finally:
                writer.transport.abort()


@asynccontextmanager
async def bad_network(broker: Mosquitto, draw: random.Random) -> AsyncIterator[Proxy]:
    proxy = Proxy(lambda: broker.port, draw)
    async with network.listening(proxy):
        yield proxy
