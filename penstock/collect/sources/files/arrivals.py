"""Finding new files in a folder, and moving or deleting finished files. Plain blocking code.

The mark must not grow with the folder. If finished files leave the folder (`move`, `delete`), the folder itself shows
which files are new, and the mark only contains the current file. If they stay (`keep`), the mark contains the names of
the last `DONE_MAX` finished files, and a name below which every file counts as finished. So a file can arrive late by
up to `DONE_MAX` files. A file that arrives even later is reported but not read, because after a restart it could not be
distinguished from the files already read.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import heapq
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

DONE_MAX = 1_000
DONE_AT_MOST = 1_800
"""Maximum number of names in a mark, at 8 characters each: normally `DONE_MAX`, and up to `DONE_AT_MOST` while a file
with an earlier name is still pending.

At `DONE_AT_MOST`, the mark is close to its size limit.
"""
LISTED_MAX = 10_000
"""Maximum number of new files held in memory. The rest are found when these are finished."""
LATE_MAX = 100
TRUST_S = 2.0
"""If a folder was last changed more than this many seconds before it was listed, any later change gives it a different
modification time."""
RELIST_S = 60.0
_log = logging.getLogger("penstock.collect")


class Arrival(NamedTuple):
    """A file to read in the source's folder, and how many of its rows have already been read."""

    name: str
    inode: int
    size: int
    mtime: int
    ctime: int
    row: int = 0


