"""The clocks of the machine, of a rebuild and of tests keep the promises of the contract."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.clock import WallClock
from penstock.core.contracts import Clock
from penstock.runtime.viewrun import LogClock
from tests.clocks import ManualClock
from tests.contracts.clock import ClockContract
from tests.contracts.log import batch, spec
from tests.memory_log import MemoryLog

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class TestWallClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return WallClock()

    def test_it_shows_the_time_of_the_machine(self, clock: Clock) -> None:
        before = datetime.now(UTC)
        assert before <= clock.now() <= datetime.now(UTC)


class TestManualClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return ManualClock()

    def test_it_stands_still_until_it_is_moved(self, clock: Clock) -> None:
        assert isinstance(clock, ManualClock)
        time, monotonic = clock.now(), clock.monotonic()
        assert (clock.now(), clock.monotonic()) == (time, monotonic)
        clock.move(5)
        assert (clock.now(), clock.monotonic()) == (time + timedelta(seconds=5), monotonic + 5)


class TestLogClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        log = MemoryLog()
        log.declare(spec())
        log.admit("fixes", {0: batch([1, 2], at=NOON)})
        clock = LogClock(log)
        clock.set({"fixes": {0: 2}})
        return clock

    def test_it_shows_the_log_time_of_the_position_that_it_is_set_to(self, clock: Clock) -> None:
        assert clock.now() == NOON
