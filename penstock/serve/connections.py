"""Shared by live transports and long answers: the count of connections, what is held for them, a send's deadline."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from penstock.access import caller_of
from penstock.contracts import Channel, Delivery, Style
from penstock.errors import Busy, Stopping, Unauthorized
from penstock.serve.held import HeldBytes
from penstock.settings import Settings

T = TypeVar("T")
STUCK_S = 30.0
SLICE_BYTES = 64 * 1024
"""A large body goes out in pieces, each after the client took the one before: no reader holds a copy of a whole one."""
FAREWELL_S = 1.0
"""A last word to a client must not hold up a shutdown."""


class Connections:
    """Live connections of all transports, counted against one limit. Belongs to one event loop.

    A send that the client does not take for `stuck_s` ends its connection, so that those who never read cannot hold
    every place.
    """

    def __init__(self, most: int, *, stuck_s: float = STUCK_S, held_bytes_max: int = Settings.held_bytes_max) -> None:
        self.most = most
        self.stuck_s = stuck_s
        self.held = HeldBytes(held_bytes_max)
        self.open = 0
        self._own: Counter[str] = Counter()
        self.cut_off = 0
        """Those that took nothing for so long that they were let go."""

    @contextmanager
    def one(self, who: str) -> Iterator[None]:
        """Hold a place of a caller while in the block. `Busy` if there is none, or half of them are this caller's:
        there is always room for another. One without a name has no share."""
        if self.open >= self.most:
            raise Busy(f"all {self.most} live connections are taken", retry_after_s=5)
        share = max(1, self.most // 2)
        if who and self._own[who] >= share:
            raise Busy(f"you hold {share} live connections, and no one may hold more", retry_after_s=5)
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
        """Wait for a send; `TimeoutError` if the client does not take it in time."""
        try:
            async with asyncio.timeout(self.stuck_s):
                await sending
        except TimeoutError:
            self.cut_off += 1
            raise


def no_room() -> Busy:
    """The error for a client whose answer `Connections.held` has no room for."""
    return Busy("too much is held already for clients that are slow to read", retry_after_s=5)


@asynccontextmanager
async def following(
    channel: Channel, since: str | None, style: Style | None = None
) -> AsyncIterator[AsyncIterator[Delivery]]:
    """Follow a channel and let go of it at the end of the block, however that is reached."""
    deliveries = channel.follow(since, style)
    try:
        yield deliveries
    finally:
        if isinstance(deliveries, AsyncGenerator):
            await deliveries.aclose()


async def first_of(*waits: asyncio.Task[Any]) -> None:
    """Return when the first task is done; all of them are over then. A task's error is left in it."""
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def while_heard(work: Coroutine[Any, Any, T], request: Request, closing: asyncio.Event) -> T:
    """Return what `work` does, unless the client goes, or its key, or the gateway: then the work is cancelled. The body
    of the request must have been read."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    stopping = asyncio.create_task(closing.wait())
    over = asyncio.create_task(caller_of(request.scope).ended())
    await first_of(working, gone, stopping, over)
    if not over.cancelled():
        raise Unauthorized("the key that this was asked with is revoked or expired")
    if working.cancelled():
        raise Stopping("the app is stopping; ask again")
    return working.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
