"""Channels of streams that another process writes are woken by its commits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.settings import Settings
from penstock.runtime import wakeups
from penstock.runtime.wakeups import ChannelWaker
from penstock.serve.channels import tail
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.connections import following
from tests.memory_log import MemoryWatch
from tests.serve.fakes import FakeLog, run


class DeafWatch(MemoryWatch):
    """A watch on files whose changes the kernel does not report."""

    def arm(self) -> bool:
        return False


class DeafLog(FakeLog):
    def watch(self, stream: str, wake: Callable[[], None]) -> MemoryWatch:
        return DeafWatch(self._armed, self._lock, wake)


@pytest.mark.parametrize("log_type", [FakeLog, DeafLog])
def test_followers_hear_of_each_commit(log_type: type[FakeLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback of the channel itself would notice a commit after an hour."""
    monkeypatch.setattr(tail, "LOOK_S", 3600.0)
    monkeypatch.setattr(wakeups, "POLL_S", 0.01)

    async def main() -> None:
        log = log_type(1)
        channel = StreamChannel("x", log, Settings())
        waker = ChannelWaker(log, channel)
        heard = 0
        async with following(channel, None, None) as deliveries:
            async for delivery in deliveries:
                heard += delivery.count
                if heard >= 3:
                    break
                if delivery.count or not heard:
                    log.write(0, heard)
        waker.close()

    run(main())
