"""A thread pool in which callers take turns, so that one with much work does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

from penstock.core.errors import Stopping
from penstock.core.fair_queue import FairQueue

T = TypeVar("T")


class FairThreads:
    """A small thread pool in which callers take turns. All event loops of the process share the pool, but each has its
    own turns."""

    def __init__(self, threads: int, waiting_max: int, *, name: str, what: str) -> None:
        """`what` is the noun for the waiting jobs in the error message."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads, self._waiting_max, self._what = threads, waiting_max, what
        self._stopped = False
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, FairQueue] = WeakKeyDictionary()

    async def run(self, who: str, work: Callable[[], T]) -> T:
        """Run a caller's blocking work in a thread when it is the caller's turn. Raises `Overloaded` if too many jobs
        are waiting, and `Stopping` if the turn comes after `shutdown`.

        If the call is cancelled, work that has not started is skipped. Work that has started keeps its slot until it
        ends.
        """
        turns = self._turns()
        await turns.take(who)
        return await self._do(turns, who, work)

    async def find_and_run(self, who: str, find: Callable[[], Callable[[], T] | None]) -> T | None:
        """Wait for a caller's turn, then run the work that `find` returns. Returns None if `find` returns no work."""
        turns = self._turns()
        await turns.take(who)
        try:
            work = find()
        except BaseException:
            turns.give_back(who)
            raise
        if work is None:
            turns.give_back(who)
            return None
        return await self._do(turns, who, work)

    async def _do(self, turns: FairQueue, who: str, work: Callable[[], T]) -> T:
        """Run a caller's work in a turn already taken."""
        if self._stopped:
            turns.give_back(who)
            raise Stopping("Penstock is stopping")
        loop = asyncio.get_running_loop()

        def free(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and its turns are over
                loop.call_soon_threadsafe(turns.give_back, who)

        running = self._pool.submit(work)
        running.add_done_callback(free)
        return await asyncio.wrap_future(running)

    def shutdown(self) -> None:
        """End the threads. Blocks until the work that has started is done; work that waits for its turn is refused."""
        self._stopped = True
        self._pool.shutdown()

    def _turns(self) -> FairQueue:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            share = max(1, self._threads // 2)
            self._by_loop[loop] = FairQueue(self._threads, self._waiting_max, each_max=share, what=self._what)
        return self._by_loop[loop]
