"""Groups of requests to one transaction of the log: the part of an intake that runs in its thread.

Plain blocking code. Called by one thread at a time; nothing here knows of an event loop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from penstock import failpoints
from penstock.collect.reached import Reached
from penstock.columns import place, text_of, tick_batch, to_batch
from penstock.contracts import NO_MARKS, Admission, Clock, Log, Position
from penstock.cursor import Ack, AckSigner, Span, stream_cursor
from penstock.rows import to_micros
from penstock.schema import Event, event_schema, fields

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SOON = timedelta(microseconds=1)
TAIL_ROWS = 1_000
"""Rows of each partition that are looked at, at the start, for how far time has come."""


@dataclass(frozen=True)
class Target:
    """The stream that a writer fills: its class, the field that places an event, its number of partitions, and the
    signer of its acknowledgements."""

    name: str
    event: type[Event]
    key: str | None
    partitions: int
    signer: AckSigner = field(default_factory=AckSigner, compare=False)


SPANS_MAX = 64
"""Stretches of events that an acknowledgement names. A request that repeats events from all over the log has more; the
rest of them is not followed."""


class Commit(NamedTuple):
    """A durable group: where the stream stands after it; of each request, how many of its events were known already,
    and its acknowledgement."""

    cursor: str
    duplicates: Sequence[int]
    acks: Sequence[str | None]


class Request(Protocol):
    """The events of one request, and a text that tells it from all others, if it has one."""

    @property
    def events(self) -> Sequence[Any]: ...

    @property
    def key(self) -> str | None: ...

    @property
    def places(self) -> Sequence[int] | None:
        """The places that the events had in the request before others of it were rejected or shed; None if none was."""


@dataclass(frozen=True)
class _Group:
    """The events of several requests as one batch, ordered by partition; `order` has each row's place among them."""

    batch: pa.RecordBatch
    order: Sequence[int]
    spans: Mapping[int, tuple[int, int]]

    def batches(self) -> dict[int, pa.RecordBatch]:
        return {partition: self.batch.slice(start, length) for partition, (start, length) in self.spans.items()}

    def known(self, admission: Admission) -> Iterator[tuple[int, Position]]:
        """The places, among the events as they came, of those that the log had already, and where it has them."""
        for partition, rows in admission.duplicates.items():
            start, _ = self.spans[partition]
            for row, original in zip(rows, admission.originals[partition], strict=True):
                yield self.order[start + row], original

    def taken(self, admission: Admission, ends: Sequence[int]) -> Iterator[tuple[int, Span]]:
        """The spans of the new events of each request. Requests are numbered; `ends` has where each one's events end
        among all. In a partition, events stand as they came, so those of a request stand side by side."""
        for partition, (start, length) in self.spans.items():
            row, end, offset = start, start + length, admission.first[partition]
            repeated = admission.duplicates[partition]
            while row < end:
                request = bisect_right(ends, self.order[row])
                following = bisect_left(self.order, ends[request], row, end)
                out = bisect_left(repeated, following - start) - bisect_left(repeated, row - start)
                count = following - row - out
                if count:
                    yield request, Span(partition, offset, count)
                row, offset = following, offset + count


