"""One deadline for many short waits, because a timer per wait would cost more than decoding the body."""

from __future__ import annotations

import asyncio
from typing import Any

Waiting = asyncio.Task[Any]


class Deadline:
    """Cancels tasks that wait for longer than `limit_s`. A task can be cancelled up to `limit_s` late. Used in only one
    event loop.

        deadline.enter(task)
        try:
            await something
        except asyncio.CancelledError:
            if deadline.expired(task): ...
            raise
        finally:
            deadline.leave(task)

    Waits are kept in two sets, by age. Every `limit_s`, the tasks in the older set are cancelled, and the younger set
    becomes the older set.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._young: set[Waiting] = set()
        self._old: set[Waiting] = set()
        self._expired: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, task: Waiting) -> None:
        """Register a wait that this task is about to begin."""
        self._young.add(task)
        if self._timer is None:
            self._arm(task.get_loop())

    def leave(self, task: Waiting) -> None:
        """Unregister the wait, however it ended."""
        self._young.discard(task)
        if self._old:
            self._old.discard(task)
        if self._expired:
            self._expired.discard(task)

    def expired(self, task: Waiting) -> bool:
        """Return whether the task was cancelled only by this deadline; if so, uncancel it."""
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
