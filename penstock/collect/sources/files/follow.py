"""Following a file that grows and is rotated. Plain blocking code, one thread at a time; `tail` calls it.

    a file is read to its end --> is it still the one at the path?   yes: wait for more
                                  no, it was rotated: wait until nobody writes to it, then go on to the next newer one
    a file is not what it was --> it was truncated, or written anew: find its copy, or begin again

Where we stand is a `Position`. To find it again among the files that are there, the inode alone will not do, since
numbers of deleted files are used again and copies have others: what the file holds up to there must fit as well.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.collect.sources.files.logfile import LAST_BYTES, OpenFile, Position, Rewritten, fingerprint
from penstock.collect.sources.files.rotation import Family, Seen, family

ALIKE_BYTES = LAST_BYTES
"""How much of a file must have been read for its contents alone to identify it at the path: files may begin with the
same few lines."""
PRESERVED_NS = 1_000_000_000
"""A copy may have lost the fraction of a second of the time of its last change."""
_log = logging.getLogger("penstock.collect")


class Moved(Exception):
    """A file is no longer where it was listed. It may be the very one that is looked for: what the others hold says
    nothing then, and the files are to be listed anew."""


class Step(NamedTuple):
    """Lines, each with the position after it; a position to note without one; whether to go on at once."""

    lines: list[tuple[bytes, Position]] = []  # noqa: RUF012  # never changed
    note: Position | None = None
    more: bool = False


@dataclass
class Follower:
    """Follows `path` from a position on; None if there is none yet."""

    path: Path
    place: Position | None
    from_start: bool
    bytes_max: int
    rotated_wait_s: float
    file: OpenFile | None = field(default=None, init=False)
    _live: int = field(default=0, init=False)
    _left: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._live = self.place.live if self.place else 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def step(self) -> Step:
        """The next lines, if there are any. Takes some ms; as long as it takes to unpack a file, where one must be."""
        try:
            return self._start() if self.file is None else self._go_on(self.file)
        except Moved:
            return Step()

    def _go_on(self, file: OpenFile) -> Step:
        """What comes next in the file that is open."""
        at_start = file.at_start
        try:
            found = file.read()
        except Rewritten:
            self._leave(None)
            _log.warning(
                "%s was truncated or written anew; its copy is looked for, and then it is read from its start",
                self.path,
            )
            return Step(more=True)
        if found is None:
            return self._at_end(file)
        self._left = None
        if at_start and self._is_too_new(file):
            file.close()
            self.file = None
            return Step()
        return Step(found, more=True)

    def _is_too_new(self, file: OpenFile) -> bool:
        """Whether the file at the path, of which nothing was read before, was meanwhile written to, copied and
        truncated. Then its copy comes first: we go back to the file before, and on from there."""
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
        return any(each.mtime > file.mtime for each in there.older)

    def _index(self, older: list[Seen]) -> int | None:
        """Which is the file that was read before, perhaps packed by now."""
        for index, each in enumerate(older):
            if self.place is not None and each.inode == self.place.inode:
                return index
        for index, each in enumerate(older):
            if self.place is not None and self.place.offset and (same := self._opened(each, 0, self.place)):
                same.close()
                return index
        return None

    def _start(self) -> Step:
        there = family(self.path)
        if there is None:
            return Step()
        if self.place is not None:
            self.file = self._located(there, self.place)
            return Step(more=self.file is not None)
        if there.current is None:
            newest = max((each.mtime for each in there.older), default=0)
            self.place = Position(0, 0, fingerprint(b"", b""), newest, 0)
            return Step(note=self.place)
        self.file = self._opened(there.current, 0)
        if self.file is not None and not self.from_start:
            self.file.begin(self.file.after_last_line(), self.bytes_max, self._live)
        self.place = self.file.place if self.file else None
        return Step(note=self.place, more=True)

    def _at_end(self, file: OpenFile) -> Step:
        """Nothing more in the file, for now. If it was rotated it is read once more before it is left: what came
        between the last read and the rotation."""
        try:
            current = self.path.stat()
        except FileNotFoundError:
            return Step()
        held = file.status()
        if (current.st_dev, current.st_ino) == (held.st_dev, held.st_ino):
            self._left = None
            return Step()
        if self._left is None:
            self._left = time.monotonic()
            return Step(more=True)
        if not self._is_quiet(held, self._left):
            return Step()
        found = file.finish()
        if found:
            return Step(found, more=True)
        following = self._following(file)
        if following is None:
            return Step()
        self._leave(following)
        return Step(more=True)

    def _is_quiet(self, held: os.stat_result, left: float) -> bool:
        """Whether writers have had the time to leave a file that was rotated: since its last change, which renaming it
        is one, or since we saw it, if the clock makes no sense."""
        changed = max(held.st_mtime, held.st_ctime)
        return max(time.time() - changed, time.monotonic() - left) >= self.rotated_wait_s

    def _leave(self, following: OpenFile | None) -> None:
        assert self.file is not None
        self.place, self._left = self.file.place, None
        self.file.close()
        self.file = following

    def _following(self, file: OpenFile) -> OpenFile | None:
        """The file after one that was read to its end.

        That one may be a copy, and the file at the path, which it was made of, not yet truncated. Then we go on there.
        A file that was renamed is no copy: another one stands at the path now.
        """
        there = family(self.path)
        if there is None:
            return None
        copied = there.current is not None and there.current.inode == self._live
        if copied and (same := self._alike(there.current, file.place)):
            return same
        ordered = [*there.older, *([there.current] if there.current else [])]
        inodes = [each.inode for each in ordered]
        if file.place.inode not in inodes:
            return self._located(there, file.place)
        newer = ordered[inodes.index(file.place.inode) + 1 :]
        return self._opened(newer[0], 0) if newer else None

    def _located(self, there: Family, place: Position) -> OpenFile | None:
        """The file of a position, at that position: by its inode and contents; by its contents alone, as a copy or a
        packed one, or restored; or the first of those that are newer, from its start. None if there is none yet.

        If nothing was read of it yet, there are no contents to go by: it may have been copied and truncated, and then
        its copy is among the newer ones.
        """
        everything = [*([there.current] if there.current else []), *there.older]
        for each in everything if place.offset else there.older:
            if each.inode == place.inode and (same := self._opened(each, place.offset, place)):
                return same
        for each in _by_age(there.older, place) if place.offset else ():
            if same := self._opened(each, place.offset, place):
                return same
        if same := self._alike(there.current, place):
            return same
        return self._first_after(there, place)

    def _alike(self, current: Seen | None, place: Position) -> OpenFile | None:
        """The file at the path, if it holds what we have read of another one."""
        if current is None or place.offset < ALIKE_BYTES:
            return None
        return self._opened(current, place.offset, place)

    def _first_after(self, there: Family, place: Position) -> OpenFile | None:
        newer = [each for each in there.older if each.mtime > place.mtime]
        first = next(iter([*newer, *([there.current] if there.current else [])]), None)
        if first is None:
            return None
        file = self._opened(first, 0)
        if file is not None and place.offset:
            _log.warning(
                "%s: what was read up to byte %d is in no file any more; going on with %s from its start",
                self.path, place.offset, first.path.name,
            )  # fmt: skip
        return file

    def _opened(self, seen: Seen, offset: int, place: Position | None = None) -> OpenFile | None:
        """The file at an offset; None if it does not hold a position. Raises `Moved`."""
        try:
            file = OpenFile(seen)
        except FileNotFoundError:
            raise Moved(seen.path) from None
        try:
            fits = place is None or file.holds(place)
            if fits:
                self._live = seen.inode if seen.path == self.path else self._live
                file.begin(offset, self.bytes_max, self._live)
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        return None


def _by_age(older: list[Seen], place: Position) -> list[Seen]:
    """Those that may be a copy of what was read: last written to no earlier than that. Of several, the oldest first."""
    surely = [each for each in older if each.mtime >= place.mtime]
    perhaps = [each for each in older if place.mtime > each.mtime >= place.mtime - PRESERVED_NS]
    return [*surely, *reversed(perhaps)]
