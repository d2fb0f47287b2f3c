"""The order in which messages may go: one after the other in each lane, lanes side by side.

A message without a lane (a reset, a part of a snapshot) stands alone: it goes when all before it are done, and nothing
after it goes until it is. So the whole is a row of sections, of which only the first is open.

Plain Python, no clock of its own; times are whatever the caller counts in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from penstock.serve.webhooks.model import Message


@dataclass
class _Section:
    alone: bool
    lanes: dict[bytes, deque[Message]] = field(default_factory=dict)


class Lanes:
    """Every message is in one of four states: behind another of its lane or section, ready, away, or waiting until it
    is due again. `size` is how many there are, `bytes` how large they are."""

    def __init__(self) -> None:
        self._sections: deque[_Section] = deque()
        self._ready: deque[bytes] = deque()
        self._waiting: list[tuple[float, int, bytes]] = []
        self._numbers: set[int] = set()
        self.bytes = self.away = 0

    @property
    def size(self) -> int:
        return len(self._numbers)

    def add(self, message: Message, due: float = 0.0) -> None:
        """Put a message behind all others of its lane. `due` counts if it is the first one of it. One that is here
        already stays where it is."""
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

    def take(self, now: float) -> Message | None:
        """A message that may go now: it is away until it is `done` or put `back`."""
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heappop(self._waiting)[2])
        if not self._ready:
            return None
        self.away += 1
        return self._sections[0].lanes[self._ready.popleft()][0]

    def done(self, message: Message) -> None:
        """It was answered, or given up: the next of its lane may go."""
        section, lane = self._sections[0], message.lane or b""
        waiting = section.lanes[lane]
        first = waiting.popleft()
        assert first is message, "the first of its lane is away, and no other"
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

    def back(self, message: Message, due: float) -> None:
        """It is to be tried again at that time; its lane waits for it."""
        self.away -= 1
        self._queue(message.lane or b"", message, due)

    def next_due(self) -> float | None:
        """When the next waiting message is due; None if none waits for a time."""
        return self._waiting[0][0] if self._waiting else None

    def _queue(self, lane: bytes, message: Message, due: float) -> None:
        if due <= 0.0:
            self._ready.append(lane)
        else:
            heappush(self._waiting, (due, message.number, lane))

    def _open(self) -> None:
        if self._sections:
            self._ready.extend(self._sections[0].lanes)
