"""An event stream, parsed by the rules of the HTML standard, from pieces of any size."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

END_OF_LINE = re.compile(r"\r\n|\n|\r")


class SseEvent(NamedTuple):
    """One event: its `id` is that of the last `id` field up to here."""

    type: str
    data: str
    id: str


class SseParser:
    """Takes bytes, gives events. `last_id` and `retry_ms` are what the stream has said so far."""

    def __init__(self, event_bytes_max: int = 64 * 1024 * 1024) -> None:
        """`ValueError` if an event has more characters than `event_bytes_max`."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._most = event_bytes_max
        self._size = 0
        self._begun = False
        self._after_cr = False
        self._parts: list[str] = []
        self._type = ""
        self._data: list[str] = []
        self._id = ""
        self.last_id = ""
        self.retry_ms: int | None = None

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """The events that are whole with these bytes."""
        for line in self._lines(self._decoder.decode(piece)):
            if line:
                self._take(line)
            elif (event := self._end()) is not None:
                yield event

    def _lines(self, text: str) -> Iterator[str]:
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix("\ufeff")
        if text and self._after_cr:  # its line has ended already: an event is not kept waiting for the next byte
            text = text.removeprefix("\n")
            self._after_cr = False
        start = 0
        for end in END_OF_LINE.finditer(text):
            yield "".join([*self._parts, text[start : end.start()]])
            self._parts.clear()
            start = end.end()
        self._after_cr = self._after_cr or text.endswith("\r")
        if start < len(text):
            self._parts.append(text[start:])
        self._size += len(text)
        if self._size > self._most:
            raise ValueError(f"an event has more than {self._most} characters")

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value[:18])

    def _end(self) -> SseEvent | None:
        self._size = 0
        self.last_id = self._id
        kind, data = self._type, self._data
        self._type, self._data = "", []
        return SseEvent(kind or "message", "\n".join(data), self._id) if data else None
