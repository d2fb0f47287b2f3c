"""What a publisher has under way: messages by their number, sent in order, held until they are acknowledged."""

from __future__ import annotations

from collections import deque


class Flight:
    """The numbers only; the messages are in the outbox. `sent` and `held` go up together: of the held ones, the first
    `sent` are on the connection."""

    def __init__(self) -> None:
        self._held: deque[int] = deque()
        self._sent = 0
        self._window = 0

    @property
    def held(self) -> list[int]:
        return list(self._held)

    def add(self, number: int) -> list[int]:
        """A message is ready. Gives the numbers to send now; so do the others."""
        self._held.append(number)
        return self._more()

    def opened(self, window: int) -> list[int]:
        """The server has opened a connection: from the oldest on, as many as it allows."""
        self._sent, self._window = 0, max(1, window)
        return self._more()

    def acknowledged(self, number: int) -> list[int]:
        """All up to `number` are durable. What was not sent cannot be."""
        while self._sent and self._held[0] <= number:
            self._held.popleft()
            self._sent -= 1
        return self._more()

    def lost(self) -> None:
        self._sent = self._window = 0

    def _more(self) -> list[int]:
        if self._sent >= min(self._window, len(self._held)):
            return []
        last = min(self._window, len(self._held))
        numbers = [self._held[index] for index in range(self._sent, last)]
        self._sent = last
        return numbers
