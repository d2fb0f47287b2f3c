"""Many subscribers in one process, as cheap as possible: `python -m bench.subscribers JSON`.

The subscribers are raw sockets. Most are read a few times per second, and their frames are only counted. Some are
watched all the time, and the age of their frames is computed from the time that they contain. For each line on standard
input, the process prints a report of the deliveries since the previous line. It stops when standard input is closed.
"""

from __future__ import annotations

import base64
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

SWEEP_S = 0.02
WATCHED = 50
BETWEEN = 50
"""The number of sockets that are read in a sweep before the watched sockets are read again."""
PIECE = 256 * 1024
HEAD = (
    b"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % base64.b64encode(bytes(16))
)


class Wish(msgspec.Struct):
    """The port, the number of connections, and the messages or the paths for server-sent events that they send, which
    are assigned to the connections in turn."""

    port: int
    count: int
    says: list[str]


class Report(msgspec.Struct):
    """The number of messages since the last report and of their bytes, the sorted ages of the watched messages in ms,
    the number of watched messages other than changes, the elapsed seconds, and the processor seconds used by this
    process."""

    messages: int
    bytes: int
    ages_ms: list[float]
    others: int
    elapsed_s: float
    busy_s: float

    def age(self, share: float) -> float:
        return self.ages_ms[min(len(self.ages_ms) - 1, int(len(self.ages_ms) * share))] if self.ages_ms else 0.0


class Subscriber:
    """One connection. Counts complete frames, and keeps the incomplete rest of the received data."""

    def __init__(self, port: int, says: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        is_path = says.startswith("/")
        self.socket.sendall(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % says.encode() if is_path else HEAD)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(4096)
        assert head.startswith(b"HTTP/1.1 200" if is_path else b"HTTP/1.1 101"), head
        self._rest = head.partition(b"\r\n\r\n")[2]
        self._whole = self._events if is_path else self._payloads
        if not is_path:
            self.socket.sendall(frame(says.encode()))
        self.socket.setblocking(False)

    def frames(self) -> tuple[int, Iterator[bytes]]:
        """Return the number of bytes received and the payloads of the complete frames."""
        try:
            got = self.socket.recv(PIECE)
        except BlockingIOError:
            return 0, iter(())
        assert got, "the server closed a connection"
        return len(got), self._whole(self._rest + got)

    def _events(self, data: bytes) -> Iterator[bytes]:
        """Return the server-sent events, without the chunk sizes between them."""
        *whole, self._rest = data.split(b"\n\n")
        return (event for event in whole if b"data: " in event)

    def _payloads(self, data: bytes) -> Iterator[bytes]:
        at, end = 0, len(data)
        while end - at >= 2:
            size, begin = data[at + 1], at + 2
            if size == 126:
                size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, begin = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if begin + size > end:
                break
            if data[at] & 0x0F == 9:
                self.socket.sendall(frame(data[begin : begin + size], 0x8A))
            else:
                yield data[begin : begin + size]
            at = begin + size
        self._rest = data[at:]


def frame(data: bytes, opcode: int = 0x81) -> bytes:
    """Return a client frame. A mask of zeros leaves the data unchanged."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    return bytes([opcode]) + size + bytes(4) + data


class Crowd:
    """All subscribers for one `Wish`."""

    def __init__(self, wish: Wish) -> None:
        self._forget()
        self._all: list[Subscriber] = []
        for place in range(wish.count):
            self._all.append(Subscriber(wish.port, wish.says[place % len(wish.says)]))
            if place % 250 == 0:  # by then the first ones have received a ping
                for earlier in self._all:
                    self._count(earlier)
        self._watched = {subscriber.socket.fileno(): subscriber for subscriber in self._all[:WATCHED]}
        self._poll = select.epoll()
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        for number in self._watched:
            self._poll.register(number, select.EPOLLIN)
        self._forget()

    def _forget(self) -> None:
        self._report = Report(0, 0, [], 0, time.monotonic(), time.process_time())

    def run(self) -> None:
        sweep = time.monotonic()
        while True:
            if not self._look(max(0.0, sweep - time.monotonic())):
                return
            if time.monotonic() >= sweep:
                sweep = time.monotonic() + SWEEP_S
                for index in range(WATCHED, len(self._all), BETWEEN):
                    for subscriber in self._all[index : index + BETWEEN]:
                        self._count(subscriber)
                    self._look(0)

    def _look(self, timeout_s: float) -> bool:
        """Read from the watched subscribers; False at the end of standard input."""
        for number, _ in self._poll.poll(timeout_s):
            if number != sys.stdin.fileno():
                self._watch(self._watched[number])
            elif not os.read(sys.stdin.fileno(), 1):
                return False
            else:
                self._tell()
        return True

    def _count(self, subscriber: Subscriber) -> None:
        size, payloads = subscriber.frames()
        self._report.bytes += size
        if size:
            self._report.messages += sum(1 for _ in payloads)

    def _watch(self, subscriber: Subscriber) -> None:
        size, payloads = subscriber.frames()
        now = time.monotonic_ns()
        self._report.bytes += size
        for payload in payloads:
            self._report.messages += 1
            times = payload.split(b'"at_ns":')[1:]
            if len(times) == 1 and b"change" in payload[:64]:
                self._report.ages_ms.append((now - int(times[0].partition(b",")[0])) / 1e6)
            else:
                self._report.others += 1

    def _tell(self) -> None:
        report = self._report
        report.elapsed_s, report.busy_s = time.monotonic() - report.elapsed_s, time.process_time() - report.busy_s
        report.ages_ms.sort()
        print(msgspec.json.encode(report).decode(), flush=True)
        self._forget()


class Running:
    """A child process that runs subscribers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def report(self) -> Report:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b".")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Report)


@contextmanager
def subscribing(wish: Wish) -> Iterator[Running]:
    command = [sys.executable, "-m", "bench.subscribers", msgspec.json.encode(wish).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        running = Running(process)
        running.report()  # all are connected
        yield running
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    allow_many_files()
    Crowd(msgspec.json.decode(sys.argv[1], type=Wish)).run()
