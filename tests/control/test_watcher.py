"""The gateway's view of the other processes: the latest messages, as long as the engine is not silent."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.control import EngineStatus, ProcessStatus, SupervisorStatus
from penstock.runtime import control
from penstock.runtime.control import ENGINE_SILENT_S, ControlWatcher
from tests.clocks import ManualClock, until
from tests.control.memory import MemoryChannel
from tests.memory_log import DEADLINE_S
from tests.runtime.statuses import engine_status


def test_an_engine_that_is_silent_for_some_seconds_is_taken_as_down_and_the_supervisor_never() -> None:
    channel, clock = MemoryChannel(), ManualClock()
    watcher = ControlWatcher(channel, clock)
    assert (watcher.engine, watcher.supervisor) == (None, None)
    channel.publish(engine_status())
    channel.publish(SupervisorStatus(gateway=ProcessStatus(pid=1), engine=ProcessStatus(pid=2)))
    watcher.look()
    published = channel.latest(EngineStatus)
    assert published is not None
    assert published.published_at is not None
    clock.time = published.published_at + timedelta(seconds=ENGINE_SILENT_S - 0.001)
    assert watcher.engine == published
    clock.move(0.001)
    assert watcher.engine is None
    assert watcher.supervisor is not None


def test_what_is_published_while_the_watcher_runs_is_seen_and_so_is_that_it_was_withdrawn() -> None:
    async def run() -> None:
        channel = MemoryChannel()
        channel.publish(engine_status("starting"))
        watcher = ControlWatcher(channel)
        task = asyncio.create_task(watcher.run())
        await asyncio.sleep(0)
        assert watcher.engine is not None, "what is there is seen in the first step"
        channel.publish(engine_status("ready"))
        await until(lambda: watcher.engine is not None and watcher.engine.state == "ready")
        channel.withdraw(EngineStatus)
        await until(lambda: watcher.engine is None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_look_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "RETRY_S", 0.0)

    class Broken(MemoryChannel):
        failures = 2

        def latest(self, kind):  # type: ignore[no-untyped-def]
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is away")
            return super().latest(kind)

    async def run() -> None:
        channel = Broken()
        channel.publish(engine_status())
        watcher = ControlWatcher(channel)
        task = asyncio.create_task(watcher.run())
        await until(lambda: watcher.engine is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
