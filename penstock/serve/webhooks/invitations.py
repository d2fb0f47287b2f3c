"""Limit on the number of addresses that the gateway challenges for a caller.

The receiver at the address of a new webhook has not agreed to be called. Without a limit, a caller could register and
remove webhooks in a loop, and send the address any number of challenges.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from penstock.core.errors import RateLimited

UNANSWERED_MAX = 20
"""Maximum number of consecutive registrations with an address that has not answered its challenge."""
FORGET_S = 30.0
"""Seconds after which one unanswered registration is no longer counted."""
CALLERS_MAX = 10_000


class Invitations:
    """Counts webhook registrations by caller until their address answers. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clear_at: dict[str, float] = {}
        """For each caller's name, the time when that caller's count will reach zero."""

    def take(self, caller: str) -> None:
        """Count a webhook registration. Raises `RateLimited` if too many of the caller's addresses have not
        answered."""
        now = self._clock()
        clear_at = max(now, self._clear_at.get(caller, now)) + FORGET_S
        wait_s = clear_at - now - UNANSWERED_MAX * FORGET_S
        if wait_s > 0:
            message = (
                f"{UNANSWERED_MAX} addresses that you registered have not answered their challenge yet; try again later"
            )
            raise RateLimited(message, retry_after_s=math.ceil(wait_s))
        if caller not in self._clear_at:
            self._make_room(now)
        self._clear_at[caller] = clear_at

    def _make_room(self, now: float) -> None:
        """Drop all webhook callers whose count is zero or, if there are none, the caller whose count would reach zero
        first."""
        if len(self._clear_at) < CALLERS_MAX:
            return
        self._clear_at = {name: at for name, at in self._clear_at.items() if at > now}
        if len(self._clear_at) >= CALLERS_MAX:
            del self._clear_at[min(self._clear_at, key=self._clear_at.__getitem__)]

    def give_back(self, caller: str) -> None:
        """Stop counting one webhook registration, because its address has answered or the registration failed."""
        if caller in self._clear_at:
            self._clear_at[caller] -= FORGET_S
