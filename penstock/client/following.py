"""The iterator that users work with: the messages from one target, over whichever transport works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from penstock.client.asking import FollowTarget
from penstock.client.errors import TransportBlocked, Unreachable
from penstock.client.messages import RawMessage
from penstock.client.transports import Deliveries, Transport

M = TypeVar("M")


async def deliveries_by(transports: Sequence[Transport], target: FollowTarget, since: str | None) -> Deliveries:
    """Yield a client's deliveries over the first transport that works here. If that transport stops working, continue
    with the next one."""
    position, reasons = since, list[str]()
    for transport in transports:
        try:
            async with aclosing(transport.deliveries(target, position)) as deliveries:
                async for came in deliveries:
                    position = came.cursor
                    yield came
        except TransportBlocked as error:
            reasons.append(str(error))
    raise Unreachable("no transport works here: " + "; ".join(reasons))


async def _await_delivery(deliveries: Deliveries) -> RawMessage:
    return await anext(deliveries)


class Following(Generic[M]):
    """An endless sequence of messages to a client. Iterate over it and close it when you are done, preferably with
    `async with`.

    It reconnects automatically. An error that it raises is final, such as a `ServerError` that retrying cannot fix.
    """

    def __init__(
        self,
        target: FollowTarget,
        since: str | None,
        start: Callable[[str | None], Deliveries],
        make: Callable[[RawMessage], M | None],
    ) -> None:
        """Send nothing yet: the first request is sent when the first message is awaited."""
        self.target = target
        self.cursor = since
        """The cursor of the last message returned; pass it as `since` to resume next time."""
        self._start = start
        self._make = make
        self._deliveries: Deliveries | None = None
        self._step: asyncio.Task[RawMessage] | None = None
        self._closed = False

    def begin_at(self, cursor: str) -> None:
        """Follow the target from this cursor instead. Raises RuntimeError if messages are already being followed."""
        if self._deliveries is not None:
            raise RuntimeError("messages are already being followed")
        self.cursor = cursor

    def __aiter__(self) -> Following[M]:
        return self

    async def __anext__(self) -> M:
        """Return the next message. Only one task may wait at a time.

        The wait may be cancelled, for example by a timeout, without losing a message.
        """
        while True:
            came = await self._next()
            message = self._make(came)
            self.cursor = came.cursor
            if message is not None:
                return message

    async def _next(self) -> RawMessage:
        """Return the next delivery, using a separate task, because cancelling a waiting generator would end the
        generator."""
        if self._step is None:
            if self._closed:
                raise StopAsyncIteration
            if self._deliveries is None:
                self._deliveries = self._start(self.cursor)
            self._step = asyncio.ensure_future(_await_delivery(self._deliveries))
        step = self._step
        await asyncio.wait([step])
        self._step = None
        if step.cancelled():
            raise StopAsyncIteration
        return step.result()

    async def aclose(self) -> None:
        """Stop following the target. A pending wait for a message ends."""
        self._closed = True
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait([self._step])
        if self._deliveries is not None:
            await self._deliveries.aclose()

    async def __aenter__(self) -> Following[M]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
