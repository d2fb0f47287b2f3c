"""How many messages may be on their way at once: in all, and to one host."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Belongs to one event loop. Whoever waits is served in order.

    The first message of each webhook needs no place in the shared number, so that one whose receiver is slow, with all
    its messages on their way, keeps no other from having one. A host's places are shared by all webhooks that go there.
    """

    def __init__(self, most: int, most_of_host: int) -> None:
        self._all = asyncio.Semaphore(max(1, most))
        self._most_of_host = max(1, most_of_host)
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        self._of_webhook: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self, webhook: str, host: str) -> AsyncIterator[None]:
        """Hold a place while in the block. The host's comes first: who waits for a host holds nothing of the others."""
        async with self._host(host):
            self._of_webhook[webhook] += 1
            try:
                if self._of_webhook[webhook] == 1:
                    yield
                else:
                    async with self._all:
                        yield
            finally:
                self._of_webhook[webhook] -= 1
                if not self._of_webhook[webhook]:
                    del self._of_webhook[webhook]

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
