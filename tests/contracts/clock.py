"""Promises of every `Clock`: `ClockContract`, inherited by the tests of each implementation."""

from __future__ import annotations

from datetime import UTC

import pytest

from penstock.core.contracts import Clock


class ClockContract:
    """Promises of every `Clock`. Inherit this and define the fixture `clock`."""

    @pytest.fixture
    def clock(self) -> Clock:
        raise NotImplementedError

    def test_the_wall_time_is_aware_and_in_utc(self, clock: Clock) -> None:
        assert clock.now().tzinfo is UTC

    def test_the_monotonic_time_is_in_seconds_and_never_goes_backwards(self, clock: Clock) -> None:
        times = [clock.monotonic() for _ in range(1_000)]
        assert all(isinstance(time, float) for time in times)
        assert times == sorted(times)
