"""One subscription on a WebSocket: its position, and when its next delivery can be sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from penstock.core.clock import loop_time
from penstock.core.contracts import Channel, Delivery, Style
from penstock.core.errors import BadParameter
from penstock.core.tasks import cancel_all

WINDOW_MAX = 1_000
EVERY_S_MAX = 3_600.0


class ClientMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A WebSocket client's message."""

    op: str
    id: str | None = None
    view: str | None = None
    stream: str | None = None
    query: str | None = None
    since: str | None = None
    where: str | None = None
    select: str | None = None
    window: int | None = None
    cursor: str | None = None
    every_s: float | None = None


class Subscription:
    """The state of a subscription, controlled by its client. Not thread-safe.

    Nothing is read from the channel before `ready`, so a subscription that is paused, paced or waiting for an
    acknowledgement falls behind. It is treated like a slow reader.
    """

    def __init__(self, asked: ClientMessage, channel: Channel) -> None:
        self.asked = asked
        self.channel = channel
        self.cursor = asked.since
        """The cursor to continue from: the start of the subscription, or the position after the last delivery sent."""
        self.begun = False
        """True once `subscribed` has been sent to the client."""
        self.style = Style()
        self._task: asyncio.Task[None] | None = None
        self._window = asked.window
        self._unacknowledged: deque[str] = deque()
        self._acknowledged: str | None = None
        self._every_s = 0.0
        self._next_at = 0.0
        self._paused = False
        self._changed = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, None], take: Callable[[Sequence[Delivery]], bool]) -> None:
        """Run the subscription's work in a task. `take` sends deliveries while the task waits for them."""
        self.style.take = take
        self._task = asyncio.create_task(work)

    async def stop(self) -> None:
        """Cancel the subscription's task and wait for it to end.

        The cancelled task refers to everything that it was sending, so the subscription drops its reference to the
        task. Otherwise both would stay in memory until the garbage collector finds the cycle.
        """
        task, self._task, self.style.take = self._task, None, None
        if task is not None:
            await cancel_all([task])

    def turn_to(self, channel: Channel, *, keep_cursor: bool) -> None:
        self.channel = channel
        if not keep_cursor:
            self.cursor = None

    def sent(self, kind: str, cursor: str) -> None:
        """Record that a subscription's delivery has been written. Progress marks need no acknowledgement."""
        self.cursor = cursor
        if self._every_s:
            self._next_at = loop_time() + self._every_s
        if self._window is not None and kind in ("change", "snapshot"):
            self._unacknowledged.append(cursor)

    def acknowledge(self, cursor: str) -> None:
        """Record that the client has processed everything up to this cursor.

        The same cursor can occur again after the filter changes. In that case its last occurrence is acknowledged.
        Acknowledging a cursor twice is harmless.
        """
        if cursor not in self._unacknowledged and cursor != self._acknowledged:
            raise BadParameter("there is no unacknowledged delivery with this cursor", parameter="cursor")
        while cursor in self._unacknowledged:
            self._unacknowledged.popleft()
        self._acknowledged = cursor
        self._wake()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wake()

    def pace(self, every_s: float) -> None:
        """Send the subscription at most one delivery every `every_s` seconds, merging a view's changes; 0 removes the
        limit."""
        self._every_s, self.style.merge = every_s, every_s > 0
        self._next_at = loop_time() + every_s
        self._wake()

    @property
    def is_free(self) -> bool:
        """Return whether the subscription's deliveries can be sent at any time, without counting them."""
        return not self._paused and self._window is None and not self._every_s

    @property
    def is_ready(self) -> bool:
        """Return whether the subscription's next delivery can be sent now."""
        return not self._held() and self._left_s() <= 0

    def _left_s(self) -> float:
        return self._next_at - loop_time() if self._every_s else 0.0

    async def ready(self) -> None:
        """Wait until the subscription's next delivery can be sent."""
        while not self.is_ready:
            left_s = self._left_s()
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._held() else left_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _held(self) -> bool:
        return self._paused or (self._window is not None and len(self._unacknowledged) >= self._window)

    def _wake(self) -> None:
        self._changed.set()
