"""One deadline for many short waits: a timer for each would cost more than decoding its body."""

from __future__ import annotations

import asyncio
from typing import Any

Waiting = asyncio.Task[Any]


class Deadline:
    """Cancels the task of a wait that lasts longer than `limit_s`, at most `limit_s` late. Belongs to one event loop.

    deadline.enter(task)
    try:
        await something
    except asyncio.CancelledError:
        if deadline.expired(task): ...
        raise
    finally:
        deadline.leave(task)

    Waits are kept in two sets, by age. Once in each `limit_s` the older set is cancelled and the younger one grows old.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._young: set[Waiting] = set()
        self._old: set[Waiting] = set()
        self._expired: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, task: Waiting) -> None:
        """Begin a wait of this task."""
        self._young.add(task)
        if self._timer is None:
            self._arm(task.get_loop())

    def leave(self, task: Waiting) -> None:
        """End it, however it ended."""
        self._young.discard(task)
        if self._old:
            self._old.discard(task)
        if self._expired:
            self._expired.discard(task)

    def expired(self, task: Waiting) -> bool:
        """Whether the task was cancelled from here, and by no one else; if so the cancellation is taken back."""
        return task in self._expired and task.uncancel() == 0

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.limit_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        late, self._old, self._young = self._old, self._young, set()
        self._expired |= late
        for task in late:
            task.cancel()
        self._timer = None
        if self._old:
            self._arm(loop)
