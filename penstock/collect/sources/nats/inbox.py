"""One connection's ways: requests for events and what comes of them, and the acknowledgements that go back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.collect.sources.nats.consumer import is_delivery
from penstock.contracts import Intake

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

EXPIRES_S = 30.0
"""How long one request for events stands. The server keeps nothing of a connection longer than that."""
_OVER = frozenset({"404", "408"})
"""A request ends: there was nothing, or its time is up."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_FULL = frozenset({_TOO_LARGE, "Batch Completed"})
"""A request ends, under status 409: it got as many bytes, or as many events, as it asked for."""


class Interrupted(Exception):
    """A consumer can give no more; another one can. The message is for people."""


@dataclass(frozen=True)
class Limits:
    """What may wait in memory, and how long the server may be silent."""

    pending_max: int
    pending_bytes_max: int
    silent_s: float


class Inbox:
    """Where the server's messages arrive. It sends what was asked for and no more: that bounds what waits here."""

    def __init__(self, client: Client, prefix: str, stream: str, consumer: str, limits: Limits) -> None:
        self._client = client
        self._subject = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._limits = limits
        self._bytes_max = max(limits.pending_bytes_max, 2 * client.max_payload)
        self._inbox = client.new_inbox()
        self._requests = 0
        self._batch = self._wanted = 0
        self._too_large = False
        self.was_idle = False
        """Whether the last request ended without an event."""
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

    async def open(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._put, pending_msgs_limit=0, pending_bytes_limit=0)

    async def _put(self, message: Msg) -> None:
        self._arrived.put_nowait(message)

    def end(self) -> None:
        """Tell who waits that the connection has ended."""
        self._arrived.put_nowait(None)

    async def request(self) -> None:
        """Ask for events: as many as may wait, or for a single one if the next is larger than all that may."""
        heartbeat_s = min(self._limits.silent_s / 2.5, EXPIRES_S / 2)
        wanted = {"expires": _ns(EXPIRES_S), "idle_heartbeat": _ns(heartbeat_s)}
        if self._too_large:
            self._wanted = 1
        else:
            self._wanted = max(1, self._limits.pending_max // 2)
            wanted["max_bytes"] = self._bytes_max
        wanted["batch"] = self._batch = self._wanted
        self._requests += 1
        await self._client.publish(self._subject, msgspec.json.encode(wanted), f"{self._inbox}.{self._requests}")

    async def next(self) -> Msg | None:
        """The next event, or None if the request has ended. Raises `Interrupted` if nothing more can come."""
        while self._wanted > 0:
            message = await self._next()
            if is_delivery(message.reply):
                self._wanted -= 1
                self._too_large = self.was_idle = False
                return message
            headers = message.headers or {}
            status, words = headers.get("Status", ""), headers.get("Description", "")
            if status == "100" or message.subject != f"{self._inbox}.{self._requests}":
                continue
            if status not in _OVER and words not in _FULL:
                raise Interrupted(f"the consumer ended: {words or 'nobody answers for it'}")
            self.was_idle = self._wanted == self._batch
            self._too_large = words == _TOO_LARGE and self.was_idle
            break
        return None

    async def _next(self) -> Msg:
        if self._arrived.empty():
            try:
                async with asyncio.timeout(self._limits.silent_s):  # `wait_for` may lose a cancellation in Python 3.11
                    message = await self._arrived.get()
            except TimeoutError:
                raise Interrupted(f"the server was silent for {self._limits.silent_s:g} s") from None
        else:
            message = self._arrived.get_nowait()
        if message is None:
            raise Interrupted("the connection ended")
        return message


class Acknowledger:
    """Acknowledges events in the order in which they become durable. A task of its own, for one connection.

    At most `pending_max` wait here: the server gives no more than that without acknowledgement.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: asyncio.Queue[tuple[asyncio.Future[None] | None, str]] = asyncio.Queue()

    def add(self, durable: asyncio.Future[None] | None, reply: str) -> None:
        """None: it is durable already."""
        self._waiting.put_nowait((durable, reply))

    async def run(self) -> None:
        from nats.errors import Error

        while True:
            durable, reply = await self._waiting.get()
            if durable is not None and not durable.done():
                await asyncio.wait([durable])  # not `await durable`: who is cancelled there cancels it for everybody
            if durable is not None and durable.exception() is not None:
                return  # the next `put` raises the same
            with suppress(Error, OSError):  # the reading notices, and what was not acknowledged comes again
                await self._client.publish(reply, b"+ACK")
            self._waiting.task_done()

    async def finish(self, intake: Intake) -> None:
        await intake.settle()
        await self._waiting.join()
        await self._client.flush()


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
