"""Look up, or wait for, the progress of views and handlers by log position, and find the batches that included an
event."""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.core.cursor import Span
from penstock.store import BatchHistory, Done


class LogPositions:
    """Events of one stream, by log position."""

    def __init__(self, stream: str, spans: Iterable[Span]) -> None:
        self.stream = stream
        self.spans: dict[int, list[Span]] = {}
        for span in sorted(spans, key=lambda span: span.first):
            self.spans.setdefault(span.partition, []).append(span)

    def __contains__(self, position: tuple[int, int]) -> bool:
        partition, offset = position
        mine = self.spans.get(partition, [])
        number = bisect_right(mine, offset, key=lambda span: span.first) - 1
        return number >= 0 and offset < mine[number].first + mine[number].count

    def ends(self) -> list[tuple[int, int]]:
        """Return the first and the last event of each partition."""
        ends = [(partition, mine[0].first) for partition, mine in self.spans.items()]
        return ends + [(partition, mine[-1].first + mine[-1].count - 1) for partition, mine in self.spans.items()]


class ProgressTracker:
    """The progress of a view or handler, which is looked up on request and followed while a request waits. Used only in
    the event loop; a check takes tens of microseconds."""

    def __init__(self, history: BatchHistory) -> None:
        self.history = history
        self._latest: Done | None = None
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def has_read(self, positions: LogPositions) -> bool:
        """Return whether the node has processed all of these events."""
        self._refresh()
        latest = self._latest
        return latest is not None and all(latest.is_past(positions.stream, *end) for end in positions.ends())

    async def wait(self, positions: LogPositions) -> None:
        """Return once the node has processed all of these events."""
        with self._watched():
            while not self.has_read(positions):
                await self._news.wait()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self._waiting += 1
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._watch.cancel()
                self._watch = None

    async def _look(self) -> None:
        while True:
            await self.history.wait()
            self._refresh()

    def _refresh(self) -> bool:
        """Check once for progress, and wake all waiting requests if there is progress, because the history reports each
        change only once."""
        if not self.history.moved():
            return False
        self._latest = self.history.latest()
        self._news.set()
        self._news = asyncio.Event()
        return True


class BatchRun(NamedTuple):
    """Consecutive batches: `before` is the batch before the first of them, if any, and `last` is the last of them."""

    before: Done | None
    last: Done


class Batches:
    """Index of the batches of a view or handler, which finds the batches that included certain events. Thread-safe;
    blocks for tens of microseconds for each span of events."""

    def __init__(self, history: BatchHistory) -> None:
        self._history = history
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._history.close()

    def of(self, positions: LogPositions) -> list[BatchRun] | None:
        """Return the runs of a node's batches that included these events, leaving out the batches in between that
        included none of them. Returns None if the history does not go back far enough."""
        runs: list[BatchRun] = []
        with self._lock:
            for partition, spans in positions.spans.items():
                done = 0
                for span in spans:
                    end = span.first + span.count
                    if end <= done:
                        continue  # the previous run includes these events
                    first = self._history.find(positions.stream, partition, span.first)
                    last = self._history.find(positions.stream, partition, end - 1)
                    if first is None or last is None:
                        return None
                    runs.append(BatchRun(first.before, last.done))
                    done = last.done.end_of(positions.stream, partition)
        return runs


def last_of(runs: Iterable[BatchRun]) -> Done:
    """Return the last batch of all these runs."""
    return max((run.last for run in runs), key=lambda done: done.at_us)


def output_ranges(runs: Iterable[BatchRun], stream: str) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges that a node's batches in these runs appended to a stream, as partition, first offset and end. No
    event is in two ranges."""
    partitions: dict[int, list[tuple[int, int]]] = {}
    for run in runs:
        starts = run.before.outputs.get(stream, {}) if run.before is not None else {}
        for partition, end in run.last.outputs.get(stream, {}).items():
            partitions.setdefault(partition, []).append((starts.get(partition, 0), end))
    for partition, ranges in partitions.items():
        done = 0
        for start, end in sorted(ranges):
            if max(start, done) < end:
                yield partition, max(start, done), end
                done = end
