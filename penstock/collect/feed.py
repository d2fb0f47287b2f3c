"""Where a source puts its events: a bounded buffer that is emptied into the stream's intake, group by group.

To the intake, a feed is a client that sends one request at a time and retries it until it is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from penstock.collect.decode import Rejection
from penstock.collect.entrance import Entrance, letters
from penstock.collect.intake import StreamIntake
from penstock.errors import Busy, Overloaded, PenstockError, Stopping, StorageError, SyncFailed
from penstock.settings import Settings

RETRY_S = 5.0
"""How long a feed waits after an error of the log that does not say how long."""
_log = logging.getLogger("penstock.collect")


class FeedIntake:
    """Implements `contracts.Intake`. A bad event is a dead letter. What keeps events from being written is waited out.

    So a feed stands still while the disk is full or the log is damaged, and nothing it has read is lost. `put` and
    `settle` raise only what ends the process anyway: `Stopping` and `SyncFailed`. A `put` that is cancelled has not
    taken its event. Memory: two buffers, each of at most one request's events and bytes.
    """

    def __init__(self, entrance: Entrance, settings: Settings) -> None:
        self._entrance = entrance
        self._events_max = settings.request_events_max
        self._bytes_max = settings.body_bytes_max
        self._events: list[Any] = []
        self._rejections: list[Rejection] = []
        self._bytes = 0
        self._pump: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()
        self._failure: PenstockError | None = None

    async def put(self, raw: bytes) -> None:
        while self._is_full():
            self._emptied.clear()
            await self._emptied.wait()
        if self._failure is not None:
            raise self._failure
        decoded = self._entrance.decoder.decode(raw)
        self._events.extend(decoded.events)
        self._rejections.extend(decoded.rejections)
        self._bytes += len(raw)
        if self._pump is None:
            self._pump = asyncio.create_task(self._empty())

    async def settle(self) -> None:
        while self._pump is not None:
            await asyncio.wait([self._pump])
        if self._failure is not None:
            raise self._failure

    def _is_full(self) -> bool:
        return self._failure is None and (
            len(self._events) + len(self._rejections) >= self._events_max or self._bytes >= self._bytes_max
        )

    async def _empty(self) -> None:
        """Commit what is buffered until nothing is. The only task of a feed, alive only while there is work."""
        try:
            while self._events or self._rejections:
                events, rejections, size = self._events, self._rejections, self._bytes
                self._events, self._rejections, self._bytes = [], [], 0
                self._emptied.set()
                if rejections:
                    await _commit(self._entrance.dead_letters, letters(rejections), size)
                    self._entrance.intake.counters.received += len(rejections)
                    self._entrance.intake.counters.rejected += len(rejections)
                if events:
                    await _commit(self._entrance.intake, events, size)
        except PenstockError as error:
            self._failure = error
        finally:
            self._pump = None
            self._emptied.set()


async def _commit(intake: StreamIntake, events: Sequence[Any], size: int) -> None:
    """Offer until durable. Waits for room as long as it takes, and for the disk as long as it says."""
    while True:
        try:
            await intake.offer(events, size)
        except (Stopping, SyncFailed):
            raise
        except Overloaded:
            await intake.drain()
        except (Busy, StorageError) as error:
            _log.warning("a feed waits with %d events: %s", len(events), error)
            await asyncio.sleep(error.retry_after_s if isinstance(error, Busy) else RETRY_S)
        else:
            return
