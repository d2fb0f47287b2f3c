"""Counts the bytes of unfinished request bodies and WebSocket messages, so that clients cannot exhaust the memory."""

from __future__ import annotations

from collections import Counter

from penstock.core.errors import Overloaded


class PendingBytes:
    """Counts, for each caller, the bytes of unfinished requests and messages: those that have begun to arrive and are
    not complete. Used in only one event loop.

    A named caller can use half of the total. A caller that holds no bytes can always send one body; the share only
    limits additional bodies.
    """

    def __init__(self, total_max: int) -> None:
        self._total_max = total_max
        self._held = 0
        self._own: Counter[str] = Counter()

    def count(self, who: str, size: int) -> None:
        """Add bytes to those that a caller holds, or remove them if `size` is below 0."""
        self._held += size
        self._own[who] += size
        if not self._own[who]:
            del self._own[who]

    def require_room(self, who: str, size: int) -> None:
        """Raise `Overloaded` if the total or the caller's share is exceeded. `size` is the size of the caller's body,
        which has already been counted."""
        if self._held > self._total_max:
            raise Overloaded(f"{self._held} bytes of unfinished requests are in memory", retry_after_s=1)
        own, share = self._own[who], self._total_max // 2
        if who and own > share and own > size:
            over = f"you hold {own} bytes of unfinished requests; the limit per caller is {share}"
            raise Overloaded(over, retry_after_s=1)