class Mark(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The folder source's mark: the current file and how many of its rows have been read, or, in `end`, how to put the
    file away.

    Also the name below which all files are finished (`below`), the latest change time of a finished file (`ctime`), and
    the finished names above `below` (`done`).
    """

    file: str = ""
    inode: int = 0
    size: int = 0
    mtime: int = 0
    end: str = ""
    below: str = ""
    ctime: int = 0
    done: str = ""
    row: int = 0


@functools.lru_cache(4096)
def short(name: str) -> str:
    """Hash a file's name to 8 characters. Among a thousand names, a collision has a probability of about 1 in 500
    million."""
    return base64.urlsafe_b64encode(hashlib.blake2b(name.encode(), digest_size=6).digest()).decode()


@dataclass
class Arrivals:
    """The files in the source's folder, in name order, starting from a mark."""

    folder: Path
    accepts: Callable[[str], bool]
    keep: bool
    delete: bool
    settle_s: float
    poll_s: float
    noted: Mark
    waiting_for: str | None = field(default=None, init=False)
    late: list[str] = field(default_factory=list, init=False)
    _pending: list[str] = field(default_factory=list, init=False)
    _done: set[str] = field(default_factory=set, init=False)
    _listed: float = field(default=-RELIST_S, init=False)
    _folder_mtime: int = field(default=0, init=False)
    _watched: tuple[Arrival, float] | None = field(default=None, init=False)
    _late_ctime: int = field(default=0, init=False)
    _told_ctime: int = field(default=0, init=False)
    _prefix: str = field(default="", init=False)

    def next(self) -> Arrival | None:
        """Return the next file in the folder to read. None if there is no such file, or if the first one is still being
        written."""
        self._list()
        self.waiting_for = None
        if self.noted.file and (resumed := self._resumed()):
            return resumed
        while self._pending:
            arrival = _stat_arrival(self.folder, self._pending[0])
            if arrival is None:
                self._pending.pop(0)
            elif self._is_settled(arrival):
                return self._begun(arrival)
            else:
                self.waiting_for = arrival.name
                return None
        return None

    def mark(self, row: int) -> str:
        """Return the source's mark, as a string, after `row` rows of the current file."""
        return f'{self._prefix}"row":{row}}}'

    def finished(self, arrival: Arrival, failed: bool) -> str:
        """Return the source's mark after the current file is finished.

        Once the mark is durable, call `put_away`, unless files are kept.
        """
        noted = self.noted
        if self.keep:
            self._done.add(arrival.name)
            below = self._raised(noted.below)
            done = "".join(map(short, sorted(self._done)))
            self.noted = Mark(below=below, ctime=max(noted.ctime, arrival.ctime), done=done)
        else:
            self.noted = Mark(*arrival[:4], end="failed" if failed else "done")
        return msgspec.json.encode(self.noted).decode()

    def put_away(self) -> None:
        """Move or delete the finished file. A file that could not be read is moved, never deleted.

        Durable on return, because otherwise the file could reappear after a power cut, when the mark no longer contains
        it.
        """
        name, end = self.noted.file, self.noted.end
        self.noted, same = Mark(), self._same(_stat_arrival(self.folder, name))
        if not same:
            return
        path = self.folder / name
        if self.delete and end == "done":
            path.unlink()
        else:
            target = self.folder / end
            target.mkdir(exist_ok=True)
            path.rename(_free_path(target / name))
            _sync_folder(target)
        _sync_folder(self.folder)

    def _same(self, arrival: Arrival | None) -> bool:
        return arrival is not None and arrival[:4] == self._identity

    @property
    def _identity(self) -> tuple[str, int, int, int]:
        return self.noted.file, self.noted.inode, self.noted.size, self.noted.mtime

    def _resumed(self) -> Arrival | None:
        """Return the file that was being read when the process ended."""
        if self.noted.end:
            self.put_away()
            return None
        arrival, row = _stat_arrival(self.folder, self.noted.file), self.noted.row
        if self._same(arrival) and arrival is not None:
            return self._begun(arrival._replace(row=row))
        _log.warning("%s/%s was changed or removed after %d of its rows were read", self.folder, self.noted.file, row)
        self.noted = Mark(below=self.noted.below, ctime=self.noted.ctime, done=self.noted.done)
        return None

    def _begun(self, arrival: Arrival) -> Arrival:
        """Make the file the current one. It is no longer pending, even if reading it fails."""
        self._pending = [name for name in self._pending if name != arrival.name]
        noted = self.noted
        begun = Mark(*arrival[:4], below=noted.below, ctime=noted.ctime, done=noted.done)
        self._prefix = msgspec.json.encode(begun).decode()[:-1] + ","
        self.noted = Mark(below=noted.below, ctime=noted.ctime, done=noted.done)
        return arrival

    def _raised(self, below: str) -> str:
        """Return the name below which all files count as finished. If the mark has too many names, this is a later name
        than `below`, but not past a pending file unless there are more than `DONE_AT_MOST` names."""
        first_pending = self._pending[0] if self._pending else None
        while len(self._done) > DONE_MAX:
            lowest = min(self._done)
            if first_pending is not None and first_pending < lowest and len(self._done) <= DONE_AT_MOST:
                break
            self._done.remove(lowest)
            below = max(below, lowest)
        return below

    def _list(self) -> None:
        """List the source's folder, unless it was listed just now or has not changed since."""
        now = time.monotonic()
        if self._pending and now - self._listed < self.poll_s:
            return
        changed = self.folder.stat().st_mtime_ns
        if not self._pending and changed == self._folder_mtime and now - self._listed < RELIST_S:
            return
        self._listed = now
        self.late = []
        self._pending = heapq.nsmallest(LISTED_MAX, self._new())
        self._tell_of_late()
        trusted = time.time() - changed / 1e9 > TRUST_S and len(self._pending) < LISTED_MAX
        self._folder_mtime = changed if trusted else 0

    def _new(self) -> Iterator[str]:
        """Yield the names of new files. Removes the names of finished files that no longer exist from the mark, so that
        they can be used again."""
        noted = self.noted.done
        known = {noted[at : at + 8] for at in range(0, len(noted), 8)} if self.keep else set()
        self._done = set()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not self.accepts(entry.name) or not entry.is_file():
                    continue
                if self.noted.below and entry.name <= self.noted.below:
                    self._look_if_late(entry)
                elif known and short(entry.name) in known:
                    self._done.add(entry.name)
                else:
                    yield entry.name

    def _look_if_late(self, entry: os.DirEntry[str]) -> None:
        """Check a file whose name sorts before the finished names. It can only be new if it changed after all finished
        files."""
        ctime = entry.stat().st_ctime_ns
        if ctime > self.noted.ctime and len(self.late) < LATE_MAX:
            self.late.append(entry.name)
            self._late_ctime = max(self._late_ctime, ctime)

    def _tell_of_late(self) -> None:
        if self._late_ctime > self._told_ctime:
            self._told_ctime = self._late_ctime
            _log.error(
                "%s: %s and %d more files are skipped, because they arrived after %d files with later names",
                self.folder, self.late[0], len(self.late) - 1, DONE_MAX,
            )  # fmt: skip

    def _is_settled(self, arrival: Arrival) -> bool:
        """Return whether nothing has been written to the file for `settle_s`, based on its modification time or on how
        long it has been watched."""
        now = time.monotonic()
        if self._watched is None or self._watched[0] != arrival:
            self._watched = (arrival, now)
        return max(time.time() - arrival.mtime / 1e9, now - self._watched[1]) >= self.settle_s


def _stat_arrival(folder: Path, name: str) -> Arrival | None:
    try:
        status = (folder / name).stat()
    except FileNotFoundError:
        return None
    return Arrival(name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _free_path(path: Path) -> Path:
    """Return an unused path for a finished file, so that no file that was put away earlier is overwritten."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
