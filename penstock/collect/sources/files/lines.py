"""Helpers shared by the file sources: lines of bounded size, stored positions, and calls in a thread that are never
abandoned halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from penstock.core.errors import SourceFailed

READ_BYTES = 64 * 1024
"""Bytes read at a time. Their lines are put in one go, so this bounds how long the event loop is blocked: a few ms."""
T = TypeVar("T")


class Line(NamedTuple):
    """A line of a file without its line ending, and the offset where the next line begins."""

    data: bytes
    end: int


class LineSplitter:
    r"""Splits a file's bytes, which arrive in parts, into lines that end in `\n` or `\r\n`.

    Only the first `bytes_max + 1` bytes of a longer line are kept, which is enough for the decoder to see that the line
    is too large and to reject it as a dead letter. So `bytes_max` must not be less than the stream's limit, because a
    raw stream would accept a shorter piece as an event.
    """

    def __init__(self, at: int, bytes_max: int) -> None:
        """`at` is the offset in the file of the first byte fed."""
        self.at = at
        self._bytes_max = bytes_max
        self._held = bytearray()

    def feed(self, part: bytes) -> list[Line]:
        """Return the lines that end in this part of a file, including blank lines."""
        *ended, rest = part.split(b"\n")
        whole_lines = []
        for piece in ended:
            self.at += len(piece) + 1
            whole_lines.append(Line(self._whole_line(piece), self.at))
        self.at += len(rest)
        self._hold(rest)
        return whole_lines

    def last(self) -> Line | None:
        """Return the file's last line if it has no line ending. Call it when no more bytes will arrive."""
        return Line(self._whole_line(b""), self.at) if self._held else None

    def _whole_line(self, piece: bytes) -> bytes:
        self._hold(piece)
        line = bytes(self._held)
        self._held.clear()
        if len(line) > self._bytes_max + 1:
            return line[: self._bytes_max + 1]
        return line.removesuffix(b"\r")

    def _hold(self, piece: bytes) -> None:
        """Keep part of an unfinished line, up to one byte over the limit: a full line may end in a CR."""
        self._held += piece[: self._bytes_max + 2 - len(self._held)]


def lines(file: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """Yield the lines of a whole file, including blank lines."""
    splitter = LineSplitter(0, bytes_max)
    while part := file.read(READ_BYTES):
        for line in splitter.feed(part):
            yield line.data
    last = splitter.last()
    if last is not None:
        yield last.data


def position_of(mark: str, kind: type[T], address: str) -> T:
    """Decode the position in a file source's mark. Raises `SourceFailed` if the mark belongs to a different kind of
    source."""
    try:
        return msgspec.json.decode(mark, type=kind)
    except msgspec.ValidationError:
        raise SourceFailed(
            f"{address}: the position stored under this name belongs to a different kind of source; rename this source"
        ) from None


async def in_thread(call: Callable[[], T]) -> T:
    """Run a file source's short blocking call in a thread.

    A cancellation waits until the call has ended, so that nothing that the call uses is closed in the meantime.
    """
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
