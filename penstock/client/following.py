"""What a user iterates over: the messages of one target, on whichever transport works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Generic, TypeVar

from penstock.client.asking import Target
from penstock.client.errors import NotSpoken, Unreachable
from penstock.client.messages import Delivery
from penstock.client.transports import Deliveries, Transport

M = TypeVar("M")


async def deliveries_by(transports: Sequence[Transport], target: Target, since: str | None) -> Deliveries:
    """By the first transport that works here; where one ends, the next goes on."""
    position, reasons = since, list[str]()
    for transport in transports:
        try:
            async with aclosing(transport.deliveries(target, position)) as deliveries:
                async for came in deliveries:
                    position = came.cursor
                    yield came
        except NotSpoken as error:
            reasons.append(str(error))
    raise Unreachable("no transport works here: " + "; ".join(reasons))


async def _one(deliveries: Deliveries) -> Delivery:
    return await anext(deliveries)


class Following(Generic[M]):
    """Messages without end. Iterate over it, and close it at the end: best in an `async with`.

    It reconnects by itself. What it raises is final: a `ServerError` that no retry helps.
    """

    def __init__(
        self,
        target: Target,
        since: str | None,
        start: Callable[[str | None], Deliveries],
        make: Callable[[Delivery], M | None],
    ) -> None:
        """Nothing is asked before the first message is."""
        self.target = target
        self.cursor = since
        """Where the last message stands that was given out: what to begin with another time."""
        self._start = start
        self._make = make
        self._deliveries: Deliveries | None = None
        self._step: asyncio.Task[Delivery] | None = None
        self._closed = False

    def begin_at(self, cursor: str) -> None:
        """Begin there instead, if it has not begun yet."""
        if self._deliveries is not None:
            raise RuntimeError("this is being followed already")
        self.cursor = cursor

    def __aiter__(self) -> Following[M]:
        return self

    async def __anext__(self) -> M:
        """The next message, for one who waits at a time. Waiting may be given up, as by a timeout: nothing is lost."""
        while True:
            came = await self._next()
            message = self._make(came)
            self.cursor = came.cursor
            if message is not None:
                return message

    async def _next(self) -> Delivery:
        """The step is a task of its own: a generator that is cancelled while it waits would have ended."""
        if self._step is None:
            if self._closed:
                raise StopAsyncIteration
            if self._deliveries is None:
                self._deliveries = self._start(self.cursor)
            self._step = asyncio.ensure_future(_one(self._deliveries))
        step = self._step
        await asyncio.wait([step])
        self._step = None
        if step.cancelled():
            raise StopAsyncIteration
        return step.result()

    async def aclose(self) -> None:
        """Let go of it. Who waits for a message gets no more."""
        self._closed = True
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait([self._step])
        if self._deliveries is not None:
            await self._deliveries.aclose()

    async def __aenter__(self) -> Following[M]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
