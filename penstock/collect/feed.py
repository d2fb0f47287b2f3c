"""Where a source puts its events: a bounded buffer that is emptied into the stream's intake, group by group.

To the intake, a feed is a client that sends one request at a time and retries it until it is durable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.collect.decode import REASON_LENGTH_MAX, Rejection
from penstock.collect.entrance import Entrance, letters
from penstock.collect.intake import Request, StreamIntake
from penstock.errors import Busy, Overloaded, PenstockError, Stopping, StorageError, SyncFailed, TooLarge
from penstock.schema import Event
from penstock.settings import Settings

RETRY_S = 5.0
"""How long a feed waits after an error of the log that does not say how long."""
_log = logging.getLogger("penstock.collect")


class _Buffer:
    """What was put and is not yet offered: events and rejections, their bytes, when the first of them came, and the
    mark after the last. `durable` is done when all of it is."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.events: list[Any] = []
        self.rejections: list[Rejection] = []
        self.size = 0
        self.mark: str | None = None
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.durable.add_done_callback(_seen)

    @property
    def count(self) -> int:
        return len(self.events) + len(self.rejections)


def _seen(durable: asyncio.Future[None]) -> None:
    """A source that does not look is no reason for a warning: the next `put` raises the same."""
    if not durable.cancelled():
        durable.exception()


class FeedIntake:
    """Implements `contracts.Intake`. A bad event is a dead letter. What keeps events from being written is waited out.

    So a feed stands still while the disk is full or the log is damaged, and nothing it has read is lost. `put` and
    `settle` raise only what ends the process anyway: `Stopping` and `SyncFailed`. A `put` that is cancelled has not
    taken its event. Memory: two buffers, each of at most one request's events and bytes.

    Dead letters become durable before the mark that passes them: after a crash in between, they may be there twice.
    """

    def __init__(self, source: str, entrance: Entrance, settings: Settings) -> None:
        self._source = source
        self._entrance = entrance
        self._events_max = settings.request_events_max
        self._bytes_max = settings.body_bytes_max
        self._buffer: _Buffer | None = None
        self._pump: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()
        self._failure: PenstockError | None = None

    @property
    def event(self) -> type[Event]:
        return self._entrance.intake.event

    @property
    def event_bytes_max(self) -> int:
        return self._entrance.decoder.event_bytes_max

    @property
    def mark(self) -> str | None:
        return self._entrance.intake.mark(self._source)

    async def put(self, raw: bytes, mark: str | None = None) -> asyncio.Future[None]:
        buffer = await self._room()
        try:
            decoded = self._entrance.decoder.decode(raw)
        except TooLarge as error:
            return await self.reject(raw, error.message, mark)
        buffer.events.extend(decoded.events)
        buffer.rejections.extend(decoded.rejections)
        buffer.size += len(raw)
        return self._marked(buffer, mark)

    async def reject(self, raw: bytes, reason: str, mark: str | None = None) -> asyncio.Future[None]:
        buffer = await self._room()
        buffer.rejections.append(Rejection(0, reason[:REASON_LENGTH_MAX], None, raw))
        buffer.size += len(raw)
        return self._marked(buffer, mark)

    async def note(self, mark: str) -> asyncio.Future[None]:
        return self._marked(await self._room(), mark)

    async def settle(self) -> None:
        while self._pump is not None:
            await asyncio.wait([self._pump])
        if self._failure is not None:
            raise self._failure

    async def _room(self) -> _Buffer:
        """The buffer, once it has room."""
        while self._is_full():
            self._emptied.clear()
            await self._emptied.wait()
        if self._failure is not None:
            raise self._failure
        if self._buffer is None:
            self._buffer = _Buffer(self._entrance.intake.now())
        return self._buffer

    def _is_full(self) -> bool:
        buffer = self._buffer
        return buffer is not None and (buffer.count >= self._events_max or buffer.size >= self._bytes_max)

    def _marked(self, buffer: _Buffer, mark: str | None) -> asyncio.Future[None]:
        if mark is not None:
            buffer.mark = mark
        if self._pump is None:
            self._pump = asyncio.create_task(self._empty())
        return buffer.durable

    async def _empty(self) -> None:
        """Commit what is buffered until nothing is. The only task of a feed, alive only while there is work."""
        try:
            while self._buffer is not None:
                buffer, self._buffer = self._buffer, None
                self._emptied.set()
                await self._write(buffer)
        finally:
            self._pump = None
            self._emptied.set()

    async def _write(self, buffer: _Buffer) -> None:
        """Dead letters first: a mark must not pass an event that could not be kept."""
        entrance = self._entrance
        try:
            if buffer.rejections:
                await _commit(entrance.dead_letters, Request(letters(buffer.rejections), buffer.size, self._source))
                entrance.count_rejected(len(buffer.rejections), self._source)
            if buffer.events or buffer.mark is not None:
                mark = None if buffer.mark is None else (self._source, buffer.mark)
                await _commit(
                    entrance.intake, Request(buffer.events, buffer.size, self._source, mark, came=buffer.began)
                )
        except PenstockError as error:
            self._fail(error, buffer)
        else:
            if not buffer.durable.done():  # one of those who wait for it may have been cancelled in that wait
                buffer.durable.set_result(None)

    def _fail(self, error: PenstockError, *buffers: _Buffer) -> None:
        self._failure = error
        waiting, self._buffer = self._buffer, None
        for each in (*buffers, *([waiting] if waiting is not None else [])):
            if not each.durable.done():
                each.durable.set_exception(error)


async def _commit(intake: StreamIntake, request: Request) -> None:
    """Offer until durable. Waits for room as long as it takes, and for the disk as long as it says."""
    while True:
        try:
            await intake.offer(request)
        except (Stopping, SyncFailed):
            raise
        except Overloaded:
            await intake.room()
        except (Busy, StorageError) as error:
            _log.warning("a feed waits with %d events: %s", len(request.events), error)
            await asyncio.sleep(error.retry_after_s if isinstance(error, Busy) else RETRY_S)
        else:
            return
