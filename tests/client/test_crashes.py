"""Programs that are killed at every step, a gateway that is killed, a network that cuts: each event is in the log once,
is processed once, and has its effect once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.client.worker import SEEN, SERVICE, TAKEN
from tests.clocks import until
from tests.collect.support import in_loop
from tests.collect.test_killed import stored
from tests.gateway import RunningGateway, running_gateway
from tests.harness import ROOT
from tests.network import Proxy, listening

PRODUCER = ("outbox.committed", "producer.sent", "producer.acknowledged")
CONSUMER = ("consumer.received", "consumer.handled", "consumer.committed", "consumer.performed", "consumer.settled")
DEADLINE_S = 300.0
CUTS = 5


class Worker:
    """A program that is restarted after each kill."""

    def __init__(self, what: str, port: int, folder: Path, transport: str) -> None:
        self._command = [
            sys.executable, "-m", "tests.client.worker", what, f"http://127.0.0.1:{port}", str(folder), transport,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, trap: str = "") -> None:
        environ = os.environ | {"PENSTOCK_FAILPOINTS": trap}
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=environ, stdin=subprocess.PIPE)

    async def killed_at(self, trap: str) -> None:
        """Run until it was killed at a failpoint, as by kill -9."""
        self.start(f"{trap}=kill")
        assert await self._ended() == -9, trap

    async def finish(self) -> None:
        """Let it end normally."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self._ended() == 0

    async def _ended(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        status = await asyncio.to_thread(self._process.wait, DEADLINE_S)
        self._process.stdin.close()
        return status

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()


def column(path: Path, query: str) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute(query)]
    except sqlite3.OperationalError:  # its table does not exist yet
        return []
    finally:
        connection.close()


async def trouble(gateway: RunningGateway, draw: random.Random, kills: int) -> None:
    """Kill the gateway repeatedly, each time a while after it has begun to answer."""
    async with httpx.AsyncClient() as client:
        for _ in range(kills):
            await client.get(f"http://127.0.0.1:{gateway.port}/v1/health", timeout=DEADLINE_S)
            await asyncio.sleep(2 * draw.random())  # the moment of the kill is the random part of this test
            await asyncio.to_thread(gateway.kill)
            gateway.start()


async def killed_everywhere(worker: Worker, points: list[str], draw: random.Random) -> None:
    for point in points:
        await worker.killed_at(f"{point}@{draw.randrange(1, 12)}")
    worker.start()


async def bad_day(folder: Path, transport: str, way: str, rounds: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    with sqlite3.connect(folder / SERVICE) as service:
        service.execute("CREATE TABLE delivered (id TEXT PRIMARY KEY, name TEXT)")
        service.execute("CREATE TABLE calls (id TEXT)")
    service.close()
    with running_gateway(folder / "data", PENSTOCK_PAGE_EVENTS="20") as gateway:  # a connection lasts a few messages
        proxy = Proxy(lambda: gateway.port, draw, bytes_max=6_000)
        async with listening(proxy):
            producer = Worker("produce", proxy.port, folder, way)
            consumer = Worker("consume", proxy.port, folder, transport)
            with contextlib.closing(producer), contextlib.closing(consumer):
                kills = [
                    killed_everywhere(worker, draw.sample(points, len(points)) * rounds, draw)
                    for worker, points in ((producer, PRODUCER), (consumer, CONSUMER))
                ]
                await asyncio.gather(trouble(gateway, draw, 3 * rounds), *kills)
                await until(lambda: proxy.cuts >= CUTS, pause_s=0.05)
                proxy.calm = True
                await producer.finish()
                logged = await asyncio.to_thread(stored, gateway.streams)
                await until(
                    lambda: set(column(folder / SERVICE, "SELECT name FROM delivered")) == set(logged), pause_s=0.05
                )
                await consumer.finish()
    taken = (folder / TAKEN).read_text().split()
    print(f"{logged.total()} events, {len(taken)} known to be taken, {proxy.cuts} cuts")
    check(folder, taken, logged, rounds)


def check(folder: Path, taken: list[str], logged: Counter[str], rounds: int) -> None:
    assert set(logged.values()) == {1}, "every event is in the log once"
    assert set(taken) <= set(logged), "all that was taken is there"
    assert Counter(column(folder / SEEN, "SELECT name FROM seen")) == logged
    assert Counter(column(folder / SERVICE, "SELECT name FROM delivered")) == logged
    calls = column(folder / SERVICE, "SELECT id FROM calls")
    again = len(calls) - len(set(calls))
    assert again >= rounds, "a kill between an effect and its note makes the call again, with the same id"


@pytest.mark.parametrize(
    ("transport", "way"), [pytest.param("websocket", "post", marks=pytest.mark.soak), ("sse", "websocket")]
)
@in_loop
async def test_each_event_is_sent_once_handled_once_and_has_its_effect_once(
    tmp_path: Path, transport: str, way: str
) -> None:
    await bad_day(tmp_path, transport, way, 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("transport", "way"), [("websocket", "websocket"), ("sse", "post"), ("poll", "post")])
@in_loop
async def test_each_event_is_sent_once_handled_once_and_has_its_effect_once_for_long(
    tmp_path: Path, transport: str, way: str
) -> None:
    await bad_day(tmp_path, transport, way, 20)
