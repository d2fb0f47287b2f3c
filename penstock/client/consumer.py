"""A consumer that processes each message exactly once, even if it, the server or the network fails in between.

The handler's writes through `tx` are committed in one transaction with the position, so they take effect exactly once.
An action elsewhere is recorded as an intent in the same transaction, performed after the commit, and then settled, so
no action is ever lost. The action happens exactly once if the other side accepts each id only once, and otherwise at
least once. Anything else that a handler does happens at least once, possibly even for a message that is then rolled
back.

A message is processed only when the previous one is durable. The intents of one effect are performed in order, one at a
time; different effects run in parallel.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from penstock.client.errors import ClientError, GaveUp
from penstock.client.following import Following
from penstock.client.ledger import TABLE, Intent, Ledger, Tx
from penstock.client.messages import Progress, Stall
from penstock.client.timing import Retries, Timing
from penstock.core.failpoints import reach
from penstock.core.tasks import first_of

M = TypeVar("M")
Handle = Callable[[M, Tx], Awaitable[None]]
Effect = Callable[[Intent], Awaitable[None]]
_log = logging.getLogger("penstock.client")


class Consumer(Generic[M]):
    """Processes the messages of `following`, with its own file at `path`. Use it as an async context manager.

    The file holds the position; `since` in `following` is used only the first time. `handle` is called with each
    message in turn, except `Progress` and `Stall`; if it raises, the message is rolled back and `run` raises the same
    error. An effect is called with each of its intents until a call succeeds. If the effect raises, it is called again
    after a back-off; if it raises `GaveUp`, the intent is set aside (see `failed`). While `intents_max` intents are
    open, no new message is processed.
    """

    def __init__(
        self,
        following: Following[M],
        path: str | os.PathLike[str],
        handle: Handle[M],
        *,
        effects: Mapping[str, Effect] | None = None,
        intents_max: int = 1_000,
        timing: Timing | None = None,
    ) -> None:
        self._following = following
        self._path = path
        self._handle = handle
        self._effects = dict(effects or {})
        self._most = intents_max
        self._timing = timing or Timing()
        self._ledger: Ledger | None = None
        self._turn = asyncio.Lock()  # guards the file's single transaction
        self._open: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._running: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Consumer[M]:
        target = {name: value for name, value in asdict(self._following.target).items() if value is not None}
        self._ledger = await asyncio.to_thread(Ledger, self._path, target)
        self._open = self._ledger.counts()
        unknown = sorted(self._open.keys() - self._effects.keys())
        if unknown:
            await self.aclose()
            raise ClientError(f"{self._path} has intents for {unknown}, but this consumer has no such effects")
        position = self._ledger.position()
        if position is not None:
            self._following.begin_at(position)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the consumer's `run`, if it is running, and close its file. Unfinished work is repeated next time."""
        if self._running not in (None, asyncio.current_task()):
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._following.aclose()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    @property
    def pending(self) -> int:
        """The number of the consumer's open intents."""
        return sum(self._open.values())

    async def run(self) -> None:
        """Process messages until cancelled. Raises any error from the handler or from `following`.

        Effects that are interrupted are repeated next time, with the same ids.
        """
        self._running = asyncio.current_task()
        tasks = [asyncio.create_task(self._consume())]
        tasks += [asyncio.create_task(self._perform_intents(name, effect)) for name, effect in self._effects.items()]
        for task in await first_of(*tasks):
            task.result()

    async def failed(self) -> list[Intent]:
        """Return the consumer's intents that failed because their effect raised `GaveUp`, with the reasons."""
        async with self._turn:
            return self._opened_ledger.failed()

    async def retry(self, intent: Intent) -> None:
        """Reopen an intent whose effect raised `GaveUp`. It keeps its id."""
        async with self._turn:
            if await asyncio.to_thread(self._opened_ledger.reopen, intent):
                self._open[intent.effect] = self._open.get(intent.effect, 0) + 1
        await self._notify_changed()

    @property
    def _opened_ledger(self) -> Ledger:
        if self._ledger is None:
            raise ClientError("open the consumer first, with `async with`")
        return self._ledger

    async def _consume(self) -> None:
        async with aclosing(self._following):
            async for message in self._following:
                if not isinstance(message, Stall):
                    async with self._changed:
                        await self._changed.wait_for(lambda: self.pending < self._most)
                    await self._process_message(message)

    async def _process_message(self, message: M) -> None:
        """Process one message of the consumer, in one transaction."""
        file, cursor = self._opened_ledger, self._following.cursor
        assert cursor is not None, "every message has a cursor"
        reach("consumer.received")
        async with self._turn:
            file.begin()
            try:
                if not isinstance(message, Progress):
                    await self._call_handler(message)
                reach("consumer.handled")
                await _run_ledger_call(lambda: file.commit(cursor))
            except BaseException:
                file.rollback()
                raise
            self._open = file.counts() if self._effects else {}
        reach("consumer.committed")
        await self._notify_changed()

    async def _call_handler(self, message: M) -> None:
        file = self._opened_ledger
        file.connection.set_authorizer(_authorize_handler_sql)
        try:
            await self._handle(message, Tx(file.connection, file.generation, frozenset(self._effects)))
        finally:
            file.connection.set_authorizer(None)

    async def _perform_intents(self, name: str, effect: Effect) -> None:
        """Perform the consumer's intents of one effect, in order, until cancelled."""
        retries = Retries(self._timing)
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._open.get(name, 0) > 0)
            async with self._turn:
                intent = self._opened_ledger.oldest(name)
            if intent is None:
                raise ClientError(f"{self._path} has lost an intent for {name}")
            await self._perform_intent(intent, effect, retries)

    async def _perform_intent(self, intent: Intent, effect: Effect, retries: Retries) -> None:
        failed = None
        try:
            await effect(intent)
            reach("consumer.performed")
        except GaveUp as reason:
            failed = str(reason) or "given up"
            _log.warning("%s gave up on %s: %s", intent.effect, intent.id, failed)
        except Exception as error:
            _log.warning("%s failed for %s; retrying: %r", intent.effect, intent.id, error)
            await retries.pause()
            return
        retries.succeeded()
        async with self._turn:
            await _run_ledger_call(lambda: self._opened_ledger.settle(intent, failed))
            self._open[intent.effect] -= 1
        reach("consumer.settled")
        await self._notify_changed()

    async def _notify_changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _run_ledger_call(call: Callable[[], None]) -> None:
    """Run a call in a thread and wait for its end, even if cancelled: until then, nothing else may use the file."""
    task = asyncio.create_task(asyncio.to_thread(call))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _authorize_handler_sql(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """SQLite authorizer: a handler may not end the transaction or touch reserved tables."""
    if action == sqlite3.SQLITE_TRANSACTION:
        return sqlite3.SQLITE_DENY
    if first == TABLE and action in (sqlite3.SQLITE_DELETE, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DROP_TABLE):
        return sqlite3.SQLITE_DENY
    if first == "head" and action not in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
