"""Limits on how many messages are sent at once, in total and to one host."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Waiting = tuple[str, asyncio.Future[bool]]


class Slots:
    """Slots for sending webhook messages, given to waiters in order. Not thread-safe.

    In addition to the shared slots, each webhook has its own slot. So even if a slow receiver occupies all shared
    slots, other webhooks can send one message at a time. All webhooks that send to the same host share the host's
    slots.
    """

    def __init__(self, most: int, most_of_host: int) -> None:
        self._free = max(1, most)
        self._own: set[str] = set()
        """The webhooks whose own slot is in use."""
        self._waiting: list[Waiting] = []
        self._most_of_host = max(1, most_of_host)
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self, webhook: str, host: str) -> AsyncIterator[None]:
        """Hold a webhook's slot for the duration of the block.

        The host's slot is taken first, so that waiting for a host does not occupy another slot.
        """
        async with self._host(host):
            own = await self._take(webhook)
            try:
                yield
            finally:
                self._give_back(webhook, own)

    async def _take(self, webhook: str) -> bool:
        """Wait for a slot to send in, and return whether it is the webhook's own slot."""
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
        """Give a webhook's slot back, or pass it to the first waiter that can use it."""
        waiter = next((waiter for waiter in self._waiting if not own or waiter[0] == webhook), None)
        if waiter is not None:
            self._waiting.remove(waiter)
            waiter[1].set_result(own)
        elif own:
            self._own.discard(webhook)
        else:
            self._free += 1

    @asynccontextmanager
    async def _host(self, host: str) -> AsyncIterator[None]:
        semaphore = self._hosts.setdefault(host, asyncio.Semaphore(self._most_of_host))
        self._users[host] += 1
        try:
            async with semaphore:
                yield
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._hosts[host]
