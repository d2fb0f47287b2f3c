"""Writes of one stream: declare, append and admit, each one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import msgspec
import pyarrow as pa

from penstock.contracts import Admission, Position, StreamSpec
from penstock.errors import DeclarationError, StorageError
from penstock.queue import codec, layout
from penstock.queue.committer import Committer, Terms
from penstock.queue.ids import RecentIds
from penstock.queue.layout import Extent, Stored
from penstock.queue.reader import StreamReader
from penstock.queue.recall import recall
from penstock.queue.versions import Version, is_current, next_version, require_readable

PRODUCERS_MAX = 1024
"""Producers of a stream. They stand in a record that every commit rewrites, so their number is bounded; one more is
refused, since to forget an old one would be to forget what it has appended."""


MARKS_MAX = 256
MARK_CHARS_MAX = 16_384
"""Sources that have filled a stream, and the length of what each of them notes: they stand in the same record."""


class StreamWriter:
    """One stream, open for writing. Any thread may call; calls take turns."""

    def __init__(self, reader: StreamReader, terms: Terms) -> None:
        self.reader = reader
        self.name = reader.path.stem
        self.committer = Committer(reader, terms)
        self._ids = RecentIds(0, 0)
        self._surprises = 0

    @property
    def extent(self) -> Extent:
        return self.committer.extent

    def declare(self, spec: StreamSpec) -> None:
        """As in the contract. Blocks while the remembered ids are read back, which is when they can be checked."""
        with self._turn():
            if spec.partitions != len(self.extent.nexts):
                raise DeclarationError(
                    f"stream {self.name} has {len(self.extent.nexts)} partitions, not {spec.partitions}: with another "
                    "number, events of a key would change their place; keep it, or use a new stream"
                )
            self._declare_version(spec)
            if spec.event is not None:
                self.reader.read_as(spec.event)
            lifetime_us = spec.unique_for // timedelta(microseconds=1)
            if (spec.unique_ids, lifetime_us) != (self._ids.limit, self._ids.lifetime_us):
                self._ids = recall(self.reader, spec.unique_ids, lifetime_us)

    def _declare_version(self, spec: StreamSpec) -> None:
        """Store another version of the events, unless the newest is of this class, or of this schema, already."""
        history = self.reader.versions(self.extent.version)
        if spec.event is not None:
            oldest = self.reader.oldest_version()
            require_readable(self.name, history, spec.event, oldest)
            if not is_current(history[-1], spec.event):
                self._add_version(next_version(self.name, history, spec.event, oldest))
        elif not spec.schema.equals(history[-1].schema):
            codec.require_compatible(self.name, spec.schema, [each.schema for each in history])
            if history[-1].shape is not None:
                raise DeclarationError(f"stream {self.name} has an event class: declare it with that")
            self._add_version(Version(spec.schema))

    def _add_version(self, made: Version) -> None:
        version = self.extent.version + 1
        after = msgspec.structs.replace(self.extent.grown({}), version=version)
        self.committer.transact(after, lambda connection: layout.save_version(connection, version, made))

    def append(self, partition: int, batch: pa.RecordBatch, producer: str, sequence: int) -> Position:
        with self._turn():
            self._require_fit(partition, batch)
            known = self.extent.producers.get(producer, {}).get(partition)
            if known is not None and sequence <= known[0]:
                return Position(partition, known[1])
            if producer not in self.extent.producers and len(self.extent.producers) >= PRODUCERS_MAX:
                raise StorageError(f"stream {self.name} has {PRODUCERS_MAX} producers already; give them stable names")
            first = self.extent.nexts[partition]
            ingest_us = self._ingest_us(batch)
            self._store(
                {partition: batch}, {partition: ingest_us}, self.extent.remembering(producer, partition, sequence)
            )
            if self._ids.limit:
                ids = batch.column("_id").to_pylist()
                places = zip(ids, range(at := layout.key(partition, first), at + len(ids)), strict=True)
                self._ids.add({each: place for each, place in places if each is not None}, ingest_us)
            return Position(partition, first)

    def admit(self, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str]) -> Admission:
        """As in the contract. `first` and `duplicates` have an entry for each batch; `first` is the partition's end
        when all rows of its batch are duplicates."""
        with self._turn():
            before = self._marked(marks)
            for partition, batch in batches.items():
                self._require_fit(partition, batch)
            first = {partition: self.extent.nexts[partition] for partition in batches}
            times = {partition: self._ingest_us(batch) for partition, batch in batches.items()}
            if not self._ids.limit:
                self._store(batches, times, before)
                return Admission(first, dict.fromkeys(batches, ()), dict.fromkeys(batches, ()))
            newest_us = max(times.values(), default=0)
            places = {partition: layout.key(partition, offset) for partition, offset in first.items()}
            sifted = self._ids.sift(batches, places, newest_us)
            self._store(sifted.kept, times, before)
            self._ids.add(sifted.fresh, newest_us)
            originals = {
                partition: [layout.position(each) for each in mine] for partition, mine in sifted.originals.items()
            }
            return Admission(first, sifted.duplicates, originals)

    def _marked(self, marks: Mapping[str, str]) -> Extent:
        long = [source for source, mark in marks.items() if len(mark) > MARK_CHARS_MAX]
        if long:
            raise StorageError(f"stream {self.name}: the mark of source {long[0]} has over {MARK_CHARS_MAX} characters")
        after = self.extent.marked(marks)
        if len(after.marks) > MARKS_MAX:
            raise StorageError(f"stream {self.name} has {MARKS_MAX} sources already; give them stable names")
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

    def _store(self, batches: Mapping[int, pa.RecordBatch], times: Mapping[int, int], before: Extent) -> None:
        """Nothing is written if there are no rows, and no producer's sequence or source's mark, to write."""
        rows = {partition: batch.num_rows for partition, batch in batches.items()}
        ids = sum(map(codec.identified, batches.values()))
        after = before.grown(rows, sum(map(codec.ticks, batches.values())), ids)
        if after.nexts == before.nexts and before is self.extent:
            return
        self.committer.require_space()
        stored = [row for partition in batches for row in self._rows(partition, batches[partition], times[partition])]
        self.committer.store(stored, after)

    def _rows(self, partition: int, batch: pa.RecordBatch, ingest_us: int) -> Iterator[Stored]:
        if batch.num_rows == 0:
            return
        at = layout.key(partition, self.extent.nexts[partition])
        for rows, data in codec.encode(batch):
            yield layout.stored(at, rows, self.extent.version, ingest_us, data)
            at += rows

    def _require_fit(self, partition: int, batch: pa.RecordBatch) -> None:
        if not 0 <= partition < len(self.extent.nexts):
            raise DeclarationError(
                f"stream {self.name} has partitions 0 to {len(self.extent.nexts) - 1}, not {partition}"
            )
        newest = self.reader.versions(self.extent.version)[-1].schema
        if not batch.schema.equals(newest):
            raise DeclarationError(
                f"stream {self.name}: the batch has columns {_named(batch.schema)}, the stream {_named(newest)}; "
                "declare the new schema first"
            )

    def close(self) -> None:
        self.committer.close()


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
