"""The thread in which request bodies are decompressed and decoded, if that would delay the event loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from penstock.core.fair_threads import FairThreads
from penstock.http.pending import PendingBytes

T = TypeVar("T")


class BodyThreads:
    """One thread, in which callers take turns: however many bodies one caller sends, another caller's body waits for at
    most one of them. Not thread-safe.

    There is only one thread, because decoding holds the interpreter's lock. The number of waiting bodies needs no
    limit: the number of connections limits it, and `bytes_max` limits their size.
    """

    def __init__(self, bytes_max: int) -> None:
        """A named caller's waiting bodies can use half of `bytes_max`."""
        self._threads = FairThreads(1, sys.maxsize, name="penstock-bodies", what="bodies")
        self._waiting = PendingBytes(bytes_max)

    async def run(self, who: str, size: int, work: Callable[[], T]) -> T:
        """Do a caller's work on a body of `size` bytes when it is the caller's turn.

        Raises `Overloaded`, without waiting, if there is no room for the body, and `Stopping` if its turn comes after
        `shutdown`.
        """
        self._waiting.count(who, size)
        try:
            self._waiting.require_room(who, size)
            return await self._threads.run(who, work)
        finally:
            self._waiting.count(who, -size)

    def shutdown(self) -> None:
        """End the thread. Blocks until the body being processed is done; waiting bodies are refused."""
        self._threads.shutdown()
