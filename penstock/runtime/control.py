"""The latest messages from the engine and the supervisor, as the gateway reads them."""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import timedelta

from penstock.control import ControlChannel, Editions, EngineStatus, SupervisorStatus
from penstock.core.clock import WallClock
from penstock.core.contracts import Clock

RETRY_S = 1.0
"""Seconds to wait after a failed read."""
ENGINE_SILENT_S = 10.0
"""The engine publishes its status every second. If no status arrives for this many seconds, the engine counts as
down."""
log = logging.getLogger("penstock.control")


class ControlWatcher:
    """The latest messages from the engine and the supervisor, kept in memory and read by one task for the whole
    gateway. Not thread-safe."""

    def __init__(self, channel: ControlChannel, clock: Clock | None = None) -> None:
        self._channel = channel
        self._clock = clock or WallClock()
        self._engine: EngineStatus | None = None
        self.supervisor: SupervisorStatus | None = None
        """The supervisor's last message. It may be old, because the supervisor publishes only changes."""

    @property
    def engine(self) -> EngineStatus | None:
        """The engine's last message, or None if it has published nothing for `ENGINE_SILENT_S`."""
        status = self._engine
        if status is None or status.published_at is None:
            return None
        silent = self._clock.now() - status.published_at
        return status if silent < timedelta(seconds=ENGINE_SILENT_S) else None

    def look(self) -> None:
        """Read the current control messages. Blocks for at most two small reads."""
        self._engine = self._channel.latest(EngineStatus)
        self.supervisor = self._channel.latest(SupervisorStatus)

    async def run(self) -> None:
        """Read each control message when it is published, until cancelled. A failed read is logged and retried."""
        seen: Editions = {EngineStatus: None, SupervisorStatus: None}
        while True:
            try:
                editions = await self._channel.wait(seen, math.inf)
                self.look()
                seen = editions
            except Exception:
                log.exception("cannot read the messages of the other processes")
                await asyncio.sleep(RETRY_S)
