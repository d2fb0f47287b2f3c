"""Bodies that are on their way when their caller ends: a key that is revoked sends nothing more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any, cast

from penstock.access import Caller
from penstock.errors import Unauthorized
from penstock.runtime.origins import Receive

LOOK_S = 1.0
OVER = "the key that this request was sent with is revoked or expired"
Waiting = asyncio.Task[Any]


class CallerWatch:
    """Cancels tasks that wait for a caller who may do nothing any more, at most `LOOK_S` late. Not thread-safe.

    One timer looks after all of them: a task for each request would cost more than reading its body.
    """

    def __init__(self) -> None:
        self._waiting: dict[Waiting, Caller] = {}
        self._cancelled: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, task: Waiting, caller: Caller) -> None:
        """Begin a wait of this task."""
        self._waiting[task] = caller
        if self._timer is None:
            self._arm(task.get_loop())

    def leave(self, task: Waiting) -> None:
        """End it, however it ended."""
        del self._waiting[task]
        self._cancelled.discard(task)

    def cancelled(self, task: Waiting) -> bool:
        """Whether the task was cancelled from here, and by no one else; if so the cancellation is taken back."""
        return task in self._cancelled and task.uncancel() == 0

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        for task, caller in self._waiting.items():
            if task not in self._cancelled and has_ended(caller):
                self._cancelled.add(task)
                task.cancel()
        self._timer = None
        if self._waiting:
            self._arm(loop)


class Body:
    """The `receive` of one request. Raises `Unauthorized`, once, if the caller ends before the body has; what comes
    after that, and after the body, is handed on as it is."""

    __slots__ = ("_caller", "_receive", "_through", "_watch")

    def __init__(self, receive: Receive, caller: Caller, watch: CallerWatch) -> None:
        self._receive = receive
        self._caller = caller
        self._watch = watch
        self._through = False

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._through:
            return await self._receive()
        message = await self._while_valid()
        self._through = not message.get("more_body", False)
        if message["type"] == "http.request" and has_ended(self._caller):
            self._refuse()
        return message

    async def _while_valid(self) -> MutableMapping[str, Any]:
        task = cast("Waiting", asyncio.current_task())
        self._watch.enter(task, self._caller)
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if self._watch.cancelled(task):
                self._refuse()
            raise
        finally:
            self._watch.leave(task)

    def _refuse(self) -> None:
        self._through = True
        raise Unauthorized(OVER) from None


def has_ended(caller: Caller) -> bool:
    """Whether a caller may do nothing any more."""
    return caller.until <= time.time()
