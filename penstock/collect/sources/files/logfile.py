"""One log file, plain or packed, read from a position on. Plain blocking code, one thread at a time."""

from __future__ import annotations

import gzip
import logging
import os
import zlib

import msgspec

from penstock.collect.sources.files.lines import READ_BYTES, LineSplitter
from penstock.collect.sources.files.rotation import Seen

HEAD_BYTES = 1024
LAST_BYTES = 256
"""What a fingerprint covers: the first bytes of the file, and the last ones before the position."""
_log = logging.getLogger("penstock.collect")


class Position(msgspec.Struct, frozen=True):
    """Where we stand: the file, the byte after the last line, the fingerprint of what is before it, and when the file
    was last written to as of then. `live` is the inode of the file that was last read while it stood at the path. Inode
    0: there was no file yet; files written to after `mtime` are new.

    The device is not noted: rotated files stay in their folder, and a reboot may number devices anew.
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
    """What was read of the file is no longer in it."""


class OpenFile:
    """One file, plain or packed, read from a position on. Holds its inode: nothing else gets that number meanwhile."""

    def __init__(self, seen: Seen) -> None:
        """Raises FileNotFoundError if it is no longer what was seen."""
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
        """Read from here on."""
        self._live = live
        self.at_start = offset == 0
        self._head = self._read_at(0, min(offset, HEAD_BYTES))
        self._recent = self._before(offset)
        self._splitter = LineSplitter(offset, bytes_max)
        self.inode = self.status().st_ino
        self.place = self._position(offset, self._head, self._recent, self.mtime)

    def holds(self, place: Position) -> bool:
        """Whether the file has what was read up to a position."""
        try:
            head, last = self._read_at(0, min(place.offset, HEAD_BYTES)), self._before(place.offset)
        except (OSError, EOFError, zlib.error):
            if self._packed is None:
                raise
            return False
        whole = len(head) == min(place.offset, HEAD_BYTES) and len(last) == min(place.offset, LAST_BYTES)
        return whole and fingerprint(head, last) == place.print

    def after_last_line(self) -> int:
        """The end of the last line that is complete."""
        at = end = self.status().st_size
        while at > 0:
            at = max(0, end - READ_BYTES)
            found = self._read_at(at, end - at).rfind(b"\n")
            if found >= 0:
                return at + found + 1
            end = at
        return 0

    def read(self) -> list[tuple[bytes, Position]] | None:
        """The lines in the next part, blank ones left out; None at the end of the file. Raises `Rewritten`."""
        part = self._next_part()
        if not part:
            return None
        self.at_start = False
        mtime = self.status().st_mtime_ns  # after reading: never older than the bytes that were read
        base, window = self._splitter.at - len(self._recent), self._recent + part
        if len(self._head) < HEAD_BYTES:
            self._head = (self._head + part)[:HEAD_BYTES]
        found = []
        for line in self._splitter.feed(part):
            last = window[max(0, line.end - base - LAST_BYTES) : line.end - base]
            self.place = self._position(line.end, self._head[: line.end], last, mtime)
            if line.data.strip():
                found.append((line.data, self.place))
        self._recent = window[-LAST_BYTES:]
        return found

    def finish(self) -> list[tuple[bytes, Position]]:
        """The last line, if it has no end, of a file that nobody writes to any more."""
        line = self._splitter.last()
        if line is None:
            return []
        self.place = self._position(line.end, self._head, self._recent, self.status().st_mtime_ns)
        return [(line.data, self.place)] if line.data.strip() else []

    def _position(self, offset: int, head: bytes, last: bytes, mtime: int) -> Position:
        return Position(self.inode, offset, fingerprint(head, last), mtime, self._live)

    def _next_part(self) -> bytes:
        """One read brings what is new and what stands before it, so that a truncation cannot come between."""
        if self._packed is not None:
            return self._unpacked()
        known = len(self._recent)
        data = self._read_at(self._splitter.at - known, known + READ_BYTES)
        part = data[known:]
        if data[:known] != self._recent or (part and self._read_at(0, len(self._head)) != self._head):
            raise Rewritten
        return part

    def _unpacked(self) -> bytes:
        if self._damaged:
            return b""
        try:
            return self._read_at(self._splitter.at, READ_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            self._damaged = True
            _log.warning("%s is damaged; it is read up to there: %s", self.path, error)
            return b""

    def _before(self, offset: int) -> bytes:
        count = min(offset, LAST_BYTES)
        return self._read_at(offset - count, count)

    def _read_at(self, at: int, count: int) -> bytes:
        if self._packed is None:
            return os.pread(self._file.fileno(), count, at)
        self._packed.seek(at)
        return self._packed.read(count)
