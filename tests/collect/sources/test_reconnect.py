"""Reconnecting, which all sources share."""

from __future__ import annotations

import asyncio

import pytest

from penstock.collect.sources.reconnect import keep_connected
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus
from tests.collect.support import opened
from tests.memory_log import MemoryLog

DEADLINE_S = 30.0


def test_a_source_ends_if_its_client_library_loses_the_cancellation() -> None:
    """As `wait_for` does in Python 3.11 if a connection is refused in the same moment."""
    connections = 0

    async def lossy() -> str:
        nonlocal connections
        connections += 1
        assert connections == 1, "it has connected again"
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            return "refused"
        return "not cancelled"

    async def check() -> None:
        async with asyncio.timeout(DEADLINE_S), opened(MemoryLog()) as rig:
            writer = rig.ingress.writer_for_source("feed", "raw")
            running = asyncio.create_task(keep_connected(lossy, writer, SourceStatus(), Backoff(0.01, 0.01), "feed"))
            while not connections:
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(check())
