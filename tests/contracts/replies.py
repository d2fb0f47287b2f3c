"""Promises of every `Replies`: `RepliesContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from penstock.core.contracts import Replies
from penstock.core.errors import BadParameter

DEADLINE_S = 60.0
NEVER_S = 600.0
SOON_S = 0.05


class RepliesHome(Protocol):
    """An event that was acknowledged and has no results yet."""

    @property
    def replies(self) -> Replies:
        """The replies under test."""

    @property
    def stream(self) -> str:
        """The stream of the event."""

    @property
    def target(self) -> str:
        """The stream or view of its results."""

    @property
    def ack(self) -> str:
        """The acknowledgement of the event."""

    def answer(self) -> None:
        """Let its results be known."""

    def close(self) -> None:
        """Close everything, at the end."""


OpenReplies = Callable[[], RepliesHome]
Run = Callable[[Callable[[RepliesHome], Awaitable[None]]], None]


class RepliesContract:
    """Promises of every `Replies`. Inherit this and define the fixture `open_home`."""

    @pytest.fixture
    def open_home(self) -> OpenReplies:
        """Called in the event loop of the test."""
        raise NotImplementedError

    @pytest.fixture
    def run(self, open_home: OpenReplies) -> Run:
        async def bounded(check: Callable[[RepliesHome], Awaitable[None]]) -> None:
            home = open_home()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await check(home)
            finally:
                home.close()

        return lambda check: asyncio.run(bounded(check))

    def test_a_target_in_which_there_can_be_no_results_is_refused(self, run: Run) -> None:
        async def check(home: RepliesHome) -> None:
            home.replies.require_target(home.stream, home.target)
            with pytest.raises(BadParameter):
                home.replies.require_target(home.stream, "nothing")

        run(check)

    def test_without_results_in_time_there_is_none(self, run: Run) -> None:
        async def check(home: RepliesHome) -> None:
            assert await home.replies.reply(home.ack, home.target, SOON_S, lambda name: True) is None

        run(check)

    def test_results_come_as_soon_as_they_are_known_and_at_once_afterwards(self, run: Run) -> None:
        async def check(home: RepliesHome) -> None:
            waiting = [
                asyncio.create_task(home.replies.reply(home.ack, home.target, NEVER_S, lambda name: True))
                for _ in range(50)
            ]
            assert not (await asyncio.wait(waiting, timeout=SOON_S))[0]
            assert await asyncio.to_thread(lambda: 1) == 1, "who waits holds no thread"
            home.answer()
            first = await waiting[0]
            assert first
            assert await asyncio.gather(*waiting) == [first] * 50
            assert await home.replies.reply(home.ack, home.target, NEVER_S, lambda name: True) == first

        run(check)
