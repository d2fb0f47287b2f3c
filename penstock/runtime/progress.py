"""How far views and handlers have come, by the places of events in the log: looked up, and waited for."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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

    def batches(self, places: Places) -> tuple[Done | None, Done] | None:
        """The batch before the first that had any of these events, and the last that had one; None if the history does
        not go back so far."""
        found = [self.history.find(places.stream, *each) for each in places.ends()]
        there = [each for each in found if each is not None]
        if not there or len(there) < len(found):
            return None
        earliest = min(there, key=lambda each: each.done.at_us)
        return earliest.before, max((each.done for each in there), key=lambda done: done.at_us)

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
