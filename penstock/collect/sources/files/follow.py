"""Following a file that grows and is rotated. Plain blocking code, which `tail` calls from one thread at a time.

    a file is read to its end --> is it still the one at the path?   yes: wait for more
                                  no, it was rotated: wait until nobody writes to it, then continue with the next one
    a file has changed --> it was truncated or rewritten: find its copy, or start over

The current position is a `FilePosition`. The inode alone does not identify the file, because inode numbers of deleted
files are reused and a copy has a different inode. So the contents up to the position must match as well.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.collect.sources.files.logfile import LAST_BYTES, FilePosition, OpenFile, Rewritten, fingerprint
from penstock.collect.sources.files.rotation import Family, ListedFile, family

ALIKE_BYTES = LAST_BYTES
"""Number of bytes that must have been read before the contents alone identify a file at the path.

Different files may begin with the same few lines.
"""
PRESERVED_NS = 1_000_000_000
"""A copy's modification time may be up to this much earlier, because it may have lost the fraction of a second."""
_log = logging.getLogger("penstock.collect")


class Moved(Exception):
    """A listed file has been moved. It may be the file that is needed, so the files must be listed again."""


class FollowStep(NamedTuple):
    """The result of a step in following a file: lines and the position after each line, a position to commit without a
    line, and whether to continue immediately."""

    lines: list[tuple[bytes, FilePosition]] = []  # noqa: RUF012  # never changed
    note: FilePosition | None = None
    more: bool = False


