"""Threads for work that one reader asks for: a page, a look through a filter, a change of long ago.

They are few, and not those in which streams and views are read for all who follow: however many ask, and however much
for, what is new goes out to the others. Callers take turns, and one with a name has half of the threads at most.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from penstock.serve.channels.turns import Turns

THREADS = 4
TURN_S = 0.05
"""A caller's turn with several filters ends with the first of them that is done after so long."""
WAITING_MAX = 2_000
"""Pages and the like that wait for a thread, of one caller half of that; a further one is refused. All followers of a
view through filters of their own come back at once when the gateway has restarted."""
P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """A few threads in which callers take turns. One pool for the process, with turns for each event loop."""

    def __init__(self, threads: int, waiting_max: int, *, name: str, what: str) -> None:
        """`what` names those who wait, for the error."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads, self._waiting_max, self._what = threads, waiting_max, what
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()

    async def run(self, who: str, work: Callable[[], T]) -> T:
        """Do blocking work in one of the threads when it is the caller's turn. `Overloaded` if too many wait.

        If this is cancelled, work that has not begun is left undone; what has begun keeps its place until it ends.
        """
        turns = self._turns()
        await turns.take(who)
        return await self._do(turns, who, work)

    async def run_found(self, who: str, find: Callable[[], Callable[[], T] | None]) -> T | None:
        """The same for work that `find` gives when the turn has come; None if nothing is left to do by then."""
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

    async def _do(self, turns: Turns, who: str, work: Callable[[], T]) -> T:
        """Use a turn that was taken."""
        loop = asyncio.get_running_loop()

        def free(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and its turns are over
                loop.call_soon_threadsafe(turns.give_back, who)

        running = self._pool.submit(work)
        running.add_done_callback(free)
        return await asyncio.wrap_future(running)

    def _turns(self) -> Turns:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            share = max(1, self._threads // 2)
            self._by_loop[loop] = Turns(self._threads, self._waiting_max, each_max=share, what=self._what)
        return self._by_loop[loop]


_followers = FairThreads(THREADS, sys.maxsize, name="followers", what="followers")
"""Followers are bounded by the connections, and each waits for one thing at a time."""
_readers = FairThreads(THREADS, WAITING_MAX, name="readers", what="pages")


async def for_reader(who: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Do blocking work for a caller in one of the threads, in turn. `Overloaded` if too many wait."""
    return await _readers.run(who, partial(work, *given, **named))


async def for_follower(who: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """The same for one who follows a stream through a filter, or is behind: in other threads, and never refused."""
    return await _followers.run(who, partial(work, *given, **named))


async def in_turn(who: str, find: Callable[[], Callable[[], T] | None]) -> T | None:
    """The same for work that is looked for when the turn has come: another caller with the same filters may have done
    it by then. None if there is nothing to do."""
    return await _followers.run_found(who, find)
