"""How far a micro-batch may read, and in how many tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.analyze.batches import advance
from penstock.analyze.check import EmptyLog
from penstock.analyze.source import JOINED_ROWS_MAX, LogStreamReader, Span

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


def reader() -> LogStreamReader:
    return LogStreamReader(EmptyLog, "s", ["a"], rows_max=100, wait_s=0)


def test_a_small_batch_is_one_task_over_all_partitions() -> None:
    (span,) = reader().partitions({"s/0": 0, "s/1": 5}, {"s/0": 3, "s/1": 5})
    assert isinstance(span, Span)
    assert span.ranges == [(0, 0, 3)]


def test_a_large_batch_is_a_task_for_each_partition() -> None:
    end = JOINED_ROWS_MAX
    spans = reader().partitions({"s/0": 0, "s/1": 0}, {"s/0": end, "s/1": end})
    assert [span.ranges for span in spans if isinstance(span, Span)] == [[(0, 0, end)], [(1, 0, end)]]


def test_an_idle_stream_stays_where_it_is() -> None:
    source = reader()
    assert source.latestOffset(source.initialOffset(), source.getDefaultReadLimit()) == {"s/0": 0}
