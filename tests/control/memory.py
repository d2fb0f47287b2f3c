"""A control channel in memory, for tests of its users."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import TypeVar

import msgspec

from penstock.control import Edition, Editions, Message, decode, encode
from penstock.core.errors import PenstockError

POLL_S = 0.005
M = TypeVar("M", bound=Message)


class MemoryChannel:
    """A `ControlChannel` whose messages are bytes in a dictionary, as they would cross. Thread-safe."""

    def __init__(self) -> None:
        self.full = False
        """Whether there is no room for another message."""
        self.ignored: list[str] = []
        """A line for each message that could not be understood."""
        self._written: dict[type[Message], tuple[int, bytes]] = {}
        self._refused: dict[type[Message], int] = {}
        self._numbers = count(1)

    def publish(self, message: Message) -> bool:
        if self.full:
            return False
        self.write(type(message), encode(msgspec.structs.replace(message, published_at=datetime.now(UTC))))
        return True

    def write(self, kind: type[Message], data: bytes) -> None:
        """Write bytes in place of a message."""
        self._written[kind] = next(self._numbers), data

    def latest(self, kind: type[M]) -> M | None:
        if kind not in self._written:
            return None
        number, data = self._written[kind]
        try:
            return decode(data, kind)
        except PenstockError as error:
            if self._refused.get(kind) != number:
                self._refused[kind] = number
                self.ignored.append(error.message)
            return None

    def withdraw(self, kind: type[Message]) -> None:
        self._written.pop(kind, None)

    async def wait(self, seen: Editions, timeout_s: float) -> Editions:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (editions := self._editions(list(seen))) == seen and loop.time() < deadline:
            await asyncio.sleep(POLL_S)
        return editions

    def _editions(self, kinds: Sequence[type[Message]]) -> Editions:
        editions: dict[type[Message], Edition] = dict.fromkeys(kinds)
        return editions | {kind: number for kind, (number, _) in self._written.items() if kind in editions}
