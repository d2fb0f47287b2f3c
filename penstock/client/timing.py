"""A client's timeouts, and its delays after failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.core.backoff import Backoff

JITTER = 0.5
RETRY_AFTER_S_MAX = 3600.0


@dataclass(frozen=True)
class Timing:
    """A client's timeouts and delays. `sleep` and `draw` (which returns a number from 0 to 1) can be replaced in tests.

    `silence_s`: the silence after which a connection is considered dead; the server sends something every 15 seconds.
    `wait_s`: how long a long poll waits. `connect_s`: the time limit for opening a connection. `call_s`: how long a
    call such as `publish` or `rows` is retried before it raises.
    """

    base_s: float = 0.25
    cap_s: float = 30.0
    silence_s: float = 45.0
    wait_s: float = 30.0
    connect_s: float = 10.0
    call_s: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


class Retries:
    """The number of consecutive failures of a connection or subscription, and the resulting delays."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._base_s = timing.base_s
        self._failures = 0

    def succeeded(self) -> None:
        """Reset the client's count of failures, because a message has arrived."""
        self._failures = 0

    def retry(self, milliseconds: int) -> None:
        """Set the client's base delay to the one that the server asked for."""
        self._base_s = min(milliseconds / 1000, self._timing.cap_s)

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure of the connection, and return the seconds to wait before the next attempt."""
        drawn = self._timing.draw()
        own_s = Backoff(self._base_s, self._timing.cap_s, JITTER).wait_s(self._failures, drawn)
        self._failures += 1
        return max(own_s, min(retry_after_s or 0.0, RETRY_AFTER_S_MAX) * (1 + JITTER * drawn))

    async def sleep(self, seconds: float) -> None:
        await self._timing.sleep(seconds)

    async def pause(self, retry_after_s: float | None = None) -> None:
        """Count a failure of the connection, and wait."""
        await self.sleep(self.failed(retry_after_s))
