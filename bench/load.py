"""A closed-loop HTTP/1.1 load generator: each connection sends its next request after it has received the last
response.

It is faster than the server it measures, because it uses no HTTP library, one protocol object per connection, and a
histogram instead of a list of times. Run it in a separate process; otherwise it measures itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import uvloop

BUCKET_MS = 0.02
BUCKETS = 100_000  # up to 2 s; anything slower counts as 2 s
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "
STALL_S = 10.0


@dataclass(frozen=True)
class Result:
    """The result of one run. `errors` is the number of responses other than 2xx and of broken connections."""

    requests: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


@dataclass
class _Tally:
    requests: int = 0
    errors: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, elapsed_s: float) -> None:
        self.requests += 1
        self.histogram[min(int(elapsed_s * 1000 / BUCKET_MS), BUCKETS - 1)] += 1

    def percentile_ms(self, share: float) -> float:
        left = self.requests * share
        for bucket, count in enumerate(self.histogram):
            left -= count
            if left < 0:
                return (bucket + 0.5) * BUCKET_MS
        return 0.0


class _Connection(asyncio.Protocol):
    """One keep-alive connection. There are no chunked responses and no pipelining, so a response is a head followed by
    `content-length` bytes."""

    def __init__(self, head: bytes, bodies: Iterator[bytes], tally: _Tally, until: float) -> None:
        self._head = head
        self._bodies = bodies
        self._tally = tally
        self._until = until
        self._buffer = b""
        self._sent = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not declare itself as one
        self._send(time.perf_counter())

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        head_end = buffer.find(HEAD_END)
        if head_end < 0 or len(buffer) < head_end + len(HEAD_END) + _content_length(buffer, head_end):
            self._buffer = buffer
            return
        self._buffer = b""
        now = time.perf_counter()
        self._tally.add(now - self._sent)
        if not buffer.startswith(b"HTTP/1.1 2"):
            self._tally.errors += 1
        self._send(now)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._tally.errors += 1
            self.done.set_result(None)

    def _send(self, now: float) -> None:
        body = next(self._bodies, None) if now < self._until else None
        if body is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent = now
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))


def _content_length(buffer: bytes, head_end: int) -> int:
    start = buffer.lower().find(LENGTH, 0, head_end)
    if start < 0:
        return 0
    start += len(LENGTH)
    return int(buffer[start : buffer.find(b"\r", start)])


def run(
    host: str,
    port: int,
    path: str,
    bodies: Iterator[bytes],
    connections: int,
    seconds: float,
    content_type: str = "application/json",
) -> Result:
    """POST bodies over `connections` connections for `seconds` seconds, or until there are no more bodies. Blocks, and
    runs its own event loop."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}:{port}", f"Content-Type: {content_type}", "Content-Length: "]
    head = "\r\n".join(lines).encode()
    return uvloop.run(_run(host, port, head, bodies, connections, seconds))


async def _run(host: str, port: int, head: bytes, bodies: Iterator[bytes], connections: int, seconds: float) -> Result:
    loop = asyncio.get_running_loop()
    tally = _Tally()
    began = time.perf_counter()
    opened = [
        await loop.create_connection(lambda: _Connection(head, bodies, tally, began + seconds), host, port)
        for _ in range(connections)
    ]
    waits = [connection.done for _, connection in opened]
    _, stuck = await asyncio.wait(waits, timeout=seconds + STALL_S)
    tally.errors += len(stuck)
    elapsed = time.perf_counter() - began
    return Result(tally.requests, tally.errors, elapsed, tally.percentile_ms(0.5), tally.percentile_ms(0.99))
