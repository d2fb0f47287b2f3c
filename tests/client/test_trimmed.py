"""The log is trimmed under readers of every transport, while the gateway is killed and connections are cut: each reader
gets every event once and in order, or a `reset` where some are gone."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.client import Client, Events, Reset
from tests.client.suite import QUICK, TRANSPORTS
from tests.client.test_crashes import DEADLINE_S, trouble
from tests.collect.support import fix, in_loop
from tests.gateway import RunningGateway, running_gateway
from tests.network import Proxy, listening
from tests.serve.webhooks.receiver import OK, Received, Receiver, receiving, status
from tests.serve.webhooks.test_killed import ENVIRON, persist

FEW, ROUND = 40, 500
KEPT = {
    "PENSTOCK_KEEP_BYTES": "400000",
    "PENSTOCK_UPKEEP_S": "0.1",
    "PENSTOCK_PAGE_EVENTS": "100",
    "PENSTOCK_WEBHOOK_PENDING_MAX": "5",
}
RESET = -1


@dataclass
class Reader:
    """The deliveries to one reader, in order: the numbers of events, and `RESET`."""

    url: str
    transport: Any
    given: list[int] = field(default_factory=list)
    cursor: str = "earliest"

    async def read(self, upto: int) -> None:
        """Continue from where it stopped, until it has reached an event."""
        async with (
            Client(self.url, timing=QUICK) as client,
            client.follow(stream="fixes", since=self.cursor, transport=self.transport) as messages,
        ):
            async for message in messages:
                if isinstance(message, Reset):
                    self.given.append(RESET)
                elif isinstance(message, Events):
                    self.given += map(number_of, message.events)
                self.cursor = message.cursor
                if self.given and self.given[-1] >= upto:
                    return


def number_of(event: dict[str, Any]) -> int:
    return int(event["fix_id"].removeprefix("f"))


class Sender:
    """Posts events, numbered from 0 on, each once."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=DEADLINE_S)
        self.sent = 0

    async def send(self, count: int) -> None:
        await persist(self._client, "POST", "/v1/streams/fixes", [fix(self.sent + index) for index in range(count)])
        self.sent += count

    async def earliest(self) -> int:
        page = await persist(self._client, "GET", "/v1/streams/fixes?since=earliest&limit=1")
        return number_of(page["events"][0])

    async def hook(self, receiver: Receiver) -> None:
        asked = {"url": receiver.url, "stream": "fixes", "since": "earliest", "batch": 50}
        await persist(self._client, "POST", "/v1/webhooks", asked)

    async def close(self) -> None:
        await self._client.aclose()


def require_no_silent_hole(given: list[int], last: int) -> None:
    """Check that each number is one more than the one before it, except after a reset, where it may be higher."""
    assert RESET in given, "some were gone"
    assert given[-1] == last
    before = RESET
    for previous, number in zip([RESET, *given], given, strict=False):
        if number != RESET:
            assert number == before + 1 or (previous == RESET and number > before)
            before = number


def hooked(receiver: Receiver) -> list[int]:
    event_numbers: list[int] = []
    for message in receiver.taken.values():
        is_reset = message.json["type"].endswith(".reset")
        event_numbers += [RESET] if is_reset else map(number_of, message.data["events"])
    return event_numbers


@pytest.mark.timeout(600)
@in_loop
async def test_what_is_trimmed_under_a_reader_is_told_on_every_transport(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, down = random.Random(seed), asyncio.Event()

    async def behave(receiver: Receiver, message: Received, writer: asyncio.StreamWriter) -> bytes | None:
        return status(503) if down.is_set() else OK

    async with AsyncExitStack() as stack:
        gateway = stack.enter_context(running_gateway(tmp_path / "data", **(ENVIRON | KEPT)))
        proxy = Proxy(lambda: gateway.port, draw, bytes_max=60_000)
        await stack.enter_async_context(listening(proxy))
        receiver = await stack.enter_async_context(receiving(behave))
        sender = Sender(gateway)
        stack.push_async_callback(sender.close)
        readers = [Reader(f"http://127.0.0.1:{proxy.port}", transport) for transport in TRANSPORTS]
        async with asyncio.timeout(DEADLINE_S):
            await sender.send(FEW)
            await sender.hook(receiver)
            await asyncio.gather(*(reader.read(FEW - 1) for reader in readers))
            while len(hooked(receiver)) < FEW:
                await asyncio.sleep(0.02)
            down.set()
            while await sender.earliest() < 2 * FEW:
                await sender.send(ROUND)
            await trouble(gateway, draw, 1)  # its memory is lost too
            down.clear()
            reading = [asyncio.create_task(reader.read(sender.sent + ROUND - 1)) for reader in readers]
            await asyncio.gather(trouble(gateway, draw, 1), sender.send(ROUND))
            await asyncio.gather(*reading)
            while hooked(receiver)[-1:] != [sender.sent - 1]:
                await asyncio.sleep(0.02)
    print(f"{sender.sent} events, {proxy.cuts} cuts")
    for given in (*(reader.given for reader in readers), hooked(receiver)):
        require_no_silent_hole(given, sender.sent - 1)