@dataclass
class Follower:
    """Follows `path` from `position`, which is None if there is no position yet."""

    path: Path
    position: FilePosition | None
    from_start: bool
    bytes_max: int
    rotated_wait_s: float
    file: OpenFile | None = field(default=None, init=False)
    _live: int = field(default=0, init=False)
    _left: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._live = self.position.live if self.position else 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def step(self) -> FollowStep:
        """Return the followed file's next lines, if any. Blocks for a few milliseconds, or for as long as it takes to
        decompress a file."""
        try:
            return self._start() if self.file is None else self._go_on(self.file)
        except Moved:
            return FollowStep()

    def _go_on(self, file: OpenFile) -> FollowStep:
        """Return the next step in the open file."""
        at_start = file.at_start
        try:
            lines = file.read()
        except Rewritten:
            self._leave(None)
            _log.warning(
                "%s was truncated or rewritten; looking for a copy of its old contents, then reading the "
                "file from its start",
                self.path,
            )
            return FollowStep(more=True)
        if lines is None:
            return self._at_end(file)
        self._left = None
        if at_start and self._is_too_new(file):
            file.close()
            self.file = None
            return FollowStep()
        return FollowStep(lines, more=True)

    def _is_too_new(self, file: OpenFile) -> bool:
        """Return whether the file at the path, which has not been read yet, has been written to, copied and truncated
        in the meantime.

        In that case the copy must be read first: the follower returns to the previous file and continues there.
        """
        there = family(self.path)
        if there is None:
            return True
        if there.current is None or there.current.inode != file.inode:
            return False
        try:
            before = self._index(there.older)
        except Moved:
            return True
        if before is not None:
            return before < len(there.older) - 1
        return any(other.mtime > file.mtime for other in there.older)

    def _index(self, older: list[ListedFile]) -> int | None:
        """Return the index of the file that was read last, which may have been compressed since."""
        for index, file in enumerate(older):
            if self.position is not None and file.inode == self.position.inode:
                return index
        for index, file in enumerate(older):
            if self.position is not None and self.position.offset and (same := self._opened(file, 0, self.position)):
                same.close()
                return index
        return None

    def _start(self) -> FollowStep:
        there = family(self.path)
        if there is None:
            return FollowStep()
        if self.position is not None:
            self.file = self._located(there, self.position)
            return FollowStep(more=self.file is not None)
        if there.current is None:
            newest = max((file.mtime for file in there.older), default=0)
            self.position = FilePosition(0, 0, fingerprint(b"", b""), newest, 0)
            return FollowStep(note=self.position)
        self.file = self._opened(there.current, 0)
        if self.file is not None and not self.from_start:
            self.file.begin(self.file.after_last_line(), self.bytes_max, self._live)
        self.position = self.file.position if self.file else None
        return FollowStep(note=self.position, more=True)

    def _at_end(self, file: OpenFile) -> FollowStep:
        """Handle the current end of the followed file. If the file was rotated, it is read once more before the
        follower leaves it.

        That catches lines written between the last read and the rotation.
        """
        try:
            current = self.path.stat()
        except FileNotFoundError:
            return FollowStep()
        held = file.status()
        if (current.st_dev, current.st_ino) == (held.st_dev, held.st_ino):
            self._left = None
            return FollowStep()
        if self._left is None:
            self._left = time.monotonic()
            return FollowStep(more=True)
        if not self._is_quiet(held, self._left):
            return FollowStep()
        lines = file.finish()
        if lines:
            return FollowStep(lines, more=True)
        following = self._following(file)
        if following is None:
            return FollowStep()
        self._leave(following)
        return FollowStep(more=True)

    def _is_quiet(self, held: os.stat_result, left: float) -> bool:
        """Return whether writers have had enough time to stop using a rotated file.

        The time is measured from the file's last change (a rename counts as one). If the clock is implausible, it is
        measured from the moment when the rotation was noticed.
        """
        changed = max(held.st_mtime, held.st_ctime)
        return max(time.time() - changed, time.monotonic() - left) >= self.rotated_wait_s

    def _leave(self, following: OpenFile | None) -> None:
        assert self.file is not None
        self.position, self._left = self.file.position, None
        self.file.close()
        self.file = following

    def _following(self, file: OpenFile) -> OpenFile | None:
        """Return the file after one that was read to its end.

        The file that was read may be a copy of the file at the path, if that file has not been truncated yet. Reading
        then continues in the file at the path. A file that was renamed is not a copy, because a different file is now
        at the path.
        """
        there = family(self.path)
        if there is None:
            return None
        copied = there.current is not None and there.current.inode == self._live
        if copied and (same := self._alike(there.current, file.position)):
            return same
        ordered = [*there.older, *([there.current] if there.current else [])]
        inodes = [other.inode for other in ordered]
        if file.position.inode not in inodes:
            return self._located(there, file.position)
        newer = ordered[inodes.index(file.position.inode) + 1 :]
        return self._opened(newer[0], 0) if newer else None

    def _located(self, there: Family, position: FilePosition) -> OpenFile | None:
        """Open the log file that a position refers to, at that position. None if there is no such file yet.

        The file is found by its inode and contents, or by its contents alone if it was copied, compressed or restored.
        Otherwise, the oldest of the newer files is opened at its start. If nothing has been read from the file yet,
        there are no contents to compare: it may have been copied and truncated, and its copy is then among the newer
        files.
        """
        everything = [*([there.current] if there.current else []), *there.older]
        for file in everything if position.offset else there.older:
            if file.inode == position.inode and (same := self._opened(file, position.offset, position)):
                return same
        for file in _copies_by_age(there.older, position) if position.offset else ():
            if same := self._opened(file, position.offset, position):
                return same
        if same := self._alike(there.current, position):
            return same
        return self._first_after(there, position)

    def _alike(self, current: ListedFile | None, position: FilePosition) -> OpenFile | None:
        """Return the file at the path, if it has the contents that were read from a different file."""
        if current is None or position.offset < ALIKE_BYTES:
            return None
        return self._opened(current, position.offset, position)

    def _first_after(self, there: Family, position: FilePosition) -> OpenFile | None:
        newer = [file for file in there.older if file.mtime > position.mtime]
        first = next(iter([*newer, *([there.current] if there.current else [])]), None)
        if first is None:
            return None
        file = self._opened(first, 0)
        if file is not None and position.offset:
            _log.warning(
                "%s: the file that was read up to byte %d no longer exists; continuing at the start of %s",
                self.path, position.offset, first.path.name,
            )  # fmt: skip
        return file

    def _opened(self, seen: ListedFile, offset: int, position: FilePosition | None = None) -> OpenFile | None:
        """Open a log file at an offset. None if the file does not match `position`. Raises `Moved`."""
        try:
            file = OpenFile(seen)
        except FileNotFoundError:
            raise Moved(seen.path) from None
        try:
            fits = position is None or file.holds(position)
            if fits:
                self._live = seen.inode if seen.path == self.path else self._live
                file.begin(offset, self.bytes_max, self._live)
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        return None


def _copies_by_age(older: list[ListedFile], position: FilePosition) -> list[ListedFile]:
    """Return the files that may be a copy of the file that was read: first those that are not older, then those that
    are older by at most `PRESERVED_NS`, the newest first."""
    surely = [file for file in older if file.mtime >= position.mtime]
    perhaps = [file for file in older if position.mtime > file.mtime >= position.mtime - PRESERVED_NS]
    return [*surely, *reversed(perhaps)]
