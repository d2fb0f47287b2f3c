"""Server-sent events: bytes to events, as the HTML standard parses them. Pure: no I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

RETRY_DIGITS_MAX = 18
_BOM = b"\xef\xbb\xbf"


class TooLong(Exception):
    """An event, or a line that has not ended, is larger than the parser may hold."""


class ServerEvent(NamedTuple):
    """One block of lines. `data` is None where the standard dispatches nothing: a block that has no data, and may have
    moved the id all the same. `id` is the last id seen by then; `own` says that it came with this very event.

    The data stays bytes. A browser would put a sign in place of what is no UTF-8; here that is for the decoder to say.
    """

    kind: str
    data: bytes | None
    id: str
    own: bool


class EventParser:
    """Takes bytes as they come, in whatever pieces, and gives the events that are complete. One for each connection.

    `last_id` goes on from connection to connection, so it begins with the one known; `retry_ms` is the last that the
    server sent. An event that the end of the stream cuts off is never given. Memory: `bytes_max` for the event at hand.
    """

    def __init__(self, bytes_max: int, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_ms: int | None = None
        self._bytes_max = bytes_max
        self._line: list[bytes] = []
        self._line_size = 0
        self._after_cr = False
        self._begun = False
        self._clear()

    def _clear(self) -> None:
        self._data: list[bytes] = []
        self._data_size = 0
        self._kind = ""
        self._own = False

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that end in this piece. A line ends with CR, LF or both; at CR it is not waited for the LF."""
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        lines = piece.splitlines()
        open_line = None if piece.endswith((b"\r", b"\n")) or not lines else lines.pop()
        for line in lines:
            event = self._take(line)
            if event is not None:
                yield event
        if open_line is not None:
            self._count(len(open_line))
            self._line.append(open_line)

    def _take(self, end: bytes) -> ServerEvent | None:
        line = end
        if self._line:
            line = b"".join((*self._line, end))
            self._line.clear()
        self._count(len(end))
        self._line_size = 0
        if not self._begun:
            self._begun, line = True, line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        self._field(name, value.removeprefix(b" "))
        return None

    def _count(self, size: int) -> None:
        self._line_size += size
        if self._line_size + self._data_size > self._bytes_max:
            raise TooLong

    def _field(self, name: bytes, value: bytes) -> None:
        """A field of another name, as that of a comment, which is empty, means nothing."""
        if name == b"data":
            self._data.append(value)
            self._data_size += len(value) + 1
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self.last_id, self._own = value.decode(errors="replace"), True
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:RETRY_DIGITS_MAX])

    def _dispatch(self) -> ServerEvent | None:
        data = b"\n".join(self._data) if self._data else None
        event = ServerEvent(self._kind or "message", data, self.last_id, self._own)
        idle = data is None and not self._own
        self._clear()
        return None if idle else event
