"""The order in which messages can be sent: one after the other within a lane, with lanes in parallel.

A message without a lane (a reset, a part of a snapshot) is a barrier: it is sent when all earlier messages are done,
and no later message is sent until it is done. The messages therefore form a sequence of sections, and only messages of
the first section can be sent.

Plain Python without a clock. Times are in the caller's unit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from penstock.serve.webhooks.model import WebhookMessage


@dataclass
class _Section:
    alone: bool
    lanes: dict[bytes, deque[WebhookMessage]] = field(default_factory=dict)


class Lanes:
    """Webhook messages, each in one of four states: behind another message, ready, being sent, or waiting for a retry.

    `size` is the number of messages, `bytes` their total size.
    """

    def __init__(self) -> None:
        self._sections: deque[_Section] = deque()
        self._ready: deque[bytes] = deque()
        self._waiting: list[tuple[float, int, bytes]] = []
        self._numbers: set[int] = set()
        self.bytes = self.away = 0

    @property
    def size(self) -> int:
        return len(self._numbers)

    def add(self, message: WebhookMessage, due: float = 0.0) -> None:
        """Add a webhook message at the end of its lane.

        `due` applies only if the message is the first in its lane. A message that was added earlier keeps its place.
        """
        if message.number in self._numbers:
            return
        alone, lane = message.lane is None, message.lane or b""
        if not self._sections or alone or self._sections[-1].alone:
            self._sections.append(_Section(alone))
        section = self._sections[-1]
        waiting = section.lanes.setdefault(lane, deque())
        waiting.append(message)
        self._numbers.add(message.number)
        self.bytes += message.size
        if section is self._sections[0] and len(waiting) == 1:
            self._queue(lane, message, due)

    def take(self, now: float) -> WebhookMessage | None:
        """Return a webhook message that can be sent now. It counts as being sent until `done` or `back` is called for
        it."""
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heappop(self._waiting)[2])
        if not self._ready:
            return None
        self.away += 1
        return self._sections[0].lanes[self._ready.popleft()][0]

    def done(self, message: WebhookMessage) -> None:
        """Remove a webhook message that was accepted or given up. The next message in its lane can then be sent."""
        section, lane = self._sections[0], message.lane or b""
        waiting = section.lanes[lane]
        first = waiting.popleft()
        assert first is message, "only the first message of a lane is sent"
        self.away -= 1
        self._numbers.discard(message.number)
        self.bytes -= message.size
        if waiting:
            self._ready.append(lane)
            return
        del section.lanes[lane]
        if not section.lanes:
            self._sections.popleft()
            self._open()

    def back(self, message: WebhookMessage, due: float) -> None:
        """Schedule a retry of a webhook message at `due`. The lane waits for it."""
        self.away -= 1
        self._queue(message.lane or b"", message, due)

    def next_due(self) -> float | None:
        """Return when the next waiting webhook message is due, or None if no message is waiting for a retry."""
        return self._waiting[0][0] if self._waiting else None

    def _queue(self, lane: bytes, message: WebhookMessage, due: float) -> None:
        if due <= 0.0:
            self._ready.append(lane)
        else:
            heappush(self._waiting, (due, message.number, lane))

    def _open(self) -> None:
        if self._sections:
            self._ready.extend(self._sections[0].lanes)
