"""A source that reads the files that are dropped into a folder: each row, line or item is one event."""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.collect.sources.files.arrivals import Arrival, Arrivals, Mark
from penstock.collect.sources.files.formats import FORMATS, BadFile, format_of, rows
from penstock.collect.sources.files.lines import READ_BYTES, in_thread
from penstock.collect.sources.reconnect import Backoff, keep_connected
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed

ROWS = 500
"""Rows put in one go; with `READ_BYTES`, what bounds how long the event loop is held."""
TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp", "~")
DONE = ("keep", "move", "delete")
_log = logging.getLogger("penstock.collect")


@dataclass(frozen=True)
class FolderSource:
    """Reads each file of the folder `path` once, in the order of their names. Implements `contracts.Source`.

    Each row is put once and in order, also after kill -9: the file in hand and its row are committed with the events. A
    file is complete when nobody has written to it for `settle_s`; one that was renamed into place, at once if it is
    that old. Names that are hidden or temporary are left alone. Files come in order of name, not of time: a name is the
    same after a restart or on a copy of the folder, and does not tie. While a file is still being written, those after
    it wait.

    A file that cannot be read any further is reported in the log and in the status, and the next one has its turn.
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
            raise DeclarationError(f"{self.path}: there is no format {self.format!r}; use one of {', '.join(FORMATS)}")
        if self.done not in DONE:
            raise DeclarationError(f"{self.path}: done is {self.done!r}; use one of {', '.join(DONE)}")
        if self.poll_s <= 0 or self.settle_s < 0:
            raise DeclarationError(f"{self.path}: poll_s must be above zero, and settle_s not below")

    @property
    def kind(self) -> str:
        return "folder"

    @property
    def address(self) -> str:
        return os.fspath(self.path)

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Read until cancelled. Raises only if the intake cannot go on, or its mark is not of such a source."""
        await keep_connected(lambda: self._pull(intake, status), intake, status, self.backoff, self.address)

    async def _pull(self, intake: Intake, status: SourceStatus) -> str:
        """Returns when the folder cannot be read, and why."""
        await intake.settle()
        arrivals = self._arrivals(intake.mark)
        bad: str | None = None
        try:
            while True:
                arrival = await in_thread(arrivals.next)
                status.state, status.error = "connected", bad or _remark(arrivals)
                if arrival is None:
                    await asyncio.sleep(self.poll_s)
                else:
                    bad = await self._take(arrival, arrivals, intake, status) or bad
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
            noted=Mark() if mark is None else _noted(mark, self.address),
        )

    def _accepts(self, name: str) -> bool:
        """Whether a file is to be read, by its name. One with characters that are none could not be noted."""
        if name.startswith((".", "_")) or name.lower().endswith(TEMPORARY):
            return False
        return name.isprintable() and fnmatch.fnmatchcase(name, self.pattern)

    async def _take(self, arrival: Arrival, arrivals: Arrivals, intake: Intake, status: SourceStatus) -> str | None:
        """Read one file to its end, and put it away. Returns why it could not be read, if so."""
        why = None
        try:
            await self._put_rows(arrival, arrivals, intake, status)
        except FileNotFoundError:
            return None
        except (BadFile, PermissionError) as error:
            why = f"{arrival.name} could not be read to its end, and is not tried again: {error}"
            _log.error("feed %s: %s", self.address, why)
        durable = await intake.note(arrivals.finished(arrival, failed=why is not None))
        if self.done != "keep":
            await durable
            await in_thread(arrivals.put_away)
        return why

    async def _put_rows(self, arrival: Arrival, arrivals: Arrivals, intake: Intake, status: SourceStatus) -> None:
        file = await in_thread(lambda: _opened(Path(self.path), arrival))
        try:
            kind = self.format or format_of(arrival.name) or ""
            reader = _Reader(rows(file, arrival.name, kind, intake.event, intake.event_bytes_max, arrival.row))
            row = arrival.row
            while some := await in_thread(reader.some):
                for raw in some:
                    row += 1
                    await intake.put(raw, arrivals.mark(row))
                    status.received += 1
            await in_thread(lambda: self._look_if_changed(file, arrival))
        finally:
            file.close()

    def _look_if_changed(self, file: BinaryIO, arrival: Arrival) -> None:
        now = os.fstat(file.fileno())
        if (now.st_size, now.st_mtime_ns) != (arrival.size, arrival.mtime):
            _log.warning("feed %s: %s was changed while it was read; raise settle_s", self.address, arrival.name)


def _opened(folder: Path, arrival: Arrival) -> BinaryIO:
    """Raises FileNotFoundError if it is another file by now."""
    file = open(folder / arrival.name, "rb")  # noqa: SIM115
    now = os.fstat(file.fileno())
    if (now.st_ino, now.st_size, now.st_mtime_ns) != arrival[1:4]:
        file.close()
        raise FileNotFoundError(f"{arrival.name} was changed")
    return file


class _Reader:
    """Some rows at a time. What stops it is raised after the rows before it were given."""

    def __init__(self, found: Iterator[bytes]) -> None:
        self._found = found
        self._error: Exception | None = None

    def some(self) -> list[bytes]:
        """The next rows; none at the end of the file."""
        if self._error is not None:
            raise self._error
        taken: list[bytes] = []
        size = 0
        try:
            while len(taken) < ROWS and size < READ_BYTES and (raw := next(self._found, None)) is not None:
                taken.append(raw)
                size += len(raw)
        except (BadFile, OSError) as error:
            self._error = error
            if not taken:
                raise
        return taken


def _remark(arrivals: Arrivals) -> str | None:
    """What someone should know of a folder that works."""
    if arrivals.late:
        return (
            f"{arrivals.late[0]} came after many files with later names, and is not read; give it a later name, or "
            "take done='move' for this folder"
        )
    if arrivals.waiting_for is not None:
        return f"waiting for {arrivals.waiting_for}, which is still being written"
    return None


def _noted(mark: str, address: str) -> Mark:
    try:
        return msgspec.json.decode(mark, type=Mark)
    except msgspec.ValidationError:
        raise SourceFailed(
            f"{address}: the position noted under this source's name is of another kind of source; give it a new name"
        ) from None


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
    """A folder into which files are dropped, one event a row. See `FolderSource` for what the options mean."""
    return FolderSource(path, pattern, format, done, settle_s, poll_s, Backoff(backoff_s, backoff_max_s))
