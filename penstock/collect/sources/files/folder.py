"""A source that reads the files dropped into a folder: each row, line or item is one event."""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.collect.sources.files.arrivals import Arrival, Arrivals, Mark
from penstock.collect.sources.files.formats import FORMATS, BadFile, format_of, rows
from penstock.collect.sources.files.lines import READ_BYTES, in_thread, position_of
from penstock.collect.sources.files.source import FileSource
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError

ROWS = 500
"""Number of rows put in one go. Together with `READ_BYTES`, it bounds how long the event loop is blocked."""
TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp", "~")
DONE = ("keep", "move", "delete")
_log = logging.getLogger("penstock.collect")


@dataclass(frozen=True)
class FolderSource(FileSource):
    """Reads each file in the folder `path` once, in name order. Implements `contracts.Source`.

    Each row is put once and in order, even after kill -9, because the current file and row are committed with the
    events. A file is complete when nobody has written to it for `settle_s`; a file that is already that old when it is
    renamed into the folder is complete at once. Hidden and temporary files are ignored. The order is by name, not by
    time, because names are unique and stay the same after a restart or in a copy of the folder. While a file is still
    being written, later files wait.

    If a file cannot be read to its end, the log and the status report it, and the next file is read.
    """

    path: str | os.PathLike[str]
    pattern: str = "*"
    format: str | None = None
    done: str = "keep"
    settle_s: float = 2.0
    poll_s: float = 1.0
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise DeclarationError(f"{self.path}: unknown format {self.format!r}; use one of {', '.join(FORMATS)}")
        if self.done not in DONE:
            raise DeclarationError(f"{self.path}: done is {self.done!r}; use one of {', '.join(DONE)}")
        if self.poll_s <= 0 or self.settle_s < 0:
            raise DeclarationError(f"{self.path}: poll_s must be above zero, and settle_s at least zero")

    @property
    def kind(self) -> str:
        return "folder"

    async def _read(self, source_writer: SourceWriter, status: SourceStatus) -> str:
        """Read files until the folder cannot be read, and return the reason."""
        await source_writer.settle()
        arrivals = self._arrivals(source_writer.mark)
        bad: str | None = None
        try:
            while True:
                arrival = await in_thread(arrivals.next)
                status.state, status.error = "connected", bad or _folder_warning(arrivals)
                if arrival is None:
                    await asyncio.sleep(self.poll_s)
                else:
                    bad = await self._take(arrival, arrivals, source_writer, status) or bad
        except OSError as error:
            return f"could not read: {error}"

    def _arrivals(self, mark: str | None) -> Arrivals:
        return Arrivals(
            Path(self.path),
            self._accepts,
            keep=self.done == "keep",
            delete=self.done == "delete",
            settle_s=self.settle_s,
            poll_s=self.poll_s,
            noted=Mark() if mark is None else position_of(mark, Mark, self.address),
        )

    def _accepts(self, name: str) -> bool:
        """Return whether a file should be read, based on its name.

        A name that is not valid text cannot be stored in a mark.
        """
        if name.startswith((".", "_")) or name.lower().endswith(TEMPORARY):
            return False
        return name.isprintable() and fnmatch.fnmatchcase(name, self.pattern)

    async def _take(
        self, arrival: Arrival, arrivals: Arrivals, source_writer: SourceWriter, status: SourceStatus
    ) -> str | None:
        """Read one file to its end, and put it away. Returns why it could not be read, or None."""
        why = None
        try:
            await self._put_rows(arrival, arrivals, source_writer, status)
        except FileNotFoundError:
            return None
        except (BadFile, PermissionError) as error:
            why = f"{arrival.name} is skipped, because it could not be read to its end: {error}"
            _log.error("source %s: %s", self.address, why)
        durable = await source_writer.note(arrivals.finished(arrival, failed=why is not None))
        if self.done != "keep":
            await durable
            await in_thread(arrivals.put_away)
        return why

    async def _put_rows(
        self, arrival: Arrival, arrivals: Arrivals, source_writer: SourceWriter, status: SourceStatus
    ) -> None:
        file = await in_thread(lambda: _opened_arrival(Path(self.path), arrival))
        try:
            kind = self.format or format_of(arrival.name) or ""
            reader = _Reader(
                rows(file, arrival.name, kind, source_writer.event, source_writer.event_bytes_max, arrival.row)
            )
            row = arrival.row
            while some := await in_thread(reader.some):
                for raw in some:
                    row += 1
                    await source_writer.put(raw, arrivals.mark(row))
                    status.received += 1
            await in_thread(lambda: self._look_if_changed(file, arrival))
        finally:
            file.close()

    def _look_if_changed(self, file: BinaryIO, arrival: Arrival) -> None:
        now = os.fstat(file.fileno())
        if (now.st_size, now.st_mtime_ns) != (arrival.size, arrival.mtime):
            _log.warning("source %s: %s changed while it was being read; increase settle_s", self.address, arrival.name)


def _opened_arrival(folder: Path, arrival: Arrival) -> BinaryIO:
    """Open a file of the folder. Raises FileNotFoundError if it was replaced."""
    file = open(folder / arrival.name, "rb")  # noqa: SIM115
    now = os.fstat(file.fileno())
    if (now.st_ino, now.st_size, now.st_mtime_ns) != arrival[1:4]:
        file.close()
        raise FileNotFoundError(f"{arrival.name} was changed")
    return file


class _Reader:
    """Reads a file's rows in groups. An error is raised only after all rows before it have been returned."""

    def __init__(self, raw_rows: Iterator[bytes]) -> None:
        self._raw_rows = raw_rows
        self._error: Exception | None = None

    def some(self) -> list[bytes]:
        """Return the file's next rows, or an empty list at the end of the file."""
        if self._error is not None:
            raise self._error
        taken: list[bytes] = []
        size = 0
        try:
            while len(taken) < ROWS and size < READ_BYTES and (raw := next(self._raw_rows, None)) is not None:
                taken.append(raw)
                size += len(raw)
        except (BadFile, OSError) as error:
            self._error = error
            if not taken:
                raise
        return taken


def _folder_warning(arrivals: Arrivals) -> str | None:
    """Return a warning about a folder that otherwise works, or None."""
    if arrivals.late:
        return (
            f"{arrivals.late[0]} is skipped, because it arrived after many files with later names; give it a later "
            "name or use done='move' for this folder"
        )
    if arrivals.waiting_for is not None:
        return f"waiting for {arrivals.waiting_for}, which is still being written"
    return None


def folder(
    path: str | os.PathLike[str],
    *,
    pattern: str = FolderSource.pattern,
    format: str | None = None,
    done: str = FolderSource.done,
    settle_s: float = FolderSource.settle_s,
    poll_s: float = FolderSource.poll_s,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
) -> FolderSource:
    """Create a source that reads the files dropped into a folder, one event per row. See `FolderSource` for the
    options."""
    return FolderSource(path, pattern, format, done, settle_s, poll_s, Backoff(backoff_s, backoff_max_s))
