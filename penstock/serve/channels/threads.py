"""Threads for work that a single reader requests, such as a page, a filtered read or an old change.

There are only a few of these threads. Streams and views are read for all followers in other threads, so new events
reach the followers no matter how much work single readers request. Callers take turns, and a named caller uses at most
half of the threads.
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

from penstock.serve.channels.fair_queue import FairQueue

THREADS = 4
TURN_S = 0.05
"""Duration of a turn for a caller with several filters. When this time is up, the turn ends after the current
filter."""
WAITING_MAX = 2_000
"""Maximum number of jobs that wait for a thread; at most half of them can belong to one caller. Further jobs are
refused.

The limit is high because, after the gateway restarts, all followers that have their own filters on a view reconnect at
once.
"""
P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """A small thread pool in which callers take turns. All event loops of the process share the pool, but each has its
    own turns."""

    def __init__(self, threads: int, waiting_max: int, *, name: str, what: str) -> None:
        """`what` is the noun for the waiting jobs in the error message."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads, self._waiting_max, self._what = threads, waiting_max, what
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, FairQueue] = WeakKeyDictionary()

    async def run(self, who: str, work: Callable[[], T]) -> T:
        """Run a reader's blocking work in a thread when it is the caller's turn. Raises `Overloaded` if too many jobs
        are waiting.

        If the call is cancelled, work that has not started is skipped. Work that has started keeps its slot until it
        ends.
        """
        turns = self._turns()
        await turns.take(who)
        return await self._do(turns, who, work)

    async def find_and_run(self, who: str, find: Callable[[], Callable[[], T] | None]) -> T | None:
        """Wait for a reader's turn, then run the work that `find` returns. Returns None if `find` returns no work."""
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
        """Run a reader's work in a turn already taken."""
        loop = asyncio.get_running_loop()

        def free(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and its turns are over
                loop.call_soon_threadsafe(turns.give_back, who)

        running = self._pool.submit(work)
        running.add_done_callback(free)
        return await asyncio.wrap_future(running)

    def _turns(self) -> FairQueue:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            share = max(1, self._threads // 2)
            self._by_loop[loop] = FairQueue(self._threads, self._waiting_max, each_max=share, what=self._what)
        return self._by_loop[loop]


_followers = FairThreads(THREADS, sys.maxsize, name="followers", what="followers")
"""The threads for followers. They need no limit on waiting jobs, because the number of connections limits the
followers, and each follower has one job at a time."""
_readers = FairThreads(THREADS, WAITING_MAX, name="readers", what="pages")


async def for_reader(who: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run blocking work for a caller in a thread, when it is the caller's turn.

    Raises `Overloaded` if too many jobs are waiting.
    """
    return await _readers.run(who, partial(work, *given, **named))


async def for_follower(who: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run blocking work for a follower that has a filter or is behind, in a separate pool. The work is never
    refused."""
    return await _followers.run(who, partial(work, *given, **named))


async def in_turn(who: str, find: Callable[[], Callable[[], T] | None]) -> T | None:
    """Wait for a caller's turn, then run the work that `find` returns. Returns None if there is nothing to do, for
    example because another caller with the same filters has done it.
    """
    return await _followers.find_and_run(who, find)
