"""How far views and handlers have come, by the places of events in the log: looked up, and waited for; and the batches
that had them."""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.cursor import Span
from penstock.store import Done, History

POLL_MIN_S, POLL_MAX_S, POLL_GROWTH = 0.005, 0.05, 1.2
"""Wait between two looks at the progress of a node that someone waits for."""


class Places:
    """Events of one stream, by where they stand."""

    def __init__(self, stream: str, spans: Iterable[Span]) -> None:
        self.stream = stream
        self.spans: dict[int, list[Span]] = {}
        for span in sorted(spans, key=lambda span: span.first):
            self.spans.setdefault(span.partition, []).append(span)

    def __contains__(self, place: tuple[int, int]) -> bool:
        partition, offset = place
        mine = self.spans.get(partition, [])
        number = bisect_right(mine, offset, key=lambda span: span.first) - 1
        return number >= 0 and offset < mine[number].first + mine[number].count

    def ends(self) -> list[tuple[int, int]]:
        """The first and the last event of each partition."""
        found = [(partition, mine[0].first) for partition, mine in self.spans.items()]
        return found + [(partition, mine[-1].first + mine[-1].count - 1) for partition, mine in self.spans.items()]


class Progress:
    """How far a view or handler has come: looked up when asked for, and followed while someone waits. Belongs to the
    event loop; a look takes some tens of microseconds."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._latest: Done | None = None
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def reached(self, places: Places) -> bool:
        """Whether it has taken all of these events."""
        self._refresh()
        latest = self._latest
        return latest is not None and all(latest.is_past(places.stream, *each) for each in places.ends())

    async def wait(self, places: Places) -> None:
        """Return once it has."""
        with self._watched():
            while not self.reached(places):
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
        pause = POLL_MIN_S
        while True:
            pause = POLL_MIN_S if self._refresh() else min(pause * POLL_GROWTH, POLL_MAX_S)
            await asyncio.sleep(pause)

    def _refresh(self) -> bool:
        """Look once. Whoever finds news tells all who wait: the history tells of a change once."""
        if not self.history.moved():
            return False
        self._latest = self.history.latest()
        self._news.set()
        self._news = asyncio.Event()
        return True


class Run(NamedTuple):
    """Batches that follow each other: the one before the first of them, if there was one, and the last."""

    before: Done | None
    last: Done


class Batches:
    """Finds the batches of a view or handler that had events. Thread-safe, and blocks for some tens of microseconds for
    each stretch of events."""

    def __init__(self, path: Path) -> None:
        self._history = History(path)
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._history.close()

    def of(self, places: Places) -> list[Run] | None:
        """The runs of batches that had these events, and no batch between two runs unless it had one too; None if the
        history does not go back so far."""
        runs: list[Run] = []
        with self._lock:
            for partition, spans in places.spans.items():
                done = 0
                for span in spans:
                    end = span.first + span.count
                    if end <= done:
                        continue  # they were in the batch before
                    first = self._history.find(places.stream, partition, span.first)
                    last = self._history.find(places.stream, partition, end - 1)
                    if first is None or last is None:
                        return None
                    runs.append(Run(first.before, last.done))
                    done = last.done.reached(places.stream, partition)
        return runs


def last_of(runs: Iterable[Run]) -> Done:
    """The last batch of all."""
    return max((run.last for run in runs), key=lambda done: done.at_us)


def output_ranges(runs: Iterable[Run], stream: str) -> Iterator[tuple[int, int, int]]:
    """What the batches of these runs appended to a stream: partition, first offset and end of each range, each event
    once."""
    found: dict[int, list[tuple[int, int]]] = {}
    for run in runs:
        starts = run.before.outputs.get(stream, {}) if run.before is not None else {}
        for partition, end in run.last.outputs.get(stream, {}).items():
            found.setdefault(partition, []).append((starts.get(partition, 0), end))
    for partition, ranges in found.items():
        done = 0
        for start, end in sorted(ranges):
            if max(start, done) < end:
                yield partition, max(start, done), end
                done = end
