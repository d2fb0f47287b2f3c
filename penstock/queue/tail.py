"""The tail mark: the number of a stream's acknowledged commits, stored next to its file so that lost commits can be
detected.

SQLite ends recovery of its write-ahead log at the first frame whose checksum fails. This is correct for a write torn by
a crash, which was never acknowledged. If, however, a bit in a frame flips later, acknowledged commits are lost without
an error. Therefore, once a commit is durable, its number is also written to this 64-byte file. The write takes two
microseconds, because it is not followed by an fsync. If a database has fewer commits than the mark says when it is
opened, it is damaged.

The mark is never ahead of the database, because it is written after the commit is durable. It can be behind, which is
harmless. If only the process crashed, the mark is exact, so every lost commit is detected. After a power failure, the
mark can be as old as the kernel's last write-back, about 30 s. In that case, damage to newer parts of the write-ahead
log is not detected.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from penstock.core import files

_MARK = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_SLOT_BYTES = 32
"""Size of each of the two slots. They are written alternately, so an interrupted write leaves the other slot intact."""


def path_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-tail")


def acknowledged(path: Path, generation: int) -> int:
    """Return the number of commits that this generation of the file must have, or 0 if that is unknown."""
    try:
        data = path.read_bytes()[: 2 * _SLOT_BYTES]
    except FileNotFoundError:
        return 0
    return max(
        _acknowledged_commits(data[:_SLOT_BYTES], generation), _acknowledged_commits(data[_SLOT_BYTES:], generation)
    )


def _acknowledged_commits(slot: bytes, generation: int) -> int:
    mark, crc = slot[: _MARK.size], slot[_MARK.size : _MARK.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != files.checksum(mark):
        return 0
    theirs, commits = _MARK.unpack(mark)
    return int(commits) if theirs == generation else 0


class TailMark:
    """Writer for the tail mark. Not thread-safe."""

    def __init__(self, path: Path, generation: int, commits: int) -> None:
        self._generation = generation
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.put(commits)

    def put(self, commits: int) -> None:
        """Record that `commits` commits to the stream are durable. Errors are ignored, because they only cause the mark
        to fall behind."""
        mark = _MARK.pack(self._generation, commits)
        with contextlib.suppress(OSError):
            os.pwrite(self._file, mark + _CRC.pack(files.checksum(mark)), commits % 2 * _SLOT_BYTES)

    def close(self) -> None:
        os.close(self._file)