class Writer:
    """Writes one stream. Made anew after a crash, it takes up offsets and ingest time from the log."""

    def __init__(self, target: Target, log: Log, clock: Clock, reached: Reached | None = None) -> None:
        self._target = target
        self._log = log
        self._clock = clock
        self._reached = reached or Reached(target.event.__time_field__, to_micros(clock.now()))
        self._id_texts = texts_of(target.event, target.event.__id_field__)
        self._key_texts = texts_of(target.event, target.key)
        self._generation = log.generation(target.name)
        self._ends = dict(log.ends(target.name))
        self._latest = self._recalled()

    def commit(self, requests: Sequence[Request], marks: Mapping[str, str] = NO_MARKS) -> Commit:
        """Append the events of all requests, and the marks, in one transaction, in order. Durable on return; on an
        error, nothing is.

        Ingest time is that of the group: it rises from group to group, whatever the clock does.
        """
        duplicates = [0] * len(requests)
        spans: list[list[Span]] = [[] for _ in requests]
        if marks or any(request.events for request in requests):
            group = self._grouped(requests)
            batches = group.batches()
            failpoints.reach("collect.before_append")
            admission = self._log.admit(self._target.name, batches, marks)
            failpoints.reach("collect.after_append")
            self._advance(admission, batches)
            self._reached.took(group.batch, to_micros(self._latest))
            ends = list(accumulate(len(request.events) for request in requests))
            for number, span in group.taken(admission, ends):
                spans[number].append(span)
            for place_among, original in group.known(admission):
                number = bisect_right(ends, place_among)
                duplicates[number] += 1
                _include(spans[number], original)
        return Commit(stream_cursor(self._generation, self._ends), duplicates, list(map(self._ack, spans)))

    def _ack(self, spans: Sequence[Span]) -> str | None:
        if not spans:
            return None
        return self._target.signer.sign(Ack(self._target.name, self._generation, tuple(spans[:SPANS_MAX])))

    def tick(self, at: datetime, told: datetime | None = None) -> Commit:
        """Append one tick to every partition: a group of one request without events. `told` is how far event time has
        come; without it, event time does not move."""
        event, now = self._target.event, self._later(at)
        tick = tick_batch(event_schema(event), now, event.__time_field__, told)
        batches = dict.fromkeys(range(self._target.partitions), tick)
        self._advance(self._log.admit(self._target.name, batches), batches)
        self._reached.ticked(to_micros(now), to_micros(told) if told is not None else None)
        return Commit(stream_cursor(self._generation, self._ends), [0], [None])

    def _grouped(self, requests: Sequence[Request]) -> _Group:
        """One conversion to Arrow for all partitions: its price is for each column more than for each row."""
        target = self._target
        events = [event for request in requests for event in request.events]
        ids, keys = self._ids(requests, events), self._key_texts(events)
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

    def _ids(self, requests: Sequence[Request], events: Sequence[Any]) -> list[str | None]:
        """The ids of events; if their class has none, those that the key of their request gives them."""
        if self._target.event.__id_field__ is None and any(request.key for request in requests):
            return [
                None if request.key is None else f"{request.key}/{number}"
                for request in requests
                for number in request.places or range(len(request.events))
            ]
        return self._id_texts(events)

    def _advance(self, admission: Admission, batches: dict[int, pa.RecordBatch]) -> None:
        for partition, first in admission.first.items():
            taken = batches[partition].num_rows - len(admission.duplicates.get(partition, ()))
            self._ends[partition] = first + taken

    def _later(self, at: datetime) -> datetime:
        """The time, or a later one if need be: later than every one before it, by a microsecond at least. So a row that
        is yet to come has a later time than all that are there."""
        self._latest = max(self._latest + _SOON, at)
        return self._latest

    def _recalled(self) -> datetime:
        """The newest ingest time in the log, so that a clock set back across a restart does not show; and event time,
        as far as the end of the log tells."""
        name, latest = self._target.name, _LONG_AGO
        starts = self._log.starts(name)
        for partition, end in self._ends.items():
            for batch in self._log.read(name, partition, max(starts.get(partition, 0), end - TAIL_ROWS), end):
                self._reached.recall(batch)
                latest = max([latest, *batch.column("_ingest_time").to_pylist()])
        self._reached.recalled()
        return latest


def _include(spans: list[Span], position: Position) -> None:
    """Add one event, to the last span if it stands right behind that."""
    if spans and (spans[-1].partition, spans[-1].first + spans[-1].count) == position:
        last = spans.pop()
        spans.append(Span(last.partition, last.first, last.count + 1))
    else:
        spans.append(Span(position.partition, position.offset, 1))


def texts_of(cls: type[Event], name: str | None) -> Callable[[Sequence[Any]], list[str | None]]:
    """A function that gives the texts of one field of many events. A field of text needs no conversion."""
    if name is None:
        return lambda events: [None] * len(events)
    value = attrgetter(name)
    if next(each for each in fields(cls) if each.name == name).base is str:
        return lambda events: list(map(value, events))
    return lambda events: list(map(text_of, map(value, events)))
