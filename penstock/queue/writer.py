"""Writes to one stream: declare, append and admit, each in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec
import pyarrow as pa

from penstock.core.contracts import Admission, AppendPosition, StreamSpec
from penstock.core.cursor import Span
from penstock.core.errors import DeclarationError, StorageError
from penstock.queue import codec, layout
from penstock.queue.committer import Committer, Terms
from penstock.queue.ids import RecentIds, short_ids
from penstock.queue.layout import Extent, Stored
from penstock.queue.reader import StreamFileReader
from penstock.queue.recall import recall
from penstock.queue.versions import EventVersion, is_current, next_version, require_readable

PRODUCERS_MAX = 1024
"""Maximum number of producers per stream. The number is limited because every commit rewrites the record of producers.

Additional producers are rejected. Dropping an old producer instead would lose the record of its appends.
"""


MARKS_MAX = 256
MARK_CHARS_MAX = 16_384
"""Maximum number of sources per stream, and of characters in a mark. Marks are part of the same record as producers."""


class StreamWriter:
    """One stream, open for writing. Thread-safe: calls are serialized."""

    def __init__(self, reader: StreamFileReader, terms: Terms) -> None:
        self.reader = reader
        self.name = reader.path.stem
        self.committer = Committer(reader, terms)
        self._ids = RecentIds(0, 0)
        self._surprises = 0

    @property
    def extent(self) -> Extent:
        return self.committer.extent

    def declare(self, spec: StreamSpec) -> None:
        """Implement `AdmissionLog.declare`.

        Blocks while the remembered ids are read back.
        """
        with self._turn():
            if spec.partitions != len(self.extent.nexts):
                raise DeclarationError(
                    f"stream {self.name} has {len(self.extent.nexts)} partitions, not {spec.partitions}: with a "
                    "different number, events of a key would move to another partition; keep the number, or use a new "
                    "stream"
                )
            self._declare_version(spec)
            if spec.event is not None:
                self.reader.read_as(spec.event)
            lifetime_us = spec.unique_for // timedelta(microseconds=1)
            if (spec.unique_ids, lifetime_us) != (self._ids.limit, self._ids.lifetime_us):
                self._ids = recall(self.reader, spec.unique_ids, lifetime_us)

    def _declare_version(self, spec: StreamSpec) -> None:
        """Store another version of the events, unless the newest already has this class or schema."""
        history = self.reader.versions(self.extent.version)
        if spec.event is not None:
            oldest = self.reader.oldest_version()
            require_readable(self.name, history, spec.event, oldest)
            if not is_current(history[-1], spec.event):
                self._add_version(next_version(self.name, history, spec.event, oldest))
        elif not spec.schema.equals(history[-1].schema):
            codec.require_compatible(self.name, spec.schema, [version.schema for version in history])
            if history[-1].shape is not None:
                raise DeclarationError(f"stream {self.name} has an event class: declare it with that class")
            self._add_version(EventVersion(spec.schema))

    def _add_version(self, event_version: EventVersion) -> None:
        version = self.extent.version + 1
        after = msgspec.structs.replace(self.extent.grown({}), version=version)
        self.committer.transact(after, lambda connection: layout.save_version(connection, version, event_version))

    def append(self, partition: int, batch: pa.RecordBatch, producer: str, sequence: int) -> AppendPosition:
        with self._turn():
            self._require_fit(partition, batch)
            known = self.extent.producers.get(producer, {}).get(partition)
            if known is not None and sequence <= known[0]:
                return AppendPosition(partition, known[1])
            if producer not in self.extent.producers and len(self.extent.producers) >= PRODUCERS_MAX:
                raise StorageError(f"stream {self.name} already has {PRODUCERS_MAX} producers; give them stable names")
            offsets, ingest_us = self._offsets(partition, batch.num_rows), self._ingest_us(batch)
            part = _Part(partition, batch, self.extent.nexts[partition], offsets, ingest_us)
            self._store([part], self.extent.remembering(producer, partition, sequence, offsets[0]))
            if self._ids.limit:
                ids = short_ids(batch.column("_id").to_pylist())
                positions = zip(ids, _stored_positions(partition, offsets), strict=False)
                self._ids.add(
                    {event_id: position for event_id, position in positions if event_id is not None}, ingest_us
                )
            return AppendPosition(partition, offsets[0])

    def admit(self, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str]) -> Admission:
        """Implement `AdmissionLog.admit`. Every mapping in the result has an entry for each batch."""
        with self._turn():
            before = self._marked(marks)
            for partition, batch in batches.items():
                self._require_fit(partition, batch)
            offsets = {partition: self._offsets(partition, batch.num_rows) for partition, batch in batches.items()}
            times = {partition: self._ingest_us(batch) for partition, batch in batches.items()}
            if not self._ids.limit:
                return self._admitted(batches, batches, offsets, times, before)
            newest_us = max(times.values(), default=0)
            positions = {
                partition: _stored_positions(partition, partition_offsets)
                for partition, partition_offsets in offsets.items()
            }
            sifted = self._ids.sift(batches, positions, newest_us)
            admission = self._admitted(batches, sifted.kept, offsets, times, before)
            self._ids.add(sifted.fresh, newest_us)
            originals = {
                partition: [layout.position(position) for position in mine]
                for partition, mine in sifted.originals.items()
            }
            return replace(admission, duplicates=sifted.duplicates, originals=originals)

    def _admitted(
        self,
        given: Mapping[int, pa.RecordBatch],
        kept: Mapping[int, pa.RecordBatch],
        offsets: Mapping[int, Sequence[int]],
        times: Mapping[int, int],
        before: Extent,
    ) -> Admission:
        """Store the admitted rows, using the first offsets reserved for each partition."""
        nexts = self.extent.nexts
        parts = [
            _Part(partition, batch, nexts[partition], offsets[partition], times[partition])
            for partition, batch in kept.items()
        ]
        self._store(parts, before)
        spans: dict[int, Sequence[Span]] = dict.fromkeys(given, ())
        spans |= {part.partition: part.spans() for part in parts}
        ends = {partition: self.extent.nexts[partition] for partition in given}
        return Admission(spans, ends, dict.fromkeys(given, ()), dict.fromkeys(given, ()))

    def _marked(self, marks: Mapping[str, str]) -> Extent:
        long = [source for source, mark in marks.items() if len(mark) > MARK_CHARS_MAX]
        if long:
            raise StorageError(
                f"stream {self.name}: the mark of source {long[0]} is longer than {MARK_CHARS_MAX} characters"
            )
        after = self.extent.marked(marks)
        if len(after.marks) > MARKS_MAX:
            raise StorageError(f"stream {self.name} already has {MARKS_MAX} sources; give them stable names")
        return after

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self.committer.turn():
            if self._surprises != self.committer.surprises:
                self._ids = recall(self.reader, self._ids.limit, self._ids.lifetime_us)
                self._surprises = self.committer.surprises
            yield

    def _ingest_us(self, batch: pa.RecordBatch) -> int:
        newest = codec.newest_ingest_us(batch)
        return self.committer.terms.now_us() if newest is None else newest

    def _offsets(self, partition: int, rows: int) -> Sequence[int]:
        """Return the offsets of the next rows of a partition, followed by the next offset after them."""
        return self.committer.terms.offsets(self.extent.nexts[partition], rows)

    def _store(self, parts: Sequence[_Part], before: Extent) -> None:
        """Store a stream's parts in one transaction; do nothing if there are no rows, sequence numbers or marks to
        store."""
        batches = [part.batch for part in parts]
        ticks, ids = sum(map(codec.ticks, batches)), sum(map(codec.identified, batches))
        gaps = sum(part.end - part.begin - part.batch.num_rows for part in parts)
        after = before.grown({part.partition: part.end for part in parts}, ticks, ids, gaps)
        if after.nexts == before.nexts and before is self.extent:
            return
        self.committer.require_space()
        self.committer.store([row for part in parts for row in part.stored(self.extent.version)], after)

    def _require_fit(self, partition: int, batch: pa.RecordBatch) -> None:
        if not 0 <= partition < len(self.extent.nexts):
            raise DeclarationError(
                f"stream {self.name} has no partition {partition}; it has partitions 0 to {len(self.extent.nexts) - 1}"
            )
        newest = self.reader.versions(self.extent.version)[-1].schema
        if not batch.schema.equals(newest):
            raise DeclarationError(
                f"stream {self.name}: the batch has columns {_schema_text(batch.schema)}, "
                f"the stream has {_schema_text(newest)}; declare the new schema first"
            )

    def close(self) -> None:
        self.committer.close()


@dataclass(frozen=True)
class _Part:
    """Rows to be stored in one partition, which currently ends at `begin`.

    `offsets` contains an offset for each row, followed by the next free offset. Further offsets can follow, and are
    ignored.
    """

    partition: int
    batch: pa.RecordBatch
    begin: int
    offsets: Sequence[int]
    ingest_us: int

    @property
    def end(self) -> int:
        rows: int = self.batch.num_rows
        return self.offsets[rows]

    def spans(self) -> list[Span]:
        """Return the offsets of a partition's new rows."""
        rows = self.batch.num_rows
        if rows and self.offsets[rows - 1] - self.offsets[0] == rows - 1:
            return [Span(self.partition, self.offsets[0], rows)]
        spans, first = [], 0
        for row in range(1, rows + 1):
            if row == rows or self.offsets[row] != self.offsets[row - 1] + 1:
                spans.append(Span(self.partition, self.offsets[first], row - first))
                first = row
        return spans

    def stored(self, version: int) -> Iterator[Stored]:
        """Yield a partition's new rows, and the gaps before and after them, in stored form."""
        row, spans = 0, self.spans()
        if not spans:
            return
        if spans[0].first > self.begin:
            yield self._stored_gap(self.begin, spans[0].first, version)
        for span, following in zip(spans, [*(span.first for span in spans[1:]), self.end], strict=True):
            at = layout.key(self.partition, span.first)
            for rows, data in codec.encode(self.batch.slice(row, span.count)):
                yield layout.stored(at, rows, version, self.ingest_us, data)
                at += rows
            row, end = row + span.count, span.first + span.count
            if following > end:
                yield self._stored_gap(end, following, version)

    def _stored_gap(self, start: int, end: int, version: int) -> Stored:
        return layout.gap(layout.key(self.partition, start), end - start, version, self.ingest_us)


def _stored_positions(partition: int, offsets: Sequence[int]) -> Sequence[int]:
    """Return positions as stored in the file: the partition and the offset combined into one number."""
    base = layout.key(partition, 0)
    if isinstance(offsets, range):
        return range(base + offsets.start, base + offsets.stop)
    return [base + offset for offset in offsets]


def _schema_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
