"""Helpers for ending several tasks together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel asyncio tasks and wait until all have ended. Does not raise their exceptions."""
    chosen = list(tasks)
    for task in chosen:
        task.cancel()
    await asyncio.gather(*chosen, return_exceptions=True)


async def first_of(*tasks: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    """Wait until one of the asyncio tasks is done, cancel the remaining tasks, and wait until they have ended. Returns
    the tasks that were done before the cancellation, which is usually just one task. Does not raise the tasks'
    exceptions."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)
    return [task for task in tasks if task in done]
