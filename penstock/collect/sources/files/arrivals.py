"""Which files of a folder are new and which are done, and what becomes of those. Plain blocking code.

What is noted must not grow with the folder. Where done files leave it (`move`, `delete`) the folder itself says what is
new, and the mark only holds the file in hand. Where they stay (`keep`) the mark holds the names of the last `DONE_MAX`
that are done, and the name that comes before them all: below that, everything counts as done. So files may come out of
order by that many. One that comes later still is not read, since after a restart it could not be told from those that
were, and is reported.
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
"""Names that are noted, 8 characters each. More than the first while an earlier name still waits for its turn; with the
second, the mark is near the most that it may have."""
LISTED_MAX = 10_000
"""New files held in memory; more are found when these are done."""
LATE_MAX = 100
TRUST_S = 2.0
"""A folder's time of change older than this when it was listed: a later change has another time."""
RELIST_S = 60.0
_log = logging.getLogger("penstock.collect")


class Arrival(NamedTuple):
    """A file to be read, and how many of its rows were read already."""

    name: str
    inode: int
    size: int
    mtime: int
    ctime: int
    row: int = 0


class Mark(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What is noted: the file in hand and its rows that are read, or with `end` what is to become of it; below which
    name all is done, the time of the newest change of a done file, and which names above are done."""

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
    """A name in 8 characters. Two of a thousand names are the same with a probability of 1 in 500 million."""
    return base64.urlsafe_b64encode(hashlib.blake2b(name.encode(), digest_size=6).digest()).decode()


@dataclass
class Arrivals:
    """The files of a folder, in order of their names, from a mark on."""

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
        """The file to read now; None if there is none, or the first is still being written."""
        self._list()
        self.waiting_for = None
        if self.noted.file and (resumed := self._resumed()):
            return resumed
        while self._pending:
            found = _stat(self.folder, self._pending[0])
            if found is None:
                self._pending.pop(0)
            elif self._is_settled(found):
                return self._begun(found)
            else:
                self.waiting_for = found.name
                return None
        return None

    def mark(self, row: int) -> str:
        """What to note with a row of the file in hand, as text."""
        return f'{self._prefix}"row":{row}}}'

    def finished(self, arrival: Arrival, failed: bool) -> str:
        """What to note when the file in hand is read. Once that is durable `put_away`, if files are not kept."""
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
        """Move or delete the file that is noted as finished. One that could not be read is never deleted. Durable on
        return: or else the file could be back after a power cut, when nothing is known of it any more."""
        name, end = self.noted.file, self.noted.end
        self.noted, same = Mark(), self._same(_stat(self.folder, name))
        if not same:
            return
        path = self.folder / name
        if self.delete and end == "done":
            path.unlink()
        else:
            target = self.folder / end
            target.mkdir(exist_ok=True)
            path.rename(_free(target / name))
            _sync(target)
        _sync(self.folder)

    def _same(self, found: Arrival | None) -> bool:
        return found is not None and found[:4] == self._identity

    @property
    def _identity(self) -> tuple[str, int, int, int]:
        return self.noted.file, self.noted.inode, self.noted.size, self.noted.mtime

    def _resumed(self) -> Arrival | None:
        """The file in hand when the process ended."""
        if self.noted.end:
            self.put_away()
            return None
        found, row = _stat(self.folder, self.noted.file), self.noted.row
        if self._same(found) and found is not None:
            return self._begun(found._replace(row=row))
        _log.warning("%s/%s was changed or removed after %d of its rows", self.folder, self.noted.file, row)
        self.noted = Mark(below=self.noted.below, ctime=self.noted.ctime, done=self.noted.done)
        return None

    def _begun(self, arrival: Arrival) -> Arrival:
        """Note the file as the one in hand. It is pending no more, whatever becomes of it."""
        self._pending = [name for name in self._pending if name != arrival.name]
        noted = self.noted
        begun = Mark(*arrival[:4], below=noted.below, ctime=noted.ctime, done=noted.done)
        self._prefix = msgspec.json.encode(begun).decode()[:-1] + ","
        self.noted = Mark(below=noted.below, ctime=noted.ctime, done=noted.done)
        return arrival

    def _raised(self, below: str) -> str:
        """The name below which all is done, raised if too many are noted above it; not past one that is pending."""
        first_pending = self._pending[0] if self._pending else None
        while len(self._done) > DONE_MAX:
            lowest = min(self._done)
            if first_pending is not None and first_pending < lowest and len(self._done) <= DONE_AT_MOST:
                break
            self._done.remove(lowest)
            below = max(below, lowest)
        return below

    def _list(self) -> None:
        """Look what there is, unless that was done just now or nothing has changed."""
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
        """The names of new files. Names that are noted and no longer there are forgotten: they may come again."""
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
        """Below the name where all is done, only what was changed since can be new."""
        ctime = entry.stat().st_ctime_ns
        if ctime > self.noted.ctime and len(self.late) < LATE_MAX:
            self.late.append(entry.name)
            self._late_ctime = max(self._late_ctime, ctime)

    def _tell_of_late(self) -> None:
        if self._late_ctime > self._told_ctime:
            self._told_ctime = self._late_ctime
            _log.error(
                "%s: %s and %d more came after %d files with later names, and are not read",
                self.folder, self.late[0], len(self.late) - 1, DONE_MAX,
            )  # fmt: skip

    def _is_settled(self, found: Arrival) -> bool:
        """Whether nobody has written to it for a while: by its own time, or as long as we have watched it."""
        now = time.monotonic()
        if self._watched is None or self._watched[0] != found:
            self._watched = (found, now)
        return max(time.time() - found.mtime / 1e9, now - self._watched[1]) >= self.settle_s


def _stat(folder: Path, name: str) -> Arrival | None:
    try:
        found = (folder / name).stat()
    except FileNotFoundError:
        return None
    return Arrival(name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _free(path: Path) -> Path:
    """A name that is not taken: nothing that was put away before is overwritten."""
    found, number = path, 0
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
