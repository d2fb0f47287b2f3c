"""Threads for work that one reader asks for: a page, a look through a filter at all rows, a change of long ago.

They are few, and not those in which streams and views are followed: however many ask, and however much for, what is new
goes out to all the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

THREADS = 4
_threads = ThreadPoolExecutor(THREADS, "readers")
P = ParamSpec("P")
T = TypeVar("T")


async def for_reader(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Do blocking work in one of the threads, in turn. What has not begun is left undone if nobody waits for it."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *given, **named))
