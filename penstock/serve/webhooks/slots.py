"""How many messages may be on their way at once: in all, and to one host."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Waiting = tuple[str, asyncio.Future[bool]]


class Slots:
    """Belongs to one event loop. Whoever waits is served in order.

    Each webhook has a place of its own, besides those that all share: one whose receiver is slow, with as many messages
    on their way as it can get, keeps no other from sending one at a time. A host's places are shared by all webhooks
    that go there.
    """

    def __init__(self, most: int, most_of_host: int) -> None:
        self._free = max(1, most)
        self._own: set[str] = set()
        """The webhooks whose own place is taken."""
        self._waiting: list[Waiting] = []
        self._most_of_host = max(1, most_of_host)
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self, webhook: str, host: str) -> AsyncIterator[None]:
        """Hold a place while in the block. The host's comes first: who waits for a host holds nothing of the others."""
        async with self._host(host):
            own = await self._take(webhook)
            try:
                yield
            finally:
                self._give_back(webhook, own)

    async def _take(self, webhook: str) -> bool:
        """Wait for a place; whether it is the webhook's own."""
        if webhook not in self._own:
            self._own.add(webhook)
            return True
        if self._free:
            self._free -= 1
            return False
        waiting: Waiting = (webhook, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            return await waiting[1]
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting[1].cancelled():
                self._give_back(webhook, waiting[1].result())
            raise

    def _give_back(self, webhook: str, own: bool) -> None:
        """To the first who waits and may have it."""
        found = next((each for each in self._waiting if not own or each[0] == webhook), None)
        if found is not None:
            self._waiting.remove(found)
            found[1].set_result(own)
        elif own:
            self._own.discard(webhook)
        else:
            self._free += 1

    @asynccontextmanager
    async def _host(self, host: str) -> AsyncIterator[None]:
        found = self._hosts.setdefault(host, asyncio.Semaphore(self._most_of_host))
        self._users[host] += 1
        try:
            async with found:
                yield
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._hosts[host]
