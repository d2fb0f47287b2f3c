"""The bounded buffer of a source. It passes events to the stream's group commit, one group at a time.

To the group commit, a source looks like a client that sends one request at a time and retries it until it is durable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.collect.decode import REASON_LENGTH_MAX, RejectedEvent
from penstock.collect.group_commit import GroupCommit, IngressRequest
from penstock.collect.stream_ingress import StreamIngress, letters
from penstock.core.errors import Busy, Overloaded, PenstockError, Stopping, StorageError, SyncFailed, TooLarge
from penstock.core.schema import Event
from penstock.core.settings import Settings

RETRY_S = 5.0
"""Seconds that a source waits after a log error that specifies no retry time."""
_log = logging.getLogger("penstock.collect")


class _Buffer:
    """Events and rejections not yet offered, their size in bytes, the arrival time of the first, and the mark after the
    last.

    `durable` is done when all of them are durable.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.events: list[Any] = []
        self.rejections: list[RejectedEvent] = []
        self.size = 0
        self.mark: str | None = None
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.durable.add_done_callback(_retrieve_error)

    @property
    def count(self) -> int:
        return len(self.events) + len(self.rejections)


def _retrieve_error(durable: asyncio.Future[None]) -> None:
    """Retrieve a source's error, so that asyncio does not warn when a source ignores it: the next `put` raises it
    again."""
    if not durable.cancelled():
        durable.exception()


class SourceBuffer:
    """Implements `contracts.SourceWriter`. Bad events become dead letters. Waits while events cannot be written.

    So a source pauses while the disk is full or the log is damaged, and nothing it has read is lost. `put` and `settle`
    raise only errors that end the process anyway: `Stopping` and `SyncFailed`. If a `put` is cancelled, its event was
    not accepted. Memory: two buffers, each limited to the number of events and bytes that a single request can have.

    Dead letters become durable before the mark that follows them, so they may be stored twice if a crash happens in
    between.
    """

    def __init__(self, source: str, stream_ingress: StreamIngress, settings: Settings) -> None:
        self._source = source
        self._stream_ingress = stream_ingress
        self._events_max = settings.request_events_max
        self._bytes_max = settings.body_bytes_max
        self._buffer: _Buffer | None = None
        self._pump: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()
        self._failure: PenstockError | None = None

    @property
    def event(self) -> type[Event]:
        return self._stream_ingress.group_commit.event

    @property
    def event_bytes_max(self) -> int:
        return self._stream_ingress.decoder.event_bytes_max

    @property
    def mark(self) -> str | None:
        return self._stream_ingress.group_commit.mark(self._source)

    async def put(self, raw: bytes, mark: str | None = None) -> asyncio.Future[None]:
        buffer = await self._room()
        try:
            decoded = self._stream_ingress.decoder.decode(raw)
        except TooLarge as error:
            return await self.reject(raw, error.message, mark)
        buffer.events.extend(decoded.events)
        buffer.rejections.extend(decoded.rejections)
        buffer.size += len(raw)
        return self._marked(buffer, mark)

    async def reject(self, raw: bytes, reason: str, mark: str | None = None) -> asyncio.Future[None]:
        buffer = await self._room()
        buffer.rejections.append(RejectedEvent(0, reason[:REASON_LENGTH_MAX], None, raw))
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
        """Wait until the source's buffer has room, and return it."""
        while self._is_full():
            self._emptied.clear()
            await self._emptied.wait()
        if self._failure is not None:
            raise self._failure
        if self._buffer is None:
            self._buffer = _Buffer(self._stream_ingress.group_commit.arrival_time())
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
        """Commit the source's buffered events until none are left. This is the buffer's only task, and it runs only
        while there are events."""
        try:
            while self._buffer is not None:
                buffer, self._buffer = self._buffer, None
                self._emptied.set()
                await self._write(buffer)
        finally:
            self._pump = None
            self._emptied.set()

    async def _write(self, buffer: _Buffer) -> None:
        """Write one buffer of a source, dead letters first, because the mark must not advance past an event that could
        not be stored."""
        stream_ingress = self._stream_ingress
        try:
            if buffer.rejections:
                await _commit_source_events(
                    stream_ingress.dead_letters, IngressRequest(letters(buffer.rejections), buffer.size, self._source)
                )
                stream_ingress.count_rejected(len(buffer.rejections), self._source)
            if buffer.events or buffer.mark is not None:
                mark = None if buffer.mark is None else (self._source, buffer.mark)
                await _commit_source_events(
                    stream_ingress.group_commit,
                    IngressRequest(buffer.events, buffer.size, self._source, mark, came=buffer.began),
                )
        except PenstockError as error:
            self._fail(error, buffer)
        else:
            if not buffer.durable.done():  # a cancelled waiter cancels the future
                buffer.durable.set_result(None)

    def _fail(self, error: PenstockError, *buffers: _Buffer) -> None:
        self._failure = error
        waiting, self._buffer = self._buffer, None
        for buffer in (*buffers, *([waiting] if waiting is not None else [])):
            if not buffer.durable.done():
                buffer.durable.set_exception(error)


async def _commit_source_events(group_commit: GroupCommit, request: IngressRequest) -> None:
    """Offer a source's events, and retry until they are durable. Waits as long as it takes for room in the queue. After
    a storage error, waits for the error's retry time, or for `RETRY_S`, before it retries."""
    while True:
        try:
            await group_commit.offer(request)
        except (Stopping, SyncFailed):
            raise
        except Overloaded:
            await group_commit.room()
        except (Busy, StorageError) as error:
            _log.warning("retrying the write of %d events from a source: %s", len(request.events), error)
            await asyncio.sleep(error.retry_after_s if isinstance(error, Busy) else RETRY_S)
        else:
            return
