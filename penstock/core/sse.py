"""Parser for server-sent events, as defined by the HTML standard. Does not use I/O or a clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

RETRY_DIGITS_MAX = 18
_BOM = b"\xef\xbb\xbf"


class TooLong(Exception):
    """Raised when an event or an unfinished line is larger than the parser's limit. The message contains the limit."""


class SseEvent(NamedTuple):
    """One server-sent event, a block of lines. `data` is None for a block without data. The standard does not dispatch
    such a block, but it can still change the id. `id` is the last id seen so far; `own` is true if this block set it.

    `data` is not decoded: a browser would replace invalid UTF-8, but an event decoder might reject it.
    """

    type: str
    data: bytes | None
    id: str
    own: bool


class SseParser:
    """Accepts bytes in pieces of any size, and yields complete events. Use a new parser for each connection.

    `last_id` is the id after the last complete block. Ids remain valid across connections, so pass the last known id to
    the next parser. `retry_ms` is the last retry time that the server sent. An event cut off by the end of the stream
    is never yielded. Uses at most `bytes_max` of memory for the current event.
    """

    def __init__(self, bytes_max: int, last_id: str = "") -> None:
        self.last_id = self._id = last_id
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
        self._type = ""
        self._own = False

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """Yield the server-sent events that end in this piece. A line ends with CR, LF or both. After a CR, the parser
        does not wait for an LF."""
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

    def _take(self, end: bytes) -> SseEvent | None:
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
            raise TooLong(f"an event is larger than {self._bytes_max} bytes")

    def _field(self, name: bytes, value: bytes) -> None:
        """Handle a field of a server-sent event. Unknown fields are ignored, and so are comments, whose name is
        empty."""
        if name == b"data":
            self._data.append(value)
            self._data_size += len(value) + 1
        elif name == b"event":
            self._type = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id, self._own = value.decode(errors="replace"), True
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:RETRY_DIGITS_MAX])

    def _dispatch(self) -> SseEvent | None:
        data = b"\n".join(self._data) if self._data else None
        event = SseEvent(self._type or "message", data, self._id, self._own)
        idle = data is None and not self._own
        self.last_id = self._id
        self._clear()
        return None if idle else event
