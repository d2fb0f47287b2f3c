"""Groups of requests to one transaction of the log: the part of an intake that runs in its thread.

Plain blocking code. Called by one thread at a time; nothing here knows of an event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from penstock import failpoints
from penstock.columns import place, text_of, tick_batch, to_batch
from penstock.contracts import Admission, Clock, Log
from penstock.cursor import stream_cursor
from penstock.schema import Event, event_schema

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


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


@dataclass
class _Rows:
    """What goes to one partition; `owners` has the index of the request that each event came with."""

    events: list[Any] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


class Writer:
    """Writes one stream. Made anew after a crash, it takes up offsets and ingest time from the log."""

    def __init__(self, target: Target, log: Log, clock: Clock) -> None:
        self._target = target
        self._log = log
        self._clock = clock
        self._generation = log.generation(target.name)
        self._ends = dict(log.ends(target.name))
        self._latest = self._last_ingest_time()

    def commit(self, requests: Sequence[Sequence[Any]]) -> Commit:
        """Append the events of all requests in one transaction, in order. Durable on return; on an error, nothing is.

        Ingest time is that of the group: it never goes back within the stream, whatever the clock does.
        """
        placed = self._placed(requests)
        now = self._now()
        batches = {
            partition: to_batch(self._target.event, rows.events, ids=rows.ids, keys=rows.keys, now=now)
            for partition, rows in placed.items()
        }
        duplicates = [0] * len(requests)
        if batches:
            failpoints.reach("collect.before_append")
            admission = self._log.admit(self._target.name, batches)
            failpoints.reach("collect.after_append")
            self._advance(admission, batches)
            for partition, known in admission.duplicates.items():
                for row in known:
                    duplicates[placed[partition].owners[row]] += 1
        return Commit(stream_cursor(self._generation, self._ends), duplicates)

    def tick(self) -> Commit:
        """Append one tick without an event time to every partition."""
        tick = tick_batch(event_schema(self._target.event), self._now())
        batches = dict.fromkeys(range(self._target.partitions), tick)
        self._advance(self._log.admit(self._target.name, batches), batches)
        return Commit(stream_cursor(self._generation, self._ends), ())

    def _placed(self, requests: Sequence[Sequence[Any]]) -> dict[int, _Rows]:
        placed: dict[int, _Rows] = {}
        for owner, events in enumerate(requests):
            ids = _texts(self._target.event.__id_field__, events)
            keys = _texts(self._target.key, events)
            for event, id_, key in zip(events, ids, keys, strict=True):
                partition = place(key, self._target.partitions)
                rows = placed.get(partition)
                if rows is None:
                    rows = placed[partition] = _Rows()
                rows.events.append(event)
                rows.ids.append(id_)
                rows.keys.append(key)
                rows.owners.append(owner)
        return placed

    def _advance(self, admission: Admission, batches: dict[int, pa.RecordBatch]) -> None:
        for partition, first in admission.first.items():
            taken = batches[partition].num_rows - len(admission.duplicates.get(partition, ()))
            self._ends[partition] = first + taken

    def _now(self) -> datetime:
        self._latest = max(self._latest, self._clock.now())
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


def _texts(name: str | None, events: Sequence[Any]) -> Iterable[str | None]:
    return map(text_of, map(attrgetter(name), events)) if name is not None else [None] * len(events)
