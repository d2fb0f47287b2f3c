"""Followers that have everything there is, and wait for more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from penstock.contracts import Delivery

Take = Callable[[Sequence[Delivery]], bool]
P = TypeVar("P")
_log = logging.getLogger("penstock.serve")


class Waiter(Generic[P]):
    """One of them: where it stands, and how it takes what comes, if it does that."""

    __slots__ = ("place", "take", "woken")

    def __init__(self, place: P, take: Take | None, woken: asyncio.Future[None]) -> None:
        self.place, self.take, self.woken = place, take, woken

    def takes(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether it has taken what came. One that fails is not to keep it from the others."""
        try:
            return self.take is not None and self.take(deliveries)
        except Exception:
            _log.exception("a follower could not take what came")
            return False

    def wake(self) -> None:
        """Let it look for itself."""
        if not self.woken.done():
            self.woken.set_result(None)


class Waiting(Generic[P]):
    """Those who wait for the same. Belongs to one event loop."""

    def __init__(self) -> None:
        self._all: set[Waiter[P]] = set()

    def __iter__(self) -> Iterator[Waiter[P]]:
        """Each of them, as it is now: to take something may make another leave."""
        return iter(tuple(self._all))

    async def wait(self, place: P, take: Take | None, timeout_s: float | None) -> bool:
        """True as soon as it is woken; False when the time has passed. What it takes meanwhile does not wake it."""
        waiter = Waiter(place, take, asyncio.get_running_loop().create_future())
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
