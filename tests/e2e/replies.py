"""Clients that wait for replies and retry until they have one, over a bad network."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.decide import LIMIT

RETRY_S = 0.05


@dataclass
class Asker(ABC):
    """One card, one request after the other, so that each reply is known in advance."""

    card: str
    port: int
    answered: int = 0
    tries: int = 0
    finish: bool = False

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=15) as client:
            while not self.finish:
                await self._until_answered(client)
                self.answered += 1

    async def _until_answered(self, client: httpx.AsyncClient) -> None:
        while True:
            self.tries += 1
            with suppress(httpx.HTTPError):
                answer = await self.ask(client)
                if answer.status_code == 200:
                    assert answer.json()["reply"] == {"events": [self.right()]}, answer.text
                    return
                assert answer.status_code in (429, 503, 504), answer.text
            await asyncio.sleep(RETRY_S)

    @abstractmethod
    async def ask(self, client: httpx.AsyncClient) -> httpx.Response:
        """Send the unanswered request, for the first time or again."""

    @abstractmethod
    def right(self) -> dict[str, Any]:
        """Return the event with which it must be answered."""

    def url(self, stream: str, reply: str) -> str:
        return f"http://127.0.0.1:{self.port}/v1/streams/{stream}?reply={reply}&timeout=10"


class Payer(Asker):
    """Identified by the id of the event."""

    amount = 30

    async def ask(self, client: httpx.AsyncClient) -> httpx.Response:
        event = {"payment": f"{self.card}-{self.answered}", "card": self.card, "amount": self.amount}
        return await client.post(self.url("payments", "decisions"), json=event)

    def right(self) -> dict[str, Any]:
        approved = (self.answered + 1) * self.amount <= LIMIT
        return {"payment": f"{self.card}-{self.answered}", "card": self.card, "approved": approved}


class Tipper(Asker):
    """Identified by the key of the request."""

    async def ask(self, client: httpx.AsyncClient) -> httpx.Response:
        key = {"idempotency-key": f"{self.card}-{self.answered}"}
        return await client.post(self.url("tips", "thanks"), json={"card": self.card, "cents": 5}, headers=key)

    def right(self) -> dict[str, Any]:
        return {"card": self.card, "cents": (self.answered + 1) * 5}
