"""Groups of requests to one transaction of the log: the part of an intake that runs in its thread.

Plain blocking code. Called by one thread at a time; nothing here knows of an event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from penstock import failpoints
from penstock.columns import place, text_of, tick_batch, to_batch
from penstock.contracts import NO_MARKS, Admission, Clock, Log
from penstock.cursor import stream_cursor
from penstock.schema import Event, event_schema, fields

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SOON = timedelta(microseconds=1)


@dataclass(frozen=True)
class Target:
    """The stream that a writer fills: its class, the field that places an event, and its number of partitions."""

    name: str
    event: type[Event]
    key: str | None
    partitions: int


class Commit(NamedTuple):
    """A durable group: where the stream stands after it, and how many events of each request were known already."""

    cursor: str
    duplicates: Sequence[int]


@dataclass(frozen=True)
class _Group:
    """The events of several requests as one batch, ordered by partition; `order` has each row's place among them."""

    batch: pa.RecordBatch
    order: Sequence[int]
    spans: Mapping[int, tuple[int, int]]

    def batches(self) -> dict[int, pa.RecordBatch]:
        return {partition: self.batch.slice(start, length) for partition, (start, length) in self.spans.items()}

    def known(self, admission: Admission) -> Iterator[int]:
        """The places, among the events as they came, of those that the log had already."""
        for partition, rows in admission.duplicates.items():
            start, _ = self.spans[partition]
            for row in rows:
                yield self.order[start + row]


class Writer:
    """Writes one stream. Made anew after a crash, it takes up offsets and ingest time from the log."""

    def __init__(self, target: Target, log: Log, clock: Clock) -> None:
        self._target = target
        self._log = log
        self._clock = clock
        self._id_texts = _texts_of(target.event, target.event.__id_field__)
        self._key_texts = _texts_of(target.event, target.key)
        self._generation = log.generation(target.name)
        self._ends = dict(log.ends(target.name))
        self._latest = self._last_ingest_time()

    def commit(self, requests: Sequence[Sequence[Any]], marks: Mapping[str, str] = NO_MARKS) -> Commit:
        """Append the events of all requests, and the marks, in one transaction, in order. Durable on return; on an
        error, nothing is.

        Ingest time is that of the group: it rises from group to group, whatever the clock does.
        """
        duplicates = [0] * len(requests)
        events = [event for request in requests for event in request]
        if events or marks:
            group = self._grouped(events)
            batches = group.batches()
            failpoints.reach("collect.before_append")
            admission = self._log.admit(self._target.name, batches, marks)
            failpoints.reach("collect.after_append")
            self._advance(admission, batches)
            if any(admission.duplicates.values()):
                ends = list(accumulate(map(len, requests)))
                for place_among in group.known(admission):
                    duplicates[bisect_right(ends, place_among)] += 1
        return Commit(stream_cursor(self._generation, self._ends), duplicates)

    def tick(self, at: datetime) -> Commit:
        """Append one tick without an event time to every partition: a group of one request without events."""
        tick = tick_batch(event_schema(self._target.event), self._later(at))
        batches = dict.fromkeys(range(self._target.partitions), tick)
        self._advance(self._log.admit(self._target.name, batches), batches)
        return Commit(stream_cursor(self._generation, self._ends), [0])

    def _grouped(self, events: Sequence[Any]) -> _Group:
        """One conversion to Arrow for all partitions: its price is for each column more than for each row."""
        target = self._target
        ids, keys = self._id_texts(events), self._key_texts(events)
        rows: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            rows.setdefault(place(key, target.partitions), []).append(index)
        order = [index for indexes in rows.values() for index in indexes]
        batch = to_batch(
            target.event,
            [events[index] for index in order],
            ids=[ids[index] for index in order],
            keys=[keys[index] for index in order],
            now=self._later(self._clock.now()),
        )
        lengths = list(map(len, rows.values()))
        starts = accumulate(lengths, initial=0)
        return _Group(batch, order, dict(zip(rows, zip(starts, lengths, strict=False), strict=True)))

    def _advance(self, admission: Admission, batches: dict[int, pa.RecordBatch]) -> None:
        for partition, first in admission.first.items():
            taken = batches[partition].num_rows - len(admission.duplicates.get(partition, ()))
            self._ends[partition] = first + taken

    def _later(self, at: datetime) -> datetime:
        """The time, or a later one if need be: later than every one before it, by a microsecond at least. So a row that
        is yet to come has a later time than all that are there."""
        self._latest = max(self._latest + _SOON, at)
        return self._latest

    def _last_ingest_time(self) -> datetime:
        """The newest ingest time in the log, so that a clock set back across a restart does not show."""
        name, latest = self._target.name, _LONG_AGO
        starts = self._log.starts(name)
        for partition, end in self._ends.items():
            if end > starts.get(partition, 0):
                for batch in self._log.read(name, partition, end - 1, end):
                    latest = max([latest, *batch.column("_ingest_time").to_pylist()])
        return latest


def _texts_of(cls: type[Event], name: str | None) -> Callable[[Sequence[Any]], list[str | None]]:
    """A function that gives the texts of one field of many events. A field of text needs no conversion."""
    if name is None:
        return lambda events: [None] * len(events)
    value = attrgetter(name)
    if next(each for each in fields(cls) if each.name == name).base is str:
        return lambda events: list(map(value, events))
    return lambda events: list(map(text_of, map(value, events)))
