"""The clock of this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class WallClock:
    """A `contracts.Clock`."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
