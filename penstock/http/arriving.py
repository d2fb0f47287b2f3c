"""Ends requests whose caller's key is revoked or expires while their body is still arriving, or before their response
begins, and waits on behalf of a WebSocket's client that has disconnected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol, TypeVar, cast

from penstock.core.access import Caller
from penstock.core.errors import Unauthorized
from penstock.core.tasks import cancel_all
from penstock.http.origins import Receive, Scope, Send

LOOK_S = 1.0
OVER = "the key of this request has been revoked or has expired"
Waiting = asyncio.Task[Any]
T = TypeVar("T")
CLIENT = "penstock.client"
"""Key of the `SocketClient` in the extensions of a WebSocket's scope."""


class CallerWatch:
    """Cancels waiting tasks within `LOOK_S` after their caller's key has been revoked or has expired. Not thread-safe.

    One timer serves all tasks, because an additional task per request would cost more than most requests.
    """

    def __init__(self) -> None:
        self._waiting: dict[Waiting, Caller] = {}
        self._cancelled: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, task: Waiting, caller: Caller) -> None:
        """Register the task of a request that is waiting."""
        self._waiting[task] = caller
        if self._timer is None:
            self._arm(task.get_loop())

    def leave(self, task: Waiting) -> None:
        """Unregister a task whose wait is over, however it ended."""
        del self._waiting[task]
        self._cancelled.discard(task)

    def cancelled(self, task: Waiting) -> bool:
        """Return whether the task was cancelled only by this watch; if so, uncancel it."""
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
    """The `receive` callable of one request. Raises `Unauthorized`, once, if the caller's key is revoked or expires
    before the body is complete.

    After that exception, and after the end of the body, messages are passed on unchanged.
    """

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
            self._raise_unauthorized()
        return message

    async def _while_valid(self) -> MutableMapping[str, Any]:
        task = cast("Waiting", asyncio.current_task())
        self._watch.enter(task, self._caller)
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if self._watch.cancelled(task):
                self._raise_unauthorized()
            raise
        finally:
            self._watch.leave(task)

    def _raise_unauthorized(self) -> None:
        self._through = True
        raise Unauthorized(OVER) from None


async def read_while_valid(
    application: Callable[[Scope, Receive, Send], Awaitable[None]],
    watch: CallerWatch,
    caller: Caller,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Handle a request that changes nothing, which can therefore be cancelled at any point. Raises `Unauthorized`,
    before anything is sent, if the caller's key is revoked or expires before the response begins."""
    task = cast("Waiting", asyncio.current_task())
    begun = refused = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal begun, refused
        if not begun:
            begun, refused = True, has_ended(caller)
            watch.leave(task)  # long responses check the caller themselves
        if not refused:
            await send(message)

    watch.enter(task, caller)
    try:
        await application(scope, receive, sending)
    except asyncio.CancelledError:
        if begun or not watch.cancelled(task):
            raise
        refused = True
    finally:
        if not begun:
            watch.leave(task)
    if refused:
        raise Unauthorized(OVER)


def has_ended(caller: Caller) -> bool:
    """Return whether a caller has lost all permissions."""
    return caller.until <= time.time()


class SocketClient(Protocol):
    """The client of a WebSocket. Used in only one event loop."""

    def has_left(self) -> bool:
        """Return whether the client has disconnected, even if nothing is being read from it."""

    def release(self) -> None:
        """Stop counting the message that was received last. By default, it counts until the next call of `receive`."""


class ClientLeft(Exception):
    """The client of a WebSocket disconnected while its session was waiting for something else."""


async def while_connected(client: SocketClient, wait: Coroutine[Any, Any, T]) -> T:
    """Return the result of `wait`. If the client disconnects first, cancel `wait` and raise `ClientLeft`, at most
    `LOOK_S` later.

    Costs a task, so call it only if there is something to wait for.
    """
    task = asyncio.ensure_future(wait)
    try:
        while not (await asyncio.wait((task,), timeout=LOOK_S))[0]:
            if client.has_left():
                raise ClientLeft
        return task.result()
    finally:
        await cancel_all((task,))
