"""How long to wait after each failure in a row: longer each time, with a jitter, so that not all come in step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

DOUBLINGS_MAX = 60
RETRY_AFTER_S_MAX = 3600.0


@dataclass(frozen=True)
class Timing:
    """The times of a client. `sleep` and `draw` (a number between 0 and 1) are here so that tests can pass others.

    `silence_s`: how long nothing at all may come before a connection is taken for dead; the server speaks every 15
    seconds. `wait_s`: of a long poll. `connect_s`: until a connection stands. `call_s`: how long a single call, as
    `publish` or `rows`, is tried before it raises.
    """

    base_s: float = 0.25
    cap_s: float = 30.0
    silence_s: float = 45.0
    wait_s: float = 30.0
    connect_s: float = 10.0
    call_s: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


class Backoff:
    """The failures in a row of one connection, or one subscription."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._base_s = timing.base_s
        self._failures = 0

    def succeeded(self) -> None:
        """A message came: the next failure is the first one again."""
        self._failures = 0

    def retry(self, milliseconds: int) -> None:
        """The server names a base."""
        self._base_s = min(milliseconds / 1000, self._timing.cap_s)

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure; the seconds to wait before the next try."""
        bound = min(self._timing.cap_s, self._base_s * 2.0 ** min(self._failures, DOUBLINGS_MAX))
        self._failures += 1
        drawn = self._timing.draw()
        return max(bound * (0.5 + 0.5 * drawn), min(retry_after_s or 0.0, RETRY_AFTER_S_MAX) * (1 + 0.5 * drawn))

    async def sleep(self, seconds: float) -> None:
        await self._timing.sleep(seconds)

    async def pause(self, retry_after_s: float | None = None) -> None:
        """Count a failure, and wait."""
        await self.sleep(self.failed(retry_after_s))
