"""Wakes the channels of streams that other processes write: handler output, late events and view changes."""

from __future__ import annotations

import asyncio
import contextlib

from penstock.core.contracts import BlockingLogReader
from penstock.serve.channels.stream import StreamChannel

POLL_S = 0.25
"""Interval between wake-ups of a channel if the kernel cannot report changes to its stream."""


class ChannelWaker:
    """Wakes one channel whenever its stream has changed. Must be created in the channel's event loop."""

    def __init__(self, log: BlockingLogReader, channel: StreamChannel) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._watch = log.watch(channel.name, self._notice)
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def close(self) -> None:
        self._watch.close()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if not self._watch.arm():
            self._timer = self._loop.call_later(POLL_S, self._wake)

    def _notice(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._arm()  # before the channel checks, so that no change is missed
        self._channel.wake()
