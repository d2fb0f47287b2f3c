"""The extent of a micro-batch, and the number of its tasks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.analyze.check import EmptyLog
from penstock.analyze.source import JOINED_ROWS_MAX, LogRanges, LogStreamReader
from penstock.core.contracts import BlockingLogReader, ChangeWatch, LogReader
from penstock.handlers.batches import advance
from tests.contracts.log import EmptyStreamContract, WaitContract, batch, spec
from tests.contracts.watch import ChangeWatchContract, WatchHome, watching
from tests.memory_log import MemoryLog

sizes = st.dictionaries(st.integers(0, 5), st.integers(0, 10_000), min_size=1)


@given(sizes, sizes, st.integers(1, 10_000))
def test_a_batch_advances_and_stays_within_its_limit(start: dict[int, int], more: dict[int, int], limit: int) -> None:
    ends = {partition: start.get(partition, 0) + count for partition, count in more.items()}
    reached = advance(start, ends, limit)
    steps = {partition: reached[partition] - start.get(partition, 0) for partition in ends}
    assert reached.keys() == ends.keys()
    assert all(0 <= steps[partition] <= more[partition] for partition in ends)
    assert sum(steps.values()) <= limit + len(ends), "each partition may take one row, so that none starves"
    assert sum(steps.values()) > 0 or sum(more.values()) == 0


def reader(rows: int = 0, *, gap: int = 0) -> LogStreamReader:
    """Return the reader of a stream with so many rows in each of two partitions, the first behind a gap."""
    log = MemoryLog()
    log.declare(spec("s"))
    log.leave_gap("s", 0, gap)
    if rows:
        log.admit("s", dict.fromkeys((0, 1), batch(range(rows))))
    return LogStreamReader(lambda: log, "s", ["a"], rows_max=100, wait_s=0)


def test_a_long_gap_takes_neither_batches_nor_tasks() -> None:
    source = reader(1, gap=1_000_000)
    end = {"s/0": 1_000_001, "s/1": 1}
    assert source.latestOffset(source.initialOffset(), source.getDefaultReadLimit()) == end
    assert len(source.partitions(source.initialOffset(), end)) == 1


def test_a_small_batch_is_one_task_over_all_partitions() -> None:
    (span,) = reader(5).partitions({"s/0": 0, "s/1": 5}, {"s/0": 3, "s/1": 5})
    assert isinstance(span, LogRanges)
    assert span.ranges == [(0, 0, 3)]


def test_a_large_batch_is_a_task_for_each_partition() -> None:
    end = JOINED_ROWS_MAX
    spans = reader(end).partitions({"s/0": 0, "s/1": 0}, {"s/0": end, "s/1": end})
    assert [span.ranges for span in spans if isinstance(span, LogRanges)] == [[(0, 0, end)], [(1, 0, end)]]


def test_an_idle_stream_stays_where_it_is() -> None:
    source = reader()
    assert source.latestOffset(source.initialOffset(), source.getDefaultReadLimit()) == {"s/0": 0, "s/1": 0}


class TestEmptyLog(EmptyStreamContract, WaitContract):
    @pytest.fixture
    def empty(self) -> LogReader:
        return EmptyLog()

    @pytest.fixture
    def waiting(self) -> BlockingLogReader:
        return EmptyLog()


class EmptyLogHome:
    """The watches of a log in which nothing can change."""

    def watch(self, wake: Callable[[], None]) -> ChangeWatch:
        return EmptyLog().watch("fixes", wake)

    def change(self) -> None:
        return


class TestWatchOfEmptyLog(ChangeWatchContract):
    @pytest.fixture
    def home(self) -> WatchHome:
        return EmptyLogHome()

    def test_it_says_that_it_reports_no_changes(self, home: WatchHome) -> None:
        with watching(home) as (watch, _):
            assert not watch.arm()
