"""Followers that are up to date and wait for more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from penstock.core.contracts import Delivery

Take = Callable[[Sequence[Delivery]], bool]
P = TypeVar("P")
_log = logging.getLogger("penstock.serve")


class WaitingFollower(Generic[P]):
    """A waiting follower: its position, and its callback for new deliveries, if any."""

    __slots__ = ("follower", "take", "woken")

    def __init__(self, follower: P, take: Take | None, woken: asyncio.Future[None]) -> None:
        self.follower, self.take, self.woken = follower, take, woken

    def takes(self, deliveries: Sequence[Delivery]) -> bool:
        """Pass deliveries to the follower's callback, and return whether it took them. A failing callback does not
        affect other followers."""
        try:
            return self.take is not None and self.take(deliveries)
        except Exception:
            _log.exception("a follower's callback failed")
            return False

    def wake(self) -> None:
        """Wake the follower, which then reads on its own."""
        if not self.woken.done():
            self.woken.set_result(None)


class WaitingFollowers(Generic[P]):
    """Followers that wait on one channel. Not thread-safe."""

    def __init__(self) -> None:
        self._all: set[WaitingFollower[P]] = set()

    def __iter__(self) -> Iterator[WaitingFollower[P]]:
        """Iterate over a copy: handling one follower may remove another."""
        return iter(tuple(self._all))

    async def wait(self, follower: P, take: Take | None, timeout_s: float | None) -> bool:
        """Wait until the follower is woken; return False after the timeout. Deliveries that the callback takes do not
        wake the follower."""
        waiter = WaitingFollower(follower, take, asyncio.get_running_loop().create_future())
        self._all.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.woken
        except TimeoutError:
            return False
        finally:
            self._all.discard(waiter)
        return True

    def wake(self) -> None:
        for waiter in self._all:
            waiter.wake()
