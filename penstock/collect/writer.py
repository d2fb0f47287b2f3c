"""The part of group commit that runs in the writer thread. It writes each group of requests in one log transaction.

Plain blocking code, called by one thread at a time, with no access to the event loop.
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

from penstock.collect.stream_clock import StreamClock
from penstock.core import failpoints
from penstock.core.columns import partition_of, text_of, tick_batch, to_batch
from penstock.core.contracts import NO_MARKS, Admission, AdmissionLog, AppendPosition, Clock
from penstock.core.cursor import Ack, AckSigner, Span, stream_cursor
from penstock.core.reading import rows_end
from penstock.core.schema import Event, event_schema, fields
from penstock.core.times import to_micros

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SOON = timedelta(microseconds=1)
TAIL_ROWS = 1_000
"""Maximum number of rows read from the end of each partition at startup, to learn how far time has advanced."""


@dataclass(frozen=True)
class WriteTarget:
    """The stream that a writer appends to: its event class, key field, number of partitions, and signer of
    acknowledgements."""

    name: str
    event: type[Event]
    key: str | None
    partitions: int
    signer: AckSigner = field(default_factory=AckSigner, compare=False)


SPANS_MAX = 64
"""Maximum number of spans in one acknowledgement.

If a request's duplicates are scattered across the log, it can have more spans; the excess spans cannot be followed.
"""


class Commit(NamedTuple):
    """A durable group of requests: the stream's cursor after it, and each request's duplicates and acknowledgement."""

    cursor: str
    duplicates: Sequence[int]
    acks: Sequence[str | None]


class WriteRequest(Protocol):
    """The events of one request and, optionally, a string that identifies the request."""

    @property
    def events(self) -> Sequence[Any]: ...

    @property
    def key(self) -> str | None: ...

    @property
    def indexes(self) -> Sequence[int] | None:
        """The indexes of the events in the original request if other events were rejected or shed; otherwise None."""


@dataclass(frozen=True)
class _Group:
    """The events of several requests as one batch, sorted by partition; `order` contains each row's index in arrival
    order."""

    batch: pa.RecordBatch
    order: Sequence[int]
    spans: Mapping[int, tuple[int, int]]

    def batches(self) -> dict[int, pa.RecordBatch]:
        return {partition: self.batch.slice(start, length) for partition, (start, length) in self.spans.items()}

    def known(self, admission: Admission) -> Iterator[tuple[int, AppendPosition]]:
        """Yield the arrival index and the log position of each event that was already in the log."""
        for partition, rows in admission.duplicates.items():
            start, _ = self.spans[partition]
            for row, original in zip(rows, admission.originals[partition], strict=True):
                yield self.order[start + row], original

    def taken(self, admission: Admission, ends: Sequence[int]) -> Iterator[tuple[int, Span]]:
        """Yield each span of new events, with the number of its request.

        `ends` contains the index at which each request's events end. Within a partition, events keep their arrival
        order, so the events of one request are adjacent.
        """
        for partition, (start, length) in self.spans.items():
            row, end, spans = start, start + length, list(reversed(admission.spans[partition]))
            repeated = admission.duplicates[partition]
            while row < end:
                request = bisect_right(ends, self.order[row])
                following = bisect_left(self.order, ends[request], row, end)
                out = bisect_left(repeated, following - start) - bisect_left(repeated, row - start)
                count = following - row - out
                yield from ((request, span) for span in _cut_spans(spans, count))
                row = following


class Writer:
    """Writer of the group commits of one stream. After a crash, a new writer continues from the offsets and ingest time
    in the log."""

    def __init__(
        self, target: WriteTarget, log: AdmissionLog, clock: Clock, stream_clock: StreamClock | None = None
    ) -> None:
        self._target = target
        self._log = log
        self._clock = clock
        self._stream_clock = stream_clock or StreamClock(target.event.__time_field__, to_micros(clock.now()))
        self._id_texts = texts_of(target.event, target.event.__id_field__)
        self._key_texts = texts_of(target.event, target.key)
        self._generation = log.generation(target.name)
        self._ends = dict(log.ends(target.name))
        self._latest = self._recalled()

    def commit(self, requests: Sequence[WriteRequest], marks: Mapping[str, str] = NO_MARKS) -> Commit:
        """Append the events of all requests in a group, and the marks, in one transaction, in order.

        Durable on return; all or nothing.

        Blocks. All events in a group have the same ingest time, which increases from group to group, even if the clock
        does not.
        """
        duplicates = [0] * len(requests)
        spans: list[list[Span]] = [[] for _ in requests]
        if marks or any(request.events for request in requests):
            group = self._grouped(requests)
            batches = group.batches()
            failpoints.reach("collect.before_append")
            admission = self._log.admit(self._target.name, batches, marks)
            failpoints.reach("collect.after_append")
            self._ends |= admission.ends
            self._stream_clock.took(group.batch, to_micros(self._latest))
            ends = list(accumulate(len(request.events) for request in requests))
            for number, span in group.taken(admission, ends):
                spans[number].append(span)
            for place_among, original in group.known(admission):
                number = bisect_right(ends, place_among)
                duplicates[number] += 1
                _include_position(spans[number], original)
        return Commit(stream_cursor(self._generation, self._ends), duplicates, list(map(self._ack, spans)))

    def _ack(self, spans: Sequence[Span]) -> str | None:
        if not spans:
            return None
        return self._target.signer.sign(Ack(self._target.name, self._generation, tuple(spans[:SPANS_MAX])))

    def tick(self, at: datetime, event_time: datetime | None = None) -> Commit:
        """Append one tick to every partition of the stream: a group of one request without events. Blocks.

        `event_time` is the event time that the stream has reached; without it, event time does not advance.
        """
        event, now = self._target.event, self._later(at)
        tick = tick_batch(event_schema(event), now, event.__time_field__, event_time)
        batches = dict.fromkeys(range(self._target.partitions), tick)
        self._ends |= self._log.admit(self._target.name, batches).ends
        self._stream_clock.ticked(to_micros(now), to_micros(event_time) if event_time is not None else None)
        return Commit(stream_cursor(self._generation, self._ends), [0], [None])

    def _grouped(self, requests: Sequence[WriteRequest]) -> _Group:
        """Convert a group's events of all partitions to Arrow at once, because a conversion costs more per column than
        per row."""
        target = self._target
        events = [event for request in requests for event in request.events]
        ids, keys = self._ids(requests, events), self._key_texts(events)
        rows: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            rows.setdefault(partition_of(key, target.partitions), []).append(index)
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

    def _ids(self, requests: Sequence[WriteRequest], events: Sequence[Any]) -> list[str | None]:
        """Return the ids of a group's events. If their class has no id, each id is made from the request's key and the
        event's index."""
        if self._target.event.__id_field__ is None and any(request.key for request in requests):
            return [
                None if request.key is None else f"{request.key}/{number}"
                for request in requests
                for number in request.indexes or range(len(request.events))
            ]
        return self._id_texts(events)

    def _later(self, at: datetime) -> datetime:
        """Return `at`, or the stream's last ingest time plus a microsecond if that is later.

        This way, every new row has a later time than all existing rows.
        """
        self._latest = max(self._latest + _SOON, at)
        return self._latest

    def _recalled(self) -> datetime:
        """Return the stream's latest ingest time in the log, so that ingest times increase even if the clock was set
        back.

        Also recovers event time from the rows at the end of the log.
        """
        name, latest = self._target.name, _LONG_AGO
        starts = self._log.starts(name)
        for partition, next_offset in self._ends.items():
            start = starts.get(partition, 0)
            end = rows_end(self._log, name, partition, start, next_offset)
            for batch in self._log.read(name, partition, max(start, end - TAIL_ROWS), end):
                self._stream_clock.recall(batch)
                latest = max([latest, *batch.column("_ingest_time").to_pylist()])
        self._stream_clock.recalled()
        return latest


def _cut_spans(spans: list[Span], rows: int) -> Iterator[Span]:
    """Remove `rows` rows from a request's spans, which are in reverse order: the next span is the last in the list."""
    while rows:
        span = spans.pop()
        count = min(rows, span.count)
        yield Span(span.partition, span.first, count)
        if count < span.count:
            spans.append(Span(span.partition, span.first + count, span.count - count))
        rows -= count


def _include_position(spans: list[Span], position: AppendPosition) -> None:
    """Add the position of one event to a request's spans, extending the last span if it is adjacent."""
    if spans and (spans[-1].partition, spans[-1].first + spans[-1].count) == position:
        last = spans.pop()
        spans.append(Span(last.partition, last.first, last.count + 1))
    else:
        spans.append(Span(position.partition, position.offset, 1))


def texts_of(cls: type[Event], name: str | None) -> Callable[[Sequence[Any]], list[str | None]]:
    """Return a function that converts one field of each event to a string. A string field needs no conversion."""
    if name is None:
        return lambda events: [None] * len(events)
    value = attrgetter(name)
    if next(column for column in fields(cls) if column.name == name).base is str:
        return lambda events: list(map(value, events))
    return lambda events: list(map(text_of, map(value, events)))
