"""What the sources that read files share: lines under a bound, and work in a thread that is never left halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, TypeVar

READ_BYTES = 64 * 1024
"""What is read at a time. Its lines are put in one go, so it also says how long the event loop is held: a few ms."""
T = TypeVar("T")


class Line(NamedTuple):
    """A line without its end, and the byte at which the next one begins."""

    data: bytes
    end: int


class LineSplitter:
    r"""Lines that end in `\n` or `\r\n`, from bytes that come in parts.

    Of a line with more than `bytes_max` the first `bytes_max + 1` are kept, however long it is: enough for the decoder
    to see that it is too large, and to refuse it as a dead letter. So `bytes_max` is what the intake says, no less: a
    shorter piece would be taken for an event of a raw stream.
    """

    def __init__(self, at: int, bytes_max: int) -> None:
        """`at` is the byte of the file that comes first."""
        self.at = at
        self._bytes_max = bytes_max
        self._held = bytearray()

    def feed(self, part: bytes) -> list[Line]:
        """The lines that this part ends, blank ones too."""
        *ended, rest = part.split(b"\n")
        found = []
        for piece in ended:
            self.at += len(piece) + 1
            found.append(Line(self._whole(piece), self.at))
        self.at += len(rest)
        self._hold(rest)
        return found

    def last(self) -> Line | None:
        """What stands after the last line end, once it is known that no more comes."""
        return Line(self._whole(b""), self.at) if self._held else None

    def _whole(self, piece: bytes) -> bytes:
        self._hold(piece)
        line = bytes(self._held)
        self._held.clear()
        if len(line) > self._bytes_max + 1:
            return line[: self._bytes_max + 1]
        return line.removesuffix(b"\r")

    def _hold(self, piece: bytes) -> None:
        """One byte more than is kept: a line of the largest size may end in a carriage return."""
        self._held += piece[: self._bytes_max + 2 - len(self._held)]


def lines(file: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """The lines of a whole file, blank ones too."""
    splitter = LineSplitter(0, bytes_max)
    while part := file.read(READ_BYTES):
        for line in splitter.feed(part):
            yield line.data
    last = splitter.last()
    if last is not None:
        yield last.data


async def in_thread(call: Callable[[], T]) -> T:
    """Run a short blocking call in a thread. A cancellation waits for its end, so that nothing it uses is closed under
    it."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
