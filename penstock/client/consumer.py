"""A consumer that does each message exactly once, whatever ends in between: itself, the server, or the network.

What the handler writes with `tx` is in one transaction with the position, and so happens exactly once. What it intends
to do elsewhere is noted in the same transaction, before it is done, and settled after: so the file knows more than the
world, never less. It happens exactly once if the other side takes each id once, else at least once. Anything else that
a handler does happens at least once, and perhaps for a message that was never done.

A message is begun only when the one before it is durable. Intents of one effect are done in their order, one at a time;
those of different effects beside each other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from types import TracebackType
from typing import Any, Generic, TypeVar

from penstock.client.backoff import Backoff, Timing
from penstock.client.errors import ClientError, GaveUp
from penstock.client.following import Following
from penstock.client.ledger import TABLE, Intent, Ledger, Tx
from penstock.client.messages import Progress, Stall
from penstock.failpoints import reach

M = TypeVar("M")
Handle = Callable[[M, Tx], Awaitable[None]]
Effect = Callable[[Intent], Awaitable[None]]
_log = logging.getLogger("penstock.client")


class Consumer(Generic[M]):
    """Does what `following` brings, from a file at `path` that is its own. Use it as an async context manager.

    The file says where to begin; the `since` of `following` counts the first time only. `handle` is called with each
    message but `Progress` and `Stall`, one after the other; if it raises, the message is undone, and `run` raises.
    `effects` are called with each `Intent` until they return; one that raises is called again, with a back-off, and one
    that raises `GaveUp` is kept aside, see `failed`. Over `intents_max` open ones no new message is begun.
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
        self._turn = asyncio.Lock()  # the file's one transaction
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
            raise ClientError(f"{self._path} has intents for {unknown}, which are no effects of this consumer")
        position = self._ledger.position()
        if position is not None:
            self._following.begin_at(position)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End `run`, if it runs, and let go of the file. What was begun is done again another time."""
        if self._running not in (None, asyncio.current_task()):
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._following.aclose()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    @property
    def pending(self) -> int:
        """Intents that are not done yet."""
        return sum(self._open.values())

    async def run(self) -> None:
        """Until it is cancelled; raises what the handler raised, or what `following` did. Effects that were under way
        then are made again the next time, with the same ids."""
        self._running = asyncio.current_task()
        tasks = [asyncio.create_task(self._consume())]
        tasks += [asyncio.create_task(self._perform(name, effect)) for name, effect in self._effects.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def failed(self) -> list[Intent]:
        """Intents that were given up, with the reason."""
        async with self._turn:
            return self._file.failed()

    async def retry(self, intent: Intent) -> None:
        """Do one that was given up after all, with its old id."""
        async with self._turn:
            if await asyncio.to_thread(self._file.reopen, intent):
                self._open[intent.effect] = self._open.get(intent.effect, 0) + 1
        await self._tell()

    @property
    def _file(self) -> Ledger:
        if self._ledger is None:
            raise ClientError("open the consumer first, with `async with`")
        return self._ledger

    async def _consume(self) -> None:
        async with aclosing(self._following):
            async for message in self._following:
                if not isinstance(message, Stall):
                    async with self._changed:
                        await self._changed.wait_for(lambda: self.pending < self._most)
                    await self._do(message)

    async def _do(self, message: M) -> None:
        """One message, in one transaction."""
        file, cursor = self._file, self._following.cursor
        assert cursor is not None, "every message has one"
        reach("consumer.received")
        async with self._turn:
            file.begin()
            try:
                if not isinstance(message, Progress):
                    await self._handled(message)
                reach("consumer.handled")
                await _in_thread(lambda: file.commit(cursor))
            except BaseException:
                file.rollback()
                raise
            self._open = file.counts() if self._effects else {}
        reach("consumer.committed")
        await self._tell()

    async def _handled(self, message: M) -> None:
        file = self._file
        file.connection.set_authorizer(_allowed)
        try:
            await self._handle(message, Tx(file.connection, file.generation, frozenset(self._effects)))
        finally:
            file.connection.set_authorizer(None)

    async def _perform(self, name: str, effect: Effect) -> None:
        """The intents of one effect, in order, for ever."""
        backoff = Backoff(self._timing)
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._open.get(name, 0) > 0)
            async with self._turn:
                intent = self._file.oldest(name)
            if intent is None:
                raise ClientError(f"{self._path} has lost an intent of {name}")
            await self._make(intent, effect, backoff)

    async def _make(self, intent: Intent, effect: Effect, backoff: Backoff) -> None:
        failed = None
        try:
            await effect(intent)
            reach("consumer.performed")
        except GaveUp as reason:
            failed = str(reason) or "given up"
            _log.warning("%s of %s was given up: %s", intent.effect, intent.id, failed)
        except Exception as error:
            _log.warning("%s of %s failed, and is tried again: %r", intent.effect, intent.id, error)
            await backoff.pause()
            return
        backoff.succeeded()
        async with self._turn:
            await _in_thread(lambda: self._file.settle(intent, failed))
            self._open[intent.effect] -= 1
        reach("consumer.settled")
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _in_thread(call: Callable[[], None]) -> None:
    """Wait for a thread to the end, also if cancelled meanwhile: nobody else may touch the file before."""
    task = asyncio.create_task(asyncio.to_thread(call))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _allowed(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """What a handler may do: anything but end the transaction, or touch what is not its own."""
    if action == sqlite3.SQLITE_TRANSACTION:
        return sqlite3.SQLITE_DENY
    if first == TABLE and action in (sqlite3.SQLITE_DELETE, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DROP_TABLE):
        return sqlite3.SQLITE_DENY
    if first == "head" and action not in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
