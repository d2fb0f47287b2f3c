"""Threads for work that a single reader requests, such as a page, a filtered read or an old change.

There are only a few of these threads. Streams and views are read for all followers in other threads, so new events
reach the followers no matter how much work single readers request. Callers take turns, and a named caller uses at most
half of the threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.core.fair_threads import FairThreads

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
