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

from penstock.core import files
from penstock.core.contracts import NO_MARKS, Admission, AppendPosition, ChangeWatch, Retention, StreamSpec
from penstock.core.errors import DeclarationError, NotFound, StorageError
from penstock.core.event_shape import EventShape, EventSpec
from penstock.core.settings import Settings
from penstock.core.wakeups import FileWatch
from penstock.queue import codec, layout
from penstock.queue.committer import Terms
from penstock.queue.gaps import Offsets, chosen
from penstock.queue.merge import Merger
from penstock.queue.reader import StreamFileReader
from penstock.queue.trim import trim
from penstock.queue.versions import EventVersion, field_origins, first_version, misfits
from penstock.queue.writer import StreamWriter

NO_CLASSES: Mapping[str, EventSpec] = MappingProxyType({})
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

_inherited: list[object] = []
"""Connections inherited through a fork. SQLite forbids using or closing them, so they are kept here and never used."""


def _system_time() -> datetime:
    return datetime.now(UTC)


class EmbeddedLog:
    """Implements `Log` with SQLite files; with `read_only`, only `BlockingLogReader`.

    Any thread can read and write. Reads never wait for writes, and writes to one stream are serialized. A forked
    process opens its own connections for reading; to write, it must declare its streams again.
    """

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        disk_reserve_bytes: int = Settings.disk_reserve_bytes,
        clock: Callable[[], datetime] = _system_time,
        classes: Mapping[str, EventSpec] = NO_CLASSES,
        offsets: Offsets | None = None,
    ) -> None:
        """`classes` maps stream names to the event classes that their events are read as.

        A declared stream is read with its declared class. A stream that is neither declared nor in `classes` is read as
        the newest version in its file. `offsets` assigns offsets to new rows, by default without gaps.
        """
        self._directory = Path(directory)
        self._read_only = read_only
        self._terms = Terms(disk_reserve_bytes, clock, offsets or chosen())
        self._classes = classes
        self._forget()
        if not read_only and not self._directory.is_dir():
            self._directory.mkdir(parents=True)
            files.sync_directory(self._directory.parent)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._opening = threading.Lock()
        self._readers: dict[str, StreamFileReader] = {}
        self._writers: dict[str, _Writing] = {}

    def _own(self) -> None:
        if os.getpid() != self._pid:
            _inherited.extend((*self._readers.values(), *self._writers.values()))
            self._forget()

    def _reader(self, stream: str) -> StreamFileReader:
        self._own()
        reader = self._readers.get(stream)
        if reader is not None:
            return reader
        with self._opening:
            if stream not in self._readers:
                path = self._path(stream)
                if not path.exists():
                    raise NotFound(f"there is no stream {stream!r}")
                self._readers[stream] = StreamFileReader(path, self._classes.get(stream))
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
            raise StorageError(f"stream {stream} was not declared by this process; declare it before writing") from None

    def has(self, stream: str) -> bool:
        """Return whether a stream of that name exists."""
        return self._path(stream).exists()

    def generation(self, stream: str) -> int:
        return self._reader(stream).generation

    def starts(self, stream: str) -> Mapping[int, int]:
        return self._reader(stream).starts()

    def ends(self, stream: str) -> Mapping[int, int]:
        return self._reader(stream).ends()

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return self._reader(stream).read(partition, start, end)

    def rows_between(self, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        return self._reader(stream).rows_between(start, end)

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        return self._reader(stream).wait(seen, timeout_s)

    def watch(self, stream: str, wake: Callable[[], None]) -> ChangeWatch:
        return FileWatch(self._path(stream), wake)

    def events_appended(self, stream: str) -> int:
        """Return how many events the stream has ever accepted. Ticks, which also have offsets, do not count."""
        return self._reader(stream).extent().events()

    def events_kept(self, stream: str) -> int:
        """Return how many events of a stream are currently stored. The number is an estimate if ticks and events have
        been trimmed."""
        return self._reader(stream).events_kept()

    def event_shape(self, stream: str) -> EventShape | None:
        """Return the shape of the event class of the stream's newest events, or None if there is no class or no such
        stream."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return None
        return reader.versions(reader.extent().version)[-1].shape

    def is_evolved(self, stream: str) -> bool:
        """Return whether a stream's stored events can be read differently from how they were written.

        Possible reasons are renamed or dropped fields, values for added fields, and the class's `migrate` method.
        """
        try:
            return self._reader(stream).is_evolved()
        except NotFound:
            return False

    def event_problems(self, stream: str, spec: EventSpec) -> Sequence[str]:
        """Return the reasons why a stream's stored events cannot be read as a class, each with a fix.

        Empty if they can be read, or if the stream does not exist. Reads only the beginning of the file.
        """
        try:
            reader = self._reader(stream)
        except NotFound:
            return []
        return list(misfits(reader.versions(reader.extent().version), spec, reader.oldest_version()))

    def field_origins(self, stream: str, spec: EventSpec) -> Mapping[str, str]:
        """Return `versions.field_origins` for a stream, which might not exist. Reads only the beginning of the file."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return field_origins((), spec)
        return field_origins(reader.versions(reader.extent().version), spec)

    def schemas(self, stream: str) -> Sequence[pa.Schema]:
        """Return every schema of a stream's stored events, oldest first. The result is empty if there is no such
        stream."""
        try:
            reader = self._reader(stream)
        except NotFound:
            return []
        return [version.schema for version in reader.versions(reader.extent().version)]

    def size_bytes(self, stream: str) -> int:
        """Return roughly how much disk space a stream's events take; retention by size uses this."""
        return self._reader(stream).size_bytes()

    def declare(self, spec: StreamSpec) -> None:
        if self._read_only:
            raise StorageError(f"the log in {self._directory} was opened for reading only")
        if not NAME.fullmatch(spec.name):
            raise DeclarationError(f"{spec.name!r} is not a valid stream name")
        codec.require_sound(spec.name, spec.schema, spec.unique_ids)
        self._own()
        path = self._path(spec.name)
        if not path.exists():
            first = EventVersion(spec.schema) if spec.event is None else first_version(spec.event)
            layout.create(path, first, spec.partitions)
        reader = self._reader(spec.name)
        with self._opening:
            if spec.name not in self._writers:
                self._writers[spec.name] = _Writing(reader, self._terms)
        self._writers[spec.name].writer.declare(spec)

    def append(
        self, stream: str, partition: int, batch: pa.RecordBatch, *, producer: str, sequence: int
    ) -> AppendPosition:
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
        """Close the log.

        Readers are closed first, so that SQLite writes everything back into the stream's file when its writer is
        closed.
        """
        self._own()
        with self._opening:
            for reader in self._readers.values():
                reader.close()
            for writing in self._writers.values():
                writing.writer.close()
            self._readers.clear()
            self._writers.clear()


class _Writing:
    """A stream that this process writes to. Only one maintenance call runs at a time, in parallel with appends."""

    def __init__(self, reader: StreamFileReader, terms: Terms) -> None:
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
    """Opens the embedded log in any process; calling it opens the log for reading. Can be pickled: Spark sends it to
    its workers."""

    directory: Path
    classes: Mapping[str, EventSpec] = field(default_factory=dict, compare=False)

    def __call__(self) -> EmbeddedLog:
        return EmbeddedLog(self.directory, read_only=True, classes=self.classes)

    def for_writing(self, *, disk_reserve_bytes: int) -> EmbeddedLog:
        """Open the embedded log for writing."""
        return EmbeddedLog(self.directory, disk_reserve_bytes=disk_reserve_bytes, classes=self.classes)
