"""Fair queueing: callers take turns, and each caller's requests stay in order."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.core.errors import Overloaded


class FairQueue:
    """A fixed number of slots for requests, with one queue per caller. Not thread-safe.

    `waiting_max` limits the total length of all queues. One caller can use at most half of it, so there is always room
    for other callers. A named caller holds at most `each_max` slots. `what` is the noun for the waiting requests in the
    error message.
    """

    def __init__(self, slots: int, waiting_max: int, *, each_max: int | None = None, what: str = "queries") -> None:
        self._free = max(1, slots)
        self._each_max = self._free if each_max is None else max(1, each_max)
        self._waiting_max = waiting_max
        self._what = what
        self._held: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def one(self, who: str) -> AsyncIterator[None]:
        """Hold a caller's slot for the duration of the block. Raises `Overloaded` if too many requests are waiting."""
        await self.take(who)
        try:
            yield
        finally:
            self.give_back(who)

    async def take(self, who: str) -> None:
        """Wait for a caller's slot, and hold it until `give_back` is called. Raises `Overloaded` if too many requests
        are waiting."""
        if self._free and self._may_hold_more(who):  # all waiting callers already hold their maximum
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
            message = f"{waiting} {self._what} are waiting for their turn; {own} of them are yours"
            raise Overloaded(message, retry_after_s=2)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(who)  # the slot was granted, but the request is cancelled
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
        """Give free slots to the first request of the longest-waiting caller, and move that caller to the end."""
        while self._free:
            who = next(filter(self._may_hold_more, self._lines), None)
            if who is None:
                return
            line = self._lines[who]
            turn = line.popleft()
            if not line:
                del self._lines[who]
            if turn.done():  # cancelled, but its task has not run since
                continue
            if line:
                self._lines.move_to_end(who)
            self._give(who)
            turn.set_result(None)
