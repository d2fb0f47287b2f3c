"""One log file, plain or compressed, read from a position. Plain blocking code, one thread at a time."""

from __future__ import annotations

import gzip
import logging
import os
import zlib

import msgspec

from penstock.collect.sources.files.lines import READ_BYTES, LineSplitter
from penstock.collect.sources.files.rotation import ListedFile

HEAD_BYTES = 1024
LAST_BYTES = 256
"""Number of bytes that a fingerprint covers: at the start of the file, and before the position."""
_log = logging.getLogger("penstock.collect")


class FilePosition(msgspec.Struct, frozen=True):
    """A position in a log file: the file, the offset after the last line, the fingerprint of the contents before it,
    and the modification time.

    `live` is the inode of the last file that was read while it was at the path. Inode 0 means that there was no file
    yet; files written to after `mtime` are new. The device is not stored, because rotated files stay in their folder
    and a reboot may renumber devices.
    """

    inode: int
    offset: int
    print: str
    mtime: int
    live: int

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def fingerprint(head: bytes, last: bytes) -> str:
    return f"{zlib.crc32(head):08x}{zlib.crc32(last):08x}"


class Rewritten(Exception):
    """A part of the log file that has already been read has changed."""


class OpenFile:
    """One log file, plain or compressed, read from a position. Keeps the file open, so that its inode number is not
    reused."""

    def __init__(self, seen: ListedFile) -> None:
        """Raises FileNotFoundError if a different file is now at the path."""
        self.path, self.mtime = seen.path, seen.mtime
        self._file = open(seen.path, "rb", buffering=0)  # noqa: SIM115  # until close()
        if self.status().st_ino != seen.inode:
            self._file.close()
            raise FileNotFoundError(f"{seen.path} was rotated")
        self._damaged = False
        self._packed = gzip.GzipFile(fileobj=self._file) if seen.path.suffix == ".gz" else None

    def status(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def begin(self, offset: int, bytes_max: int, live: int) -> None:
        """Start reading the log file at an offset."""
        self._live = live
        self.at_start = offset == 0
        self._head = self._read_at(0, min(offset, HEAD_BYTES))
        self._recent = self._bytes_before(offset)
        self._splitter = LineSplitter(offset, bytes_max)
        self.inode = self.status().st_ino
        self.position = self._position(offset, self._head, self._recent, self.mtime)

    def holds(self, position: FilePosition) -> bool:
        """Return whether the log file has the contents that were read up to a position."""
        try:
            head, last = self._read_at(0, min(position.offset, HEAD_BYTES)), self._bytes_before(position.offset)
        except (OSError, EOFError, zlib.error):
            if self._packed is None:
                raise
            return False
        whole = len(head) == min(position.offset, HEAD_BYTES) and len(last) == min(position.offset, LAST_BYTES)
        return whole and fingerprint(head, last) == position.print

    def after_last_line(self) -> int:
        """Return the end of the log file's last complete line."""
        at = end = self.status().st_size
        while at > 0:
            at = max(0, end - READ_BYTES)
            index = self._read_at(at, end - at).rfind(b"\n")
            if index >= 0:
                return at + index + 1
            end = at
        return 0

    def read(self) -> list[tuple[bytes, FilePosition]] | None:
        """Return the lines in the log file's next part, without blank lines, or None at the end of the file. Raises
        `Rewritten`."""
        part = self._next_part()
        if not part:
            return None
        self.at_start = False
        mtime = self.status().st_mtime_ns  # after reading: never older than the bytes that were read
        base, window = self._splitter.at - len(self._recent), self._recent + part
        if len(self._head) < HEAD_BYTES:
            self._head = (self._head + part)[:HEAD_BYTES]
        lines = []
        for line in self._splitter.feed(part):
            last = window[max(0, line.end - base - LAST_BYTES) : line.end - base]
            self.position = self._position(line.end, self._head[: line.end], last, mtime)
            if line.data.strip():
                lines.append((line.data, self.position))
        self._recent = window[-LAST_BYTES:]
        return lines

    def finish(self) -> list[tuple[bytes, FilePosition]]:
        """Return the log file's last line if it has no line ending. Call it when nobody writes to the file any more."""
        line = self._splitter.last()
        if line is None:
            return []
        self.position = self._position(line.end, self._head, self._recent, self.status().st_mtime_ns)
        return [(line.data, self.position)] if line.data.strip() else []

    def _position(self, offset: int, head: bytes, last: bytes, mtime: int) -> FilePosition:
        return FilePosition(self.inode, offset, fingerprint(head, last), mtime, self._live)

    def _next_part(self) -> bytes:
        """Read new bytes, and the bytes before them, in one call, so that a truncation cannot happen in between."""
        if self._packed is not None:
            return self._unpacked_part()
        known = len(self._recent)
        data = self._read_at(self._splitter.at - known, known + READ_BYTES)
        part = data[known:]
        if data[:known] != self._recent or (part and self._read_at(0, len(self._head)) != self._head):
            raise Rewritten
        return part

    def _unpacked_part(self) -> bytes:
        if self._damaged:
            return b""
        try:
            return self._read_at(self._splitter.at, READ_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            self._damaged = True
            _log.warning("%s is damaged; only the part before the damage is read: %s", self.path, error)
            return b""

    def _bytes_before(self, offset: int) -> bytes:
        count = min(offset, LAST_BYTES)
        return self._read_at(offset - count, count)

    def _read_at(self, at: int, count: int) -> bytes:
        if self._packed is None:
            return os.pread(self._file.fileno(), count, at)
        self._packed.seek(at)
        return self._packed.read(count)
