"""A log in memory, shared by the tests that need no durable one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.core.contracts import NO_MARKS, Admission, AppendPosition, StreamSpec
from penstock.core.cursor import Span
from penstock.core.errors import BadCursor, DeclarationError, NotFound
from penstock.core.reading import with_offsets
from penstock.core.schema import KIND_EVENT
from penstock.queue.gaps import Offsets, dense

DEADLINE_S = 60.0


class MemoryStream:
    """The batches of one stream, and the ids that are remembered."""

    def __init__(self, generation: int, spec: StreamSpec, offsets: Offsets) -> None:
        self.generation, self.spec = generation, spec
        self._offsets = offsets
        self.starts = dict.fromkeys(range(spec.partitions), 0)
        self.ends = dict(self.starts)
        self.batches: dict[int, list[tuple[int, pa.RecordBatch]]] = {partition: [] for partition in self.starts}
        self._rows: dict[int, list[dict[str, Any]]] = {partition: [] for partition in self.starts}
        self._converted = dict.fromkeys(self.starts, 0)
        self._ids: dict[str, tuple[AppendPosition, datetime]] = {}

    def add(self, partition: int, batch: pa.RecordBatch) -> None:
        """Append a batch as it is; a log does not store empty ones."""
        self._store(partition, batch, self._offsets(self.ends[partition], batch.num_rows))

    def _store(self, partition: int, batch: pa.RecordBatch, offsets: Sequence[int]) -> list[Span]:
        """Store rows under the first of these offsets, in one batch for each run without gaps."""
        rows, first, spans = batch.num_rows, 0, list[Span]()
        for row in range(1, rows + 1):
            if row == rows or offsets[row] != offsets[row - 1] + 1:
                spans.append(Span(partition, offsets[first], row - first))
                self.batches[partition].append((offsets[first], batch.slice(first, row - first)))
                first = row
        if rows:
            self.ends[partition] = offsets[rows]
        return spans

    def skip(self, partition: int, offsets: int) -> None:
        """Leave a gap."""
        self.ends[partition] += offsets

    def take(self, partition: int, batch: pa.RecordBatch) -> Taken:
        """Append the rows whose id is not remembered, and remember theirs."""
        if batch.schema != self.spec.schema:
            raise DeclarationError(f"the batch has other columns than stream {self.spec.name}")
        offsets, taken = self._offsets(self.ends[partition], batch.num_rows), Taken()
        for index, (name, at) in enumerate(_ids_and_times(batch, self.spec.unique_ids)):
            original = self._remembered(name, at)
            if original is None:
                if name is not None:
                    self._ids[name] = AppendPosition(partition, offsets[len(taken.rows)]), at
                taken.rows.append(index)
            else:
                taken.duplicates.append(index)
                taken.originals.append(original)
        kept = batch if len(taken.rows) == batch.num_rows else batch.take(pa.array(taken.rows, pa.int64()))
        taken.spans = self._store(partition, kept, offsets)
        return taken

    def _remembered(self, name: str | None, at: datetime) -> AppendPosition | None:
        if name is None or name not in self._ids:
            return None
        original, since = self._ids[name]
        return original if at - since <= self.spec.unique_for else None

    def trim_to(self, partition: int, start: int) -> None:
        self.starts[partition] = start
        kept = [(first, batch) for first, batch in self.batches[partition] if first + batch.num_rows > start]
        self.batches[partition], self._rows[partition], self._converted[partition] = kept, [], 0

    def offsets(self, partition: int) -> list[int]:
        start = self.starts[partition]
        return [
            offset
            for first, batch in self.batches[partition]
            for offset in range(max(start, first), first + batch.num_rows)
        ]

    def rows(self) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of all batches, each converted once however often this is called."""
        for partition, batches in self.batches.items():
            for _, batch in batches[self._converted[partition] :]:
                self._rows[partition] += batch.to_pylist(maps_as_pydicts="strict")
            self._converted[partition] = len(batches)
        return self._rows

    def rows_between(self, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        return sum(
            max(0, min(stop, first + batch.num_rows) - max(start.get(partition, self.starts[partition]), first))
            for partition, stop in end.items()
            for first, batch in self.batches[partition]
        )

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if partition not in self.starts or not self.starts[partition] <= start <= end <= self.ends[partition]:
            raise BadCursor(f"[{start}, {end}) of partition {partition} is not fully retained")
        for first, batch in list(self.batches[partition]):
            low, high = max(start, first), min(end, first + batch.num_rows)
            if low < high:
                yield with_offsets(batch.slice(low - first, high - low), low)


@dataclass
class Taken:
    """The outcome of an admission for one partition: the offsets of the rows taken, their indexes, and those of
    duplicates."""

    spans: list[Span] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    originals: list[AppendPosition] = field(default_factory=list)


def _ids_and_times(batch: pa.RecordBatch, unique_ids: int) -> Iterator[tuple[str | None, datetime]]:
    times = batch.column("_ingest_time").to_pylist()
    names = batch.column("_id").to_pylist() if unique_ids else [None] * batch.num_rows
    return zip(names, times, strict=True)


class MemoryWatch:
    """A `ChangeWatch` on a log in memory."""

    def __init__(self, armed: set[MemoryWatch], lock: threading.RLock, wake: Callable[[], None]) -> None:
        self._armed, self._lock, self.wake = armed, lock, wake

    def arm(self) -> bool:
        with self._lock:
            self._armed.add(self)
        return True

    def close(self) -> None:
        with self._lock:
            self._armed.discard(self)


class MemoryLog:
    """An `AdmissionLog` and `BlockingLogReader` without files, and what a test needs to look into it, stall it and make
    it fail. Its offsets have gaps if it is given a function that leaves them.

    `gate` closed: admissions wait. `faults`: raised by the next admissions, one each. Safe for threads.
    """

    def __init__(self, offsets: Offsets = dense) -> None:
        self._lock = threading.RLock()
        self._offsets = offsets
        self._changed = threading.Condition(self._lock)
        self._armed: set[MemoryWatch] = set()
        self._generations = count(1)
        self._streams: dict[str, MemoryStream] = {}
        self.marked: dict[str, dict[str, str]] = {}
        self.admits: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.faults: list[Exception] = []
        self.at_the_gate = 0
        """Admissions that have come to the gate."""

    def declare(self, spec: StreamSpec) -> None:
        with self._lock:
            stream = self._streams.get(spec.name)
            if stream is None:
                self._streams[spec.name] = MemoryStream(next(self._generations), spec, self._offsets)
            elif stream.spec.partitions != spec.partitions:
                raise DeclarationError(f"stream {spec.name} has {stream.spec.partitions} partitions")
            else:
                stream.spec = spec
        self._tell()

    def admit(
        self, stream: str, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str] = NO_MARKS
    ) -> Admission:
        self.at_the_gate += 1
        assert self.gate.wait(DEADLINE_S), "the gate was left closed"
        if self.faults:
            raise self.faults.pop(0)
        with self._lock:
            self.admits.append(stream)
            into = self._stream(stream)
            taken = {partition: into.take(partition, batch) for partition, batch in batches.items()}
            self.marked.setdefault(stream, {}).update(marks)
            admission = Admission(
                {partition: one.spans for partition, one in taken.items()},
                {partition: into.ends[partition] for partition in taken},
                {partition: one.duplicates for partition, one in taken.items()},
                {partition: one.originals for partition, one in taken.items()},
            )
        self._tell()
        return admission

    def marks(self, stream: str) -> Mapping[str, str]:
        self._stream(stream)
        return self.marked.get(stream, {})

    def generation(self, stream: str) -> int:
        return self._stream(stream).generation

    def starts(self, stream: str) -> Mapping[int, int]:
        with self._lock:
            return dict(self._stream(stream).starts)

    def ends(self, stream: str) -> Mapping[int, int]:
        with self._lock:
            return dict(self._stream(stream).ends)

    def rows_between(self, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        with self._lock:
            return self._stream(stream).rows_between(start, end)

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        with self._lock:
            batches = list(self._stream(stream).read(partition, start, end))
        yield from batches

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        with self._changed:
            self._changed.wait_for(lambda: self._stream(stream).ends != seen, timeout_s)
            return self.ends(stream)

    def watch(self, stream: str, wake: Callable[[], None]) -> MemoryWatch:
        return MemoryWatch(self._armed, self._lock, wake)

    def _tell(self) -> None:
        """Wake whoever waits, after a change of any stream."""
        with self._changed:
            self._changed.notify_all()
            due = list(self._armed)
            self._armed.clear()
        for watch in due:
            watch.wake()

    def close(self) -> None:
        return

    def insert(self, stream: str, partition: int, batch: pa.RecordBatch) -> None:
        """Append a batch of any schema, as another process would."""
        with self._lock:
            self._stream(stream).add(partition, batch)
        self._tell()

    def leave_gap(self, stream: str, partition: int, offsets: int) -> None:
        """Leave a gap, as a transaction in another process would."""
        with self._lock:
            self._stream(stream).skip(partition, offsets)
        self._tell()

    def create(self, spec: StreamSpec, *, names: Sequence[str]) -> None:
        """Create one stream under several names; recreate it if it exists."""
        with self._lock:
            self._streams |= dict.fromkeys(names, MemoryStream(next(self._generations), spec, self._offsets))
        self._tell()

    def trim_to(self, stream: str, partition: int, start: int) -> None:
        """Delete the rows below `start`."""
        with self._lock:
            self._stream(stream).trim_to(partition, start)

    def offsets(self, stream: str, partition: int) -> list[int]:
        """Return the offset of each row that is kept."""
        with self._lock:
            return self._stream(stream).offsets(partition)

    @property
    def specs(self) -> dict[str, StreamSpec]:
        return {name: stream.spec for name, stream in self._streams.items()}

    @property
    def rows(self) -> dict[str, dict[int, list[dict[str, Any]]]]:
        """All rows by stream and partition."""
        with self._lock:
            return {name: stream.rows() for name, stream in self._streams.items()}

    def events(self, stream: str) -> list[dict[str, Any]]:
        """All events of a stream, partition after partition, without ticks."""
        return [row for rows in self.rows[stream].values() for row in rows if row["_kind"] == KIND_EVENT]

    def _stream(self, stream: str) -> MemoryStream:
        try:
            return self._streams[stream]
        except KeyError:
            raise NotFound(f"there is no stream {stream}") from None
