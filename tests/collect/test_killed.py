"""Acknowledged events are in the log once: over kill -9 of the gateway, and a network that cuts, delays, truncates.

Clients follow the documented rules: they resend everything not acknowledged, by the producer and number of a message,
by `Idempotency-Key`, or by the ids of events.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from penstock.core.columns import event_rows
from penstock.queue import EmbeddedLog
from tests.collect.support import fix, in_loop
from tests.gateway import RunningGateway, running_gateway
from tests.network import Proxy, listening

HEAL_S = 60.0
RETRY_S = 0.05
LOST = (OSError, TimeoutError, ConnectionClosed, InvalidHandshake, InvalidMessage, EOFError, httpx.HTTPError)
"""The errors that a client may see when a connection breaks."""


@dataclass
class Client:
    """Sends messages of one to five events, and records which of them were acknowledged."""

    name: str
    stream: str
    port: int
    draw: random.Random
    sent: list[list[str]] = field(default_factory=list)
    acknowledged: int = 0
    tries: int = 0
    finish: bool = False

    def events(self, seq: int) -> list[dict[str, Any]]:
        """Return the events of a message; the same whenever it is sent."""
        while len(self.sent) <= seq:
            count = self.draw.randrange(1, 6)
            self.sent.append([f"{self.name}-{len(self.sent)}-{number}" for number in range(count)])
        names = self.sent[seq]
        return [{"name": name} if self.stream == "notes" else fix(0) | {"fix_id": name} for name in names]

    def is_done(self) -> bool:
        return self.finish and self.acknowledged == len(self.sent)


class Publisher(Client):
    """Publishes by WebSocket, with several messages in flight."""

    window = 20

    async def run(self) -> None:
        url = f"ws://127.0.0.1:{self.port}/v1/streams/{self.stream}/publish?producer={self.name}"
        while not self.is_done():
            self.tries += 1
            with suppress(*LOST):
                async with connect(url, compression=None, open_timeout=5, close_timeout=0.1) as connection:
                    await self._publish(connection)
            await asyncio.sleep(RETRY_S)

    async def _publish(self, connection: ClientConnection) -> None:
        following = self.acknowledged
        assert json.loads(await connection.recv())["event"] == "open"
        while not self.is_done():
            end = len(self.sent) if self.finish else self.acknowledged + self.window
            while following < min(end, self.acknowledged + self.window):
                await connection.send(json.dumps({"seq": following, "events": self.events(following)}))
                following += 1
            async with asyncio.timeout(5):
                message = json.loads(await connection.recv())
            assert message["event"] == "ack", message
            given = sum(map(len, self.sent[self.acknowledged : message["seq"] + 1]))
            assert message["accepted"] + message["duplicates"] == given, message
            self.acknowledged = message["seq"] + 1
            await asyncio.sleep(self.draw.random() * 0.01)


class Poster(Client):
    """Posts one request at a time."""

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=5) as client:
            while not self.is_done():
                if await self._is_taken(client):
                    self.acknowledged += 1
                await asyncio.sleep(self.draw.random() * RETRY_S)

    async def _is_taken(self, client: httpx.AsyncClient) -> bool:
        events = self.events(self.acknowledged)
        self.tries += 1
        headers = {"idempotency-key": f"{self.name}-{self.acknowledged}"} if self.stream == "notes" else {}
        url = f"http://127.0.0.1:{self.port}/v1/streams/{self.stream}"
        with suppress(*LOST):
            answer = await client.post(url, json=events, headers=headers)
            if answer.status_code == 200:
                receipt = answer.json()
                assert receipt["accepted"] + receipt["duplicates"] == len(events), receipt
                return True
            assert answer.status_code in (429, 503), answer.text
        return False


async def trouble(gateway: RunningGateway, draw: random.Random, kills: int, taken: Callable[[], int]) -> None:
    """Kill the gateway while it receives events, at a random moment, and sometimes while it starts."""
    for _ in range(kills):
        goal = taken() + draw.choice([0, draw.randrange(1, 200), draw.randrange(1, 200)])
        await wait_until(lambda: taken() >= goal)  # noqa: B023
        await asyncio.sleep(draw.random() ** 2)  # the moment of the kill is the random part of this test
        await asyncio.to_thread(gateway.kill)
        gateway.start()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HEAL_S):
        while not condition():
            await asyncio.sleep(0.01)


def stored(streams: Path) -> Counter[str]:
    """Return how often each event is in the log."""
    log, counts = EmbeddedLog(streams, read_only=True), Counter[str]()
    try:
        for stream, name in (("notes", "name"), ("fixes", "fix_id")):
            for partition, end in log.ends(stream).items():
                for batch in log.read(stream, partition, 0, end):
                    counts.update(json.loads(row)[name] for row in event_rows(batch))
    finally:
        log.close()
    return counts


async def bad_day(folder: Path, kills: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    with running_gateway(folder) as gateway:
        proxy = Proxy(lambda: gateway.port, draw, bytes_max=20_000)
        async with listening(proxy):
            kinds: list[tuple[Callable[..., Publisher | Poster], str]] = [
                (kind, stream) for kind in (Publisher, Poster) for stream in ("notes", "fixes")
            ]
            clients = [
                kind(f"{kind.__name__}-{stream}-{number}", stream, proxy.port, random.Random(draw.random()))
                for kind, stream in kinds
                for number in range(3)
            ]
            running = asyncio.gather(*(client.run() for client in clients))
            await trouble(gateway, draw, kills, lambda: sum(client.acknowledged for client in clients))
            await wait_until(lambda: proxy.cuts > 0 and all(client.acknowledged for client in clients))
            proxy.calm = True
            for client in clients:
                client.finish = True
            async with asyncio.timeout(HEAL_S):
                await running
    sent = Counter(name for client in clients for message in client.sent for name in message)
    tries = sum(client.tries for client in clients)
    print(f"{sent.total()} events, {tries} tries, {kills} kills, {proxy.cuts} cuts")
    assert stored(gateway.streams) == sent
    assert all(client.acknowledged for client in clients)


@in_loop
async def test_what_is_acknowledged_is_in_the_log_once_after_a_bad_moment(tmp_path: Path) -> None:
    await bad_day(tmp_path, 6)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@in_loop
async def test_what_is_acknowledged_is_in_the_log_once_after_a_bad_day(tmp_path: Path) -> None:
    await bad_day(tmp_path, 150)
