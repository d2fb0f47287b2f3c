"""Reconnecting, shared by all sources: reconnect whenever a connection ends, and settle before stopping."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from penstock.core.backoff import Backoff
from penstock.core.clock import loop_time
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import PenstockError

HEALTHY_S = 30.0
"""The delays start over when a connection has lasted this long."""
SETTLE_S = 5.0
"""Seconds that a stopped source waits for the log to store the events that it has read."""
_log = logging.getLogger("penstock.collect")


async def keep_connected(
    connection: Callable[[], Awaitable[str]],
    source_writer: SourceWriter,
    status: SourceStatus,
    backoff: Backoff,
    address: str,
) -> None:
    """Run one connection of a source after another until cancelled. Events put by then become durable before the
    cancellation propagates.

    `connection` opens a connection, sets `status` when it is connected, and returns a message that tells users why the
    connection ended. An error that it raises ends the source, so it should raise only errors that reconnecting cannot
    fix.
    """
    try:
        await _connect_repeatedly(connection, status, backoff, address)
    except asyncio.CancelledError:
        await _settle_source(source_writer, address)
        raise
    except PenstockError as error:
        status.state, status.error = "failed", error.message
        raise


async def _connect_repeatedly(
    connection: Callable[[], Awaitable[str]], status: SourceStatus, backoff: Backoff, address: str
) -> None:
    attempt = 0
    while True:
        began = loop_time()
        status.state = "connecting"
        reason = await connection()
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # `wait_for` of Python 3.11, used by client libraries, may lose it
            raise asyncio.CancelledError
        if loop_time() - began >= HEALTHY_S:
            attempt = 0
        _log.warning("source %s: %s", address, reason)
        status.state, status.error = "waiting", reason
        await asyncio.sleep(backoff.wait_s(attempt, random.random()))
        attempt += 1
        status.reconnects += 1


async def _settle_source(source_writer: SourceWriter, address: str) -> None:
    try:
        async with asyncio.timeout(SETTLE_S):
            await source_writer.settle()
    except (TimeoutError, PenstockError) as error:
        _log.error("source %s stopped before all of its events could be written: %s", address, error)
