"""The demo's feed server, with real clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from examples.feed.server import WAITING_MAX, Audience, serving

PROJECT = Path(__file__).parents[2]
DEADLINE_S = 20


def test_every_client_gets_the_live_stream_from_when_it_came() -> None:
    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), serving(0, seed=1, rate=500) as address:
            async with connect(address) as early:
                heard = [await early.recv() for _ in range(50)]
                async with connect(address) as late:
                    part = [await late.recv() for _ in range(50)]
                while heard[-50:] != part:
                    heard.append(await early.recv())

    asyncio.run(scene())


def test_the_feed_goes_on_when_a_client_leaves_without_a_word() -> None:
    async def scene() -> str | bytes:
        async with asyncio.timeout(DEADLINE_S), serving(0, seed=1, rate=500) as address:
            async with connect(address) as rude, connect(address) as polite:
                await rude.recv()
                rude.transport.abort()
                return [await polite.recv() for _ in range(200)][-1]

    assert asyncio.run(scene())


def test_a_client_that_does_not_read_is_cut_off_at_the_bound() -> None:
    async def scene() -> bool:
        audience = Audience()
        listener = Deaf()
        attending = asyncio.create_task(audience.attend(listener))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for _ in range(WAITING_MAX + 2):
            audience.send("rsvp")
        cut = listener.closed.is_set()
        await attending
        audience.send("nobody is left to hear this")
        return cut

    assert asyncio.run(scene())


class Deaf:
    """A connection whose peer never reads."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.transport = self

    def abort(self) -> None:
        self.closed.set()

    async def wait_closed(self) -> None:
        await self.closed.wait()

    async def send(self, text: str) -> None:
        await self.closed.wait()


def test_another_path_is_not_found() -> None:
    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), serving(0, seed=1, rate=50) as address:
            async with connect(address.replace("/rsvps", "/other")):
                pass

    with pytest.raises(InvalidStatus, match="404"):
        asyncio.run(scene())


def test_the_feed_process_says_its_address_and_ends_with_its_parent() -> None:
    command = [sys.executable, "-m", "examples.feed", "--port", "0", "--rate", "500", "--until-eof"]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as feed:
        assert feed.stdin is not None
        assert feed.stdout is not None
        address = feed.stdout.readline().strip()
        assert "rsvp_id" in json.loads(asyncio.run(_first(address)))
        feed.stdin.close()
        assert feed.wait(DEADLINE_S) == 0


async def _first(address: str) -> str | bytes:
    async with asyncio.timeout(DEADLINE_S), connect(address) as client:
        return await client.recv()
