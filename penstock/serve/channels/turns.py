"""Fair turns: callers take turns, and each caller's own requests come in their order."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.errors import Overloaded


class Turns:
    """So many places, and a line for each caller before them. Not thread-safe: belongs to one event loop.

    `waiting_max` bounds all lines together; one caller has half of that, so that there is always room for another. One
    caller with a name holds `each_max` places at most. `what` names those who wait, for the error.
    """

    def __init__(self, places: int, waiting_max: int, *, each_max: int | None = None, what: str = "queries") -> None:
        self._free = max(1, places)
        self._each_max = self._free if each_max is None else max(1, each_max)
        self._waiting_max = waiting_max
        self._what = what
        self._held: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def one(self, who: str) -> AsyncIterator[None]:
        """Hold a place while in the block. `Overloaded` if too many wait."""
        await self.take(who)
        try:
            yield
        finally:
            self.give_back(who)

    async def take(self, who: str) -> None:
        """Wait for a place, which is held until `give_back`. `Overloaded` if too many wait."""
        if self._free and self._may_hold_more(who):  # those who wait, if any, hold all that they may
            self._give(who)
        else:
            await self._wait(who)

    def give_back(self, who: str) -> None:
        self._held -= Counter([who])
        self._free += 1
        self._pass_on()

    async def _wait(self, who: str) -> None:
        waiting, own = sum(map(len, self._lines.values())), len(self._lines.get(who, ()))
        if waiting >= self._waiting_max or own >= max(1, self._waiting_max // 2):
            raise Overloaded(f"{waiting} {self._what} are waiting for their turn, {own} of them yours", retry_after_s=2)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(who)  # it was given the place, and does not want it any more
            else:
                self._leave(who, turn)
            raise

    def _may_hold_more(self, who: str) -> bool:
        return not who or self._held[who] < self._each_max

    def _give(self, who: str) -> None:
        self._free -= 1
        self._held[who] += 1

    def _leave(self, who: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(who, deque())
        if turn in line:
            line.remove(turn)
            if not line:
                del self._lines[who]

    def _pass_on(self) -> None:
        """Give free places to the first of the caller who has waited longest for a turn, and put that one last."""
        while self._free:
            who = next(filter(self._may_hold_more, self._lines), None)
            if who is None:
                return
            line = self._lines[who]
            turn = line.popleft()
            if not line:
                del self._lines[who]
            if turn.done():  # it has given up, and does not know yet
                continue
            if line:
                self._lines.move_to_end(who)
            self._give(who)
            turn.set_result(None)
