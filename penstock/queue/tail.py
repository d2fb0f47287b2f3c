"""The tail mark: how many commits of a stream were acknowledged, kept beside the file so that a cut tail is noticed.

SQLite ends recovery of its write-ahead log at the first frame whose checksum fails. That is right for a write that was
torn by a crash, which nobody was told of; but a bit that flips later in such a frame makes acknowledged commits vanish
without an error. So each commit, once durable, also puts its number into this file of 64 bytes, without an fsync of
its own: two microseconds. At the next opening a database that has fewer commits than the mark is damaged.

The mark is never ahead of the database, since it is written after the commit is durable. It may be behind, which says
nothing. After a mere crash of the process it is exact, and so every lost commit is noticed. After a power cut it may
be as old as the kernel's write-back, about 30 s: damage to the write-ahead log that is younger is then not noticed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from penstock import files

_MARK = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_SLOT_BYTES = 32
"""Two slots are written in turn, so that a write cut short leaves the other one."""


def path_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-tail")


def acknowledged(path: Path, generation: int) -> int:
    """The number of commits that this generation of the file must have; 0 if that is not known."""
    try:
        data = path.read_bytes()[: 2 * _SLOT_BYTES]
    except FileNotFoundError:
        return 0
    return max(_commits(data[:_SLOT_BYTES], generation), _commits(data[_SLOT_BYTES:], generation))


def _commits(slot: bytes, generation: int) -> int:
    mark, crc = slot[: _MARK.size], slot[_MARK.size : _MARK.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != files.checksum(mark):
        return 0
    theirs, commits = _MARK.unpack(mark)
    return int(commits) if theirs == generation else 0


class Tail:
    """The mark as its writer sees it. One thread at a time."""

    def __init__(self, path: Path, generation: int, commits: int) -> None:
        self._generation = generation
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.put(commits)

    def put(self, commits: int) -> None:
        """Say that so many commits are durable. A failure only leaves the mark behind, so it does not count."""
        mark = _MARK.pack(self._generation, commits)
        with contextlib.suppress(OSError):
            os.pwrite(self._file, mark + _CRC.pack(files.checksum(mark)), commits % 2 * _SLOT_BYTES)

    def close(self) -> None:
        os.close(self._file)
