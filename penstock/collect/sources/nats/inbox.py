"""The traffic on one connection: requests for events and their results, and acknowledgements."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.collect.sources.nats.consumer import is_delivery
from penstock.core.contracts import SourceWriter

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

EXPIRES_S = 30.0
"""Lifetime of one request for events. The server keeps nothing about a connection for longer than that."""
_OVER = frozenset({"404", "408"})
"""Statuses that end a request: there were no events, or the request has expired."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_FULL = frozenset({_TOO_LARGE, "Batch Completed"})
"""Descriptions of status 409 that end a request, because it received as many bytes, or as many events, as it asked
for."""


class ConsumerInterrupted(Exception):
    """A JetStream consumer cannot deliver any more events, but a new consumer can. The message is for users."""


@dataclass(frozen=True)
class NatsLimits:
    """Limits on the events waiting in memory, and on how long the server can be silent."""

    pending_max: int
    pending_bytes_max: int
    silent_s: float


class NatsInbox:
    """Receives the NATS server's messages. The server sends only the events that were requested, which bounds how many
    wait here."""

    def __init__(self, client: Client, prefix: str, stream: str, consumer: str, limits: NatsLimits) -> None:
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
        """Wake all waiters: the NATS connection has ended."""
        self._arrived.put_nowait(None)

    async def request(self) -> None:
        """Request as many NATS events as the limits allow, or a single event if the next one is larger than the
        limits."""
        heartbeat_s = min(self._limits.silent_s / 2.5, EXPIRES_S / 2)
        wanted = {"expires": _nanoseconds(EXPIRES_S), "idle_heartbeat": _nanoseconds(heartbeat_s)}
        if self._too_large:
            self._wanted = 1
        else:
            self._wanted = max(1, self._limits.pending_max // 2)
            wanted["max_bytes"] = self._bytes_max
        wanted["batch"] = self._batch = self._wanted
        self._requests += 1
        await self._client.publish(self._subject, msgspec.json.encode(wanted), f"{self._inbox}.{self._requests}")

    async def next(self) -> Msg | None:
        """Return the next NATS event, or None if the request has ended. Raises `ConsumerInterrupted` if no more events
        can arrive."""
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
                raise ConsumerInterrupted(f"the consumer ended: {words or 'no server responded to the request'}")
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
                raise ConsumerInterrupted(f"the server was silent for {self._limits.silent_s:g} s") from None
        else:
            message = self._arrived.get_nowait()
        if message is None:
            raise ConsumerInterrupted("the connection ended")
        return message


class Acknowledger:
    """Acknowledges NATS events in the order they become durable. Runs in a separate task, for one connection.

    At most `pending_max` wait here, because the server delivers no more than that without acknowledgement.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: asyncio.Queue[tuple[asyncio.Future[None] | None, str]] = asyncio.Queue()

    def add(self, durable: asyncio.Future[None] | None, reply: str) -> None:
        """Queue an acknowledgement. `durable` is None if the event is already durable."""
        self._waiting.put_nowait((durable, reply))

    async def run(self) -> None:
        from nats.errors import Error

        while True:
            durable, reply = await self._waiting.get()
            if durable is not None and not durable.done():
                await asyncio.wait([durable])  # not `await durable`: cancelling that would cancel it for all waiters
            if durable is not None and durable.exception() is not None:
                return  # the next `put` raises the same error
            with suppress(Error, OSError):  # the reader notices, and unacknowledged events are sent again
                await self._client.publish(reply, b"+ACK")
            self._waiting.task_done()

    async def finish(self, source_writer: SourceWriter) -> None:
        await source_writer.settle()
        await self._waiting.join()
        await self._client.flush()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
