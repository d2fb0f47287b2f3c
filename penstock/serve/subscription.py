"""One subscription of a WebSocket: where it stands, and when it may be sent more."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from penstock.contracts import Channel, Delivery, Style
from penstock.errors import BadParameter

WINDOW_MAX = 1_000
EVERY_S_MAX = 3_600.0


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """What a client may say."""

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
    """What its client has said of it. Belongs to one event loop.

    Nothing is read from the channel before `ready`, so a subscription that is paused, paced or unacknowledged falls
    behind as a slow reader does, and is treated as one.
    """

    def __init__(self, asked: Message, channel: Channel) -> None:
        self.asked = asked
        self.channel = channel
        self.cursor = asked.since
        """Where it goes on: where it began, or after what was sent last."""
        self.begun = False
        """Whether its client was told that it has begun."""
        self.style = Style()
        self.task: asyncio.Task[None] | None = None
        self._window = asked.window
        self._unacknowledged: deque[str] = deque()
        self._acknowledged: str | None = None
        self._every_s = 0.0
        self._next_at = 0.0
        self._paused = False
        self._changed = asyncio.Event()

    async def stop(self) -> None:
        """End its task, and wait for that."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def turn_to(self, channel: Channel, *, keep_place: bool) -> None:
        self.channel = channel
        if not keep_place:
            self.cursor = None

    def sent(self, delivery: Delivery) -> None:
        """Note that a delivery is on its way. Marks of progress need no acknowledgement."""
        self.cursor = delivery.cursor
        if self._every_s:
            self._next_at = _now() + self._every_s
        if self._window is not None and delivery.kind in ("change", "snapshot"):
            self._unacknowledged.append(delivery.cursor)

    def acknowledge(self, cursor: str) -> None:
        """Take note that the client is done with everything up to this cursor. Through another filter the same cursor
        can come once more: the last one counts, and to acknowledge it again does no harm."""
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
        """At most one delivery in this time, and changes of a view merged; 0 for all of them at once."""
        self._every_s, self.style.merge = every_s, every_s > 0
        self._next_at = _now() + every_s
        self._wake()

    @property
    def is_free(self) -> bool:
        """Whether anything may go out at any time, and need not be counted."""
        return not self._paused and self._window is None and not self._every_s

    @property
    def is_ready(self) -> bool:
        """Whether the next delivery may go out now."""
        return not self._held() and self._left_s() <= 0

    def _left_s(self) -> float:
        return self._next_at - _now() if self._every_s else 0.0

    async def ready(self) -> None:
        """Return when the next delivery may go out."""
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


def _now() -> float:
    return asyncio.get_running_loop().time()
