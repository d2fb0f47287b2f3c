"""Promises of every `BatchHistory`: `BatchHistoryContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

import pytest

from penstock.store import BatchHistory

DEADLINE_S = 60.0
SOON_S = 0.05


class HistoryHome(Protocol):
    """The history of a query that reads the stream `s`, and its writer."""

    def open(self) -> BatchHistory:
        """Open it for reading."""

    def commit(self, batch_id: int, *ends: int) -> None:
        """Commit a batch that reads each partition up to an offset, at a time of `batch_id` milliseconds."""


class BatchHistoryContract:
    """Promises of every `BatchHistory`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def home(self) -> HistoryHome:
        """A history without batches."""
        raise NotImplementedError

    @pytest.fixture
    def history(self, home: HistoryHome) -> Iterator[BatchHistory]:
        history = home.open()
        yield history
        history.close()

    def test_a_history_without_batches_is_empty(self, history: BatchHistory) -> None:
        assert (history.latest(), history.find("s", 0, 0)) == (None, None)

    def test_the_batch_of_an_event_is_found_and_the_one_before_it(
        self, home: HistoryHome, history: BatchHistory
    ) -> None:
        for batch_id in range(20):
            home.commit(batch_id, 5 * batch_id + 5, 2)
        for offset in range(100):
            batch = history.find("s", 0, offset)
            assert batch is not None
            assert batch.done.at_us == 1000 * (offset // 5)
            assert (batch.before is None) == (offset < 5)
        assert history.find("s", 0, 100) is None
        assert history.find("s", 1, 1) == history.find("s", 0, 0)
        assert history.find("t", 0, 0) is None

    def test_each_commit_is_there_at_once_and_told_once(self, home: HistoryHome, history: BatchHistory) -> None:
        assert [history.moved(), history.moved()] == [True, False]
        for batch_id in range(3):
            home.commit(batch_id, batch_id + 1)
            latest = history.latest()
            assert latest is not None
            assert (latest.at_us, latest.end_of("s", 0)) == (1000 * batch_id, batch_id + 1)
            assert [history.moved(), history.moved()] == [True, False]

    def test_a_closed_history_opens_again(self, home: HistoryHome, history: BatchHistory) -> None:
        home.commit(0, 1)
        before = history.latest()
        history.close()
        assert history.latest() == before is not None

    def test_waiting_ends_with_the_next_commit(self, home: HistoryHome, history: BatchHistory) -> None:
        async def check() -> None:
            for batch_id in range(3):
                history.moved()
                waiting = asyncio.create_task(history.wait())
                assert not (await asyncio.wait([waiting], timeout=SOON_S))[0], "it blocks no thread, and it waits"
                home.commit(batch_id, batch_id + 1)
                await asyncio.wait_for(waiting, DEADLINE_S)
                assert history.moved()

        asyncio.run(check())

    def test_waiting_ends_at_once_if_there_was_a_commit_since_the_last_look(
        self, home: HistoryHome, history: BatchHistory
    ) -> None:
        async def check() -> None:
            history.moved()
            home.commit(0, 1)
            await asyncio.wait_for(history.wait(), DEADLINE_S)

        asyncio.run(check())
