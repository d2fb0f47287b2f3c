"""One deadline for many short waits: a timer for each would cost more than decoding its body."""

from __future__ import annotations

import asyncio

SWEEPS = 4
"""How often in one limit the waits are looked at: one ends at most a quarter of the limit late."""


class Deadline:
    """Cancels the task of a wait that lasts longer than `limit_s`. Belongs to one event loop.

    deadline.enter(task)
    try:
        await something
    except asyncio.CancelledError:
        if deadline.expired(task): ...
        raise
    finally:
        deadline.leave(task)
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: dict[asyncio.Task[object], float] = {}
        self._expired: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, task: asyncio.Task[object]) -> None:
        """Begin a wait of this task."""
        loop = task.get_loop()
        self._since[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.limit_s / SWEEPS, self._sweep, loop)

    def leave(self, task: asyncio.Task[object]) -> None:
        """End it, however it ended."""
        self._since.pop(task, None)
        self._expired.discard(task)

    def expired(self, task: asyncio.Task[object]) -> bool:
        """Whether the task was cancelled from here, and by no one else; if so the cancellation is taken back."""
        return task in self._expired and task.uncancel() == 0

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends with the first wait that is young enough: a dictionary keeps the order of entry."""
        self._timer = None
        latest = loop.time() - self.limit_s
        for task, since in list(self._since.items()):
            if since > latest:
                break
            del self._since[task]
            self._expired.add(task)
            task.cancel()
        if self._since:
            self._timer = loop.call_later(self.limit_s / SWEEPS, self._sweep, loop)
