"""A load generator for the publishing WebSocket, which sends as much as the window of each connection allows.

It does as little work as possible, like `bench.load`. Frames are masked with zeros, which leaves the data unchanged, so
a frame is built by concatenation.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import msgspec
import uvloop

STALL_S = 10.0
HEAD_END = b"\r\n\r\n"
TEXT = 1
_MASKED = 0x80
_FINAL = 0x80


class Told(msgspec.Struct):
    """A message from the server: either the connection is open, or all messages up to a number are durable."""

    event: str
    window: int = 0
    seq: int = -1


_decode_message = msgspec.json.Decoder(Told).decode


@dataclass(frozen=True)
class Published:
    messages: int
    errors: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


class _Connection(asyncio.Protocol):
    """One connection. `acknowledged` is the number of its messages that were acknowledged."""

    def __init__(self, request: bytes, events: Iterator[bytes], until: float) -> None:
        self._request = request
        self._events = events
        self._until = until
        self._buffer = b""
        self._upgraded = False
        self._window = 0
        self._following = 0
        self.acknowledged = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not declare itself as one
        self._transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server ended the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            head, end, rest = self._buffer.partition(HEAD_END)
            if not end:
                return
            assert b" 101 " in head, head
            self._upgraded, self._buffer = True, rest
        while (frame := _frame(self._buffer)) is not None:
            content, self._buffer = frame
            self._hear(_decode_message(content))
        self._fill()

    def _hear(self, message: Told) -> None:
        assert message.event in ("open", "ack"), message
        self._window = message.window or self._window
        self.acknowledged = max(self.acknowledged, message.seq + 1)

    def _fill(self) -> None:
        """Fill the window, or finish when the time is up and everything has been acknowledged."""
        frames = []
        if time.perf_counter() < self._until:
            while self._following < self.acknowledged + self._window:
                frames.append(_message(self._following, next(self._events)))
                self._following += 1
            self._transport.write(b"".join(frames))
        elif self.acknowledged == self._following and not self.done.done():
            self.done.set_result(None)
            self._transport.close()


def _message(seq: int, events: bytes) -> bytes:
    content = b'{"seq":%d,"events":[%b]}' % (seq, events)
    size = len(content)
    length = struct.pack("!BB", _FINAL | TEXT, _MASKED | size) if size < 126 else b""
    length = length or struct.pack("!BBH", _FINAL | TEXT, _MASKED | 126, size)
    return length + b"\0\0\0\0" + content


def _frame(buffer: bytes) -> tuple[bytes, bytes] | None:
    """Return the next message from the server and the bytes that follow it."""
    if len(buffer) < 4:
        return None
    size, begin = (buffer[1], 2) if buffer[1] < 126 else (int.from_bytes(buffer[2:4]), 4)
    end = begin + size
    return (buffer[begin:end], buffer[end:]) if len(buffer) >= end else None


def run(port: int, path: str, events: Iterator[bytes], connections: int, seconds: float) -> Published:
    """Publish for `seconds` seconds over `connections` connections. Each item of `events` contains the events for one
    message, as JSON without the brackets and less than 64 KiB long. Blocks, and runs its own event loop."""
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13", "", ""]
    return uvloop.run(_run(port, "\r\n".join(lines).encode(), events, connections, seconds))


async def _run(port: int, request: bytes, events: Iterator[bytes], connections: int, seconds: float) -> Published:
    loop, began = asyncio.get_running_loop(), time.perf_counter()
    opened = [
        (await loop.create_connection(lambda: _Connection(request, events, began + seconds), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    done, stuck = await asyncio.wait([connection.done for connection in opened], timeout=seconds + STALL_S)
    errors = len(stuck) + sum(future.exception() is not None for future in done)
    return Published(sum(connection.acknowledged for connection in opened), errors, time.perf_counter() - began)
