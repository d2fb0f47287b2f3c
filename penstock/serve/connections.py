"""Limits shared by live transports and long responses: connection count, bytes held for clients, and send deadline."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from penstock.core.access import caller_of
from penstock.core.contracts import Channel, Delivery, Style
from penstock.core.errors import Busy, Stopping, Unauthorized
from penstock.core.settings import Settings
from penstock.core.tasks import first_of
from penstock.serve.held import HeldBytes

T = TypeVar("T")
STUCK_S = 30.0
SLICE_BYTES = 64 * 1024
"""The size of the slices in which large bodies are sent.

A slice is sent only after the client has received the previous one, so no reader needs a copy of the whole body.
"""
FAREWELL_S = 1.0
"""Time limit for sending the last message to a client, so that a slow client does not delay a shutdown."""


class Connections:
    """The live connections on all transports, counted against one limit. Not thread-safe.

    A connection ends if its client does not receive a message within `stuck_s`, so clients that never read cannot
    occupy all slots.
    """

    def __init__(self, most: int, *, stuck_s: float = STUCK_S, held_bytes_max: int = Settings.held_bytes_max) -> None:
        self.most = most
        self.stuck_s = stuck_s
        self.held = HeldBytes(held_bytes_max)
        self.open = 0
        self._own: Counter[str] = Counter()
        self.cut_off = 0
        """Number of connections closed because the client read nothing for too long."""

    @contextmanager
    def one(self, who: str) -> Iterator[None]:
        """Hold a connection slot for a caller for the duration of the block.

        Raises `Busy` if no slot is free, or if this caller already holds half of all slots, so that one caller cannot
        take them all. For a caller without a name, only the first limit applies.
        """
        if self.open >= self.most:
            raise Busy(f"all {self.most} live connections are in use", retry_after_s=5)
        share = max(1, self.most // 2)
        if who and self._own[who] >= share:
            raise Busy(f"you already have {share} live connections, the maximum for one caller", retry_after_s=5)
        self.open += 1
        self._own[who] += 1
        try:
            yield
        finally:
            self.open -= 1
            self._own[who] -= 1
            if not self._own[who]:
                del self._own[who]

    async def sent(self, sending: Awaitable[None]) -> None:
        """Wait until a live message is sent. Raises `TimeoutError` if the client does not receive the message in
        time."""
        try:
            async with asyncio.timeout(self.stuck_s):
                await sending
        except TimeoutError:
            self.cut_off += 1
            raise


def no_room() -> Busy:
    """Return the error for a response that does not fit into `Connections.held`."""
    return Busy("too much data is already waiting for slow clients", retry_after_s=5)


@asynccontextmanager
async def following(
    channel: Channel, since: str | None, style: Style | None = None
) -> AsyncIterator[AsyncIterator[Delivery]]:
    """Follow a channel for the duration of the block. The follower is closed even if the block raises."""
    deliveries = channel.follow(since, style)
    try:
        yield deliveries
    finally:
        if isinstance(deliveries, AsyncGenerator):
            await deliveries.aclose()


async def while_heard(work: Coroutine[Any, Any, T], request: Request, closing: asyncio.Event) -> T:
    """Run `work` and return its result, unless the client disconnects, its key becomes invalid or the gateway stops.

    In those cases the work is cancelled. The request body must already have been read.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(request.receive))
    stopping = asyncio.create_task(closing.wait())
    over = asyncio.create_task(caller_of(request.scope).ended())
    await first_of(working, gone, stopping, over)
    if not over.cancelled():
        raise Unauthorized("the key of this request has been revoked or has expired")
    if working.cancelled():
        raise Stopping("the app is stopping; try again")
    return working.result()


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a request disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
