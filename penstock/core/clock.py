"""The system clock and the event loop's clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class WallClock:
    """The system clock, as a `contracts.Clock`."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def loop_time() -> float:
    """Return the current time, in seconds, on the running event loop's clock, which its timeouts use."""
    return asyncio.get_running_loop().time()
