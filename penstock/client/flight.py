"""The numbers of a publisher's messages in flight: sent in order, and held until they are acknowledged."""

from __future__ import annotations

from collections import deque


class Flight:
    """The numbers of a publisher's messages in flight; the messages are in the outbox.

    `_held` contains the numbers in order; the first `_sent` of them have been sent on the current connection.
    """

    def __init__(self) -> None:
        self._held: deque[int] = deque()
        self._sent = 0
        self._window = 0

    @property
    def held(self) -> list[int]:
        return list(self._held)

    def add(self, number: int) -> list[int]:
        """Add a message to those in flight. Returns the numbers to send now, as the other methods do."""
        self._held.append(number)
        return self._next_to_send()

    def opened(self, window: int) -> list[int]:
        """Send a publisher's messages again on a new connection: as many as the server allows, starting with the
        oldest."""
        self._sent, self._window = 0, max(1, window)
        return self._next_to_send()

    def acknowledged(self, number: int) -> list[int]:
        """Remove the messages up to `number` from those in flight, because they are durable. Only sent messages can be
        acknowledged."""
        while self._sent and self._held[0] <= number:
            self._held.popleft()
            self._sent -= 1
        return self._next_to_send()

    def lost(self) -> None:
        self._sent = self._window = 0

    def _next_to_send(self) -> list[int]:
        if self._sent >= min(self._window, len(self._held)):
            return []
        last = min(self._window, len(self._held))
        numbers = [self._held[index] for index in range(self._sent, last)]
        self._sent = last
        return numbers
