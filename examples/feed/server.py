"""Sends each message in the feed to all listeners when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from examples.feed.play import Message, play

PATH = "/rsvps"
WAITING_MAX = 10_000
"""The number of queued messages, about a kilobyte each, at which a slow listener is disconnected."""
STALE = timedelta(seconds=5)
"""Messages older than this are skipped, so that after a laptop wakes from sleep the feed continues with current
messages."""


class Audience:
    """All connected listeners. Each has its own bounded queue, so a slow listener does not delay the others."""

    def __init__(self) -> None:
        self._queues: dict[ServerConnection, asyncio.Queue[str]] = {}

    def send(self, text: str) -> None:
        """Queue a message for every listener without blocking, and disconnect listeners that are too far behind."""
        for listener, queue in self._queues.items():
            if queue.full():
                listener.transport.abort()
            else:
                queue.put_nowait(text)

    async def attend(self, listener: ServerConnection) -> None:
        """Send all messages from now on, in order, to one listener until its connection is closed."""
        queue = self._queues[listener] = asyncio.Queue(WAITING_MAX)
        forwarding = asyncio.create_task(_forward(queue, listener))
        try:
            await listener.wait_closed()
        finally:
            del self._queues[listener]
            forwarding.cancel()


async def _forward(queue: asyncio.Queue[str], listener: ServerConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            await listener.send(await queue.get())


async def pace(messages: Iterator[Message], audience: Audience) -> None:
    """Send each message when it is due, forever."""
    for message in messages:
        wait_s = (message.at - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(max(wait_s, 0))
        if wait_s > -STALE.total_seconds():
            audience.send(message.text)


@asynccontextmanager
async def serving(port: int, seed: int, rate: float) -> AsyncIterator[str]:
    """Run the feed for the duration of the block, and yield its address. With port 0, any free port is used."""
    audience = Audience()
    async with serve(audience.attend, "127.0.0.1", port, process_request=_only_the_feed, compression=None) as server:
        playing = asyncio.create_task(pace(play(seed, datetime.now(UTC), rate), audience))
        try:
            yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
        finally:
            playing.cancel()


def _only_the_feed(connection: ServerConnection, request: Request) -> Response | None:
    if request.path == PATH:
        return None
    return connection.respond(HTTPStatus.NOT_FOUND, f"the feed is at {PATH}\n")
