"""Promises of every `ChangeWatch`, inherited by the tests of each implementation: `ChangeWatchContract` by all of them,
`WakingWatchContract` by those that report changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from penstock.core.contracts import ChangeWatch
from tests.harness import wait_for

DEADLINE_S = 30.0


class WatchHome(Protocol):
    """Something that can change, and its watches."""

    def watch(self, wake: Callable[[], None]) -> ChangeWatch:
        """Return a new watch."""

    def change(self) -> None:
        """Change what is watched."""


@contextlib.contextmanager
def watching(home: WatchHome) -> Iterator[tuple[ChangeWatch, list[int]]]:
    """A watch, and the numbers of its wake-ups."""
    heard: list[int] = []
    watch = home.watch(lambda: heard.append(len(heard)))
    try:
        yield watch, heard
    finally:
        watch.close()


def wait_for_count(heard: list[int], count: int) -> None:
    wait_for(lambda: len(heard) >= count, DEADLINE_S)


class ChangeWatchContract:
    """Promises of every `ChangeWatch`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def home(self) -> WatchHome:
        raise NotImplementedError

    def test_arming_an_armed_watch_gives_the_same_answer(self, home: WatchHome) -> None:
        with watching(home) as (watch, heard):
            assert watch.arm() is watch.arm()
            assert heard == []

    def test_a_watch_can_be_closed_whether_it_is_armed_or_not(self, home: WatchHome) -> None:
        with watching(home), watching(home) as (armed, _):
            armed.arm()

    def test_a_watch_that_is_not_armed_does_not_wake(self, home: WatchHome) -> None:
        with watching(home) as (_, heard):
            self._change(home)
            assert heard == []

    def _change(self, home: WatchHome) -> None:
        home.change()


class WakingWatchContract(ChangeWatchContract):
    """Promises of every `ChangeWatch` that reports changes. Inherit this and define the fixture `home`."""

    def test_a_watch_wakes_once_each_time_it_is_armed(self, home: WatchHome) -> None:
        with watching(home) as (watch, heard):
            for number in range(1, 4):
                assert watch.arm()
                assert watch.arm()
                for _ in range(3):
                    home.change()
                wait_for_count(heard, number)
            self._change(home)
            assert len(heard) == 3

    def test_every_watch_of_the_same_wakes(self, home: WatchHome) -> None:
        with watching(home) as (one, heard), watching(home) as (other, also_heard):
            assert one.arm()
            assert other.arm()
            home.change()
            wait_for(lambda: heard and also_heard, DEADLINE_S)

    def test_a_closed_watch_does_not_wake_and_leaves_others_armed(self, home: WatchHome) -> None:
        with watching(home) as (one, heard), watching(home) as (other, also_heard):
            assert one.arm()
            assert other.arm()
            one.close()
            home.change()
            wait_for(lambda: also_heard, DEADLINE_S)
            assert heard == []

    def _change(self, home: WatchHome) -> None:
        """Change it, and wait until a new watch has heard of it: so has every other one by then."""
        with watching(home) as (watch, heard):
            assert watch.arm()
            home.change()
            wait_for(lambda: heard, DEADLINE_S)
