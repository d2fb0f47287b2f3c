"""Time in the hands of a test: a clock that it sets, and waiting for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DEADLINE_S = 240.0


@dataclass
class ManualClock:
    """A `contracts.Clock` that stands still until it is set."""

    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def move_loop(seconds: float) -> None:
    """Move the clock of the running loop ahead: timeouts that are over by then end at once."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


async def until(condition: Callable[[], object], pause_s: float = 0.001) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(pause_s)
