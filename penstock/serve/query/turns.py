"""Whose query is next: callers take turns, and each caller's own queries come in their order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.errors import Overloaded


class Turns:
    """So many places, and a line for each caller before them. Belongs to one event loop.

    `waiting_max` bounds all lines together; one caller has half of that, so that there is always room for another.
    """

    def __init__(self, places: int, waiting_max: int) -> None:
        self._free = max(1, places)
        self._waiting_max = waiting_max
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def one(self, who: str) -> AsyncIterator[None]:
        """Hold a place while in the block. `Overloaded` if too many wait."""
        if self._free and not self._lines:
            self._free -= 1
        else:
            await self._wait(who)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, who: str) -> None:
        waiting, own = sum(map(len, self._lines.values())), len(self._lines.get(who, ()))
        if waiting >= self._waiting_max or own >= max(1, self._waiting_max // 2):
            raise Overloaded(f"{waiting} queries are waiting for their turn, {own} of them yours", retry_after_s=2)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # it was given the place, and does not want it any more
            else:
                self._leave(who, turn)
            raise

    def _leave(self, who: str, turn: asyncio.Future[None]) -> None:
        line = self._lines[who]
        line.remove(turn)
        if not line:
            del self._lines[who]

    def _pass_on(self) -> None:
        """Give the place to the first of the caller who has waited longest for a turn, and put that one last."""
        if not self._lines:
            self._free += 1
            return
        who, line = next(iter(self._lines.items()))
        turn = line.popleft()
        if line:
            self._lines.move_to_end(who)
        else:
            del self._lines[who]
        turn.set_result(None)
