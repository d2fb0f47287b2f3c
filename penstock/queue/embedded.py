"""The embedded log: a directory with one SQLite file for each stream."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from penstock import files
from penstock.contracts import NO_MARKS, Admission, Position, Retention, StreamSpec
from penstock.errors import DeclarationError, NotFound, StorageError
from penstock.event_shape import EventShape, EventSpec
from penstock.queue import codec, layout
from penstock.queue.committer import Terms
from penstock.queue.merge import Merger
from penstock.queue.reader import StreamReader
from penstock.queue.trim import trim
from penstock.queue.versions import Version, field_origins, first_version, misfits
from penstock.queue.writer import StreamWriter
from penstock.settings import Settings

NO_CLASSES: Mapping[str, EventSpec] = MappingProxyType({})
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

_inherited: list[object] = []
"""What a process got from its parent by fork. SQLite forbids to use it, and to close it: so it is only kept alive."""


def _now() -> datetime:
    return datetime.now(UTC)


class EmbeddedLog:
    """The contract `Log` on SQLite files; with `read_only`, `LogReader` only.

    Reads may come from any thread and never wait for writes. Writes may too: those of one stream take turns. A process
    that was forked opens its own connections for reading; to write there, it must declare its streams anew.
    """

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        disk_reserve_bytes: int = Settings.disk_reserve_bytes,
        clock: Callable[[], datetime] = _now,
        classes: Mapping[str, EventSpec] = NO_CLASSES,
    ) -> None:
        """`classes` has the event classes that streams are read as, by their names. One that is declared is read as it
        was declared; any other as the newest that its file has."""
        self._directory = Path(directory)
        self._read_only = read_only
        self._terms = Terms(disk_reserve_bytes, clock)
        self._classes = classes
        self._forget()
        if not read_only and not self._directory.is_dir():
            self._directory.mkdir(parents=True)
            files.sync_directory(self._directory.parent)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._opening = threading.Lock()
        self._readers: dict[str, StreamReader] = {}
        self._writers: dict[str, _Writing] = {}

    def _own(self) -> None:
        if os.getpid() != self._pid:
            _inherited.extend((*self._readers.values(), *self._writers.values()))
            self._forget()

    def _reader(self, stream: str) -> StreamReader:
        self._own()
        reader = self._readers.get(stream)
        if reader is not None:
            return reader
        with self._opening:
            if stream not in self._readers:
                path = self._path(stream)
                if not path.exists():
                    raise NotFound(f"there is no stream {stream}")
                self._readers[stream] = StreamReader(path, self._classes.get(stream))
            return self._readers[stream]

    def _path(self, stream: str) -> Path:
        if not NAME.fullmatch(stream):
            raise NotFound(f"there is no stream {stream[:80]!r}")
        return self._directory / f"{stream}.db"

    def _writing(self, stream: str) -> _Writing:
        self._own()
        try:
            return self._writers[stream]
        except KeyError:
            raise StorageError(f"stream {stream} was not declared by this process, so it cannot write it") from None

    def has(self, stream: str) -> bool:
        """Whether there is a stream of that name."""
        return self._path(stream).exists()

    def generation(self, stream: str) -> int:
        return self._reader(stream).generation

    def starts(self, stream: str) -> Mapping[int, int]:
        return self._reader(stream).starts()

    def ends(self, stream: str) -> Mapping[int, int]:
        return self._reader(stream).ends()

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return self._reader(stream).read(partition, start, end)

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        return self._reader(stream).wait(seen, timeout_s)

    def events_appended(self, stream: str) -> int:
        """How many events the stream ever took; ticks, which have offsets too, do not count."""
        extent = self._reader(stream).extent()
        return sum(extent.nexts) - extent.ticks

    def event_shape(self, stream: str) -> EventShape | None:
        """The event class that the stream's newest events are of; None if none was ever declared, or there is no such
        stream."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return None
        return reader.versions(reader.extent().version)[-1].shape

    def is_evolved(self, stream: str) -> bool:
        """Whether kept events may be read as something else than they were stored as: by a name that has changed, a
        value for a field that was added, or the class's own method."""
        try:
            return self._reader(stream).is_evolved()
        except NotFound:
            return False

    def event_problems(self, stream: str, spec: EventSpec) -> Sequence[str]:
        """Why the stored events of a stream cannot be read as a class, each with what to do; none if they can, or if
        there is no such stream. Reads the beginning of the file only."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return []
        return list(misfits(reader.versions(reader.extent().version), spec, reader.oldest_version()))

    def field_origins(self, stream: str, spec: EventSpec) -> Mapping[str, str]:
        """As `versions.field_origins`. Reads the beginning of the file only; there may be none."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return field_origins((), spec)
        return field_origins(reader.versions(reader.extent().version), spec)

    def schemas(self, stream: str) -> Sequence[pa.Schema]:
        """Every schema that events of a stream were stored with, oldest first; none if there is no such stream."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return []
        return [each.schema for each in reader.versions(reader.extent().version)]

    def size_bytes(self, stream: str) -> int:
        """The space that a stream's events take on the disk, about; what retention compares with."""
        return self._reader(stream).size_bytes()

    def declare(self, spec: StreamSpec) -> None:
        if self._read_only:
            raise StorageError(f"the log in {self._directory} was opened for reading only")
        if not NAME.fullmatch(spec.name):
            raise DeclarationError(f"{spec.name!r} cannot be the name of a stream's file")
        codec.require_sound(spec.name, spec.schema, spec.unique_ids)
        self._own()
        path = self._path(spec.name)
        if not path.exists():
            first = Version(spec.schema) if spec.event is None else first_version(spec.event)
            layout.create(path, first, spec.partitions)
        reader = self._reader(spec.name)
        with self._opening:
            if spec.name not in self._writers:
                self._writers[spec.name] = _Writing(reader, self._terms)
        self._writers[spec.name].writer.declare(spec)

    def append(self, stream: str, partition: int, batch: pa.RecordBatch, *, producer: str, sequence: int) -> Position:
        return self._writing(stream).writer.append(partition, batch, producer, sequence)

    def admit(
        self, stream: str, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str] = NO_MARKS
    ) -> Admission:
        return self._writing(stream).writer.admit(batches, marks)

    def last_sequence(self, stream: str, partition: int, producer: str) -> int | None:
        known = self._writing(stream).writer.extent.producers.get(producer, {}).get(partition)
        return None if known is None else known[0]

    def marks(self, stream: str) -> Mapping[str, str]:
        return self._writing(stream).writer.extent.marks

    def trim(self, stream: str, retention: Retention) -> Mapping[int, int]:
        return self._writing(stream).trim(retention)

    def merge(self, stream: str) -> int:
        return self._writing(stream).merge()

    def close(self) -> None:
        """Readers first: SQLite then writes everything back into the stream's one file when its writer closes."""
        self._own()
        with self._opening:
            for reader in self._readers.values():
                reader.close()
            for writing in self._writers.values():
                writing.writer.close()
            self._readers.clear()
            self._writers.clear()


class _Writing:
    """A stream that this process writes. Its upkeep comes one call at a time, beside appends."""

    def __init__(self, reader: StreamReader, terms: Terms) -> None:
        self.writer = StreamWriter(reader, terms)
        self._merger = Merger(self.writer.committer, reader)
        self._upkeep = threading.Lock()

    def trim(self, retention: Retention) -> Mapping[int, int]:
        with self._upkeep:
            return trim(self.writer.committer, self.writer.reader, retention)

    def merge(self) -> int:
        with self._upkeep:
            return self._merger.merge()


@dataclass(frozen=True)
class EmbeddedLogOpener:
    """Opens a log for reading, wherever it is called. It can be pickled: Spark sends it to its workers."""

    directory: Path
    classes: Mapping[str, EventSpec] = field(default_factory=dict, compare=False)

    def __call__(self) -> EmbeddedLog:
        return EmbeddedLog(self.directory, read_only=True, classes=self.classes)
