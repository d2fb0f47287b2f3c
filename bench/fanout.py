"""One view with a thousand subscribers: deliveries per second, their age, memory, and the effect of a subscriber that
stops reading.

The baseline is a bare broadcast of the same bytes at the same rate, with the same server and protocol. The subscribers
are raw sockets in a separate process. A third process writes the changes to the file that the gateway follows. The age
of a delivery is measured from just before its change is committed, or, for the bare server, from just before it is
sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from bench.changes import CITIES, VIEW, city
from bench.report import Absent, Figure
from bench.subscribers import HEAD, Report, Running, Wish, allow_many_files, frame, subscribing

SUBSCRIBERS = 1_000
PER_SECOND = 1_000.0
CALM_PER_SECOND = 300.0
"""A rate that both servers can sustain, so that the age of a delivery is meaningful."""
SECONDS = 8.0
WARM_S = 2.0
DEAF_IDS = 60
IDLE = 5_000
MANY = str(IDLE + 100)
ENVIRON = {"PENSTOCK_CONNECTIONS_MAX": MANY, "PENSTOCK_SOCKETS_MAX": MANY, "PENSTOCK_SOCKETS_PER_ADDRESS_MAX": MANY}


def subscription(number: int) -> str:
    said = {"op": "subscribe", "id": "1", "view": VIEW, "since": "latest", "where": f"city = '{city(number)}'"}
    return json.dumps(said)


def path(number: int) -> str:
    return f"/v1/views/{VIEW}/live?" + urlencode(
        {"since": "latest", "where": f"city = '{city(number)}'"}, quote_via=quote
    )


SAYS = [subscription(number) for number in range(CITIES)]
PATHS = [path(number) for number in range(CITIES)]


class Child:
    """A child process that responds to each line of input with a line of output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a process of the benchmark ended"
        return line.strip()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    @property
    def busy_s(self) -> float:
        """The processor time that the process has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_kib(self) -> float:
        kib = Path(f"/proc/{self.pid}/status").read_text().split("VmRSS:")[1].split()[0]
        return float(kib)


@contextlib.contextmanager
def child(*command: str) -> Iterator[Child]:
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRON,
    ) as process:
        yield Child(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


@dataclass
class Side:
    """One of the two servers, with the process that makes its changes and the process of its subscribers."""

    server: Child
    maker: Child
    port: int

    def measure(self, crowd: Running, per_second: float, seconds: float = SECONDS) -> Measured:
        """Make changes, and return a report of the deliveries after the warm-up."""
        self.maker.say(f"{per_second} {WARM_S + seconds + 1}")
        time.sleep(WARM_S)
        crowd.report()
        busy = self.server.busy_s
        time.sleep(seconds)
        report, busy = crowd.report(), self.server.busy_s - busy
        made_per_second = float(self.maker.read())
        time.sleep(0.5)
        return Measured(report, busy, made_per_second)


@dataclass(frozen=True)
class Measured:
    report: Report
    busy_s: float
    made_per_second: float

    @property
    def per_second(self) -> float:
        return self.report.messages / self.report.elapsed_s

    @property
    def each_us(self) -> float:
        """The server's processor time for one delivery."""
        return self.busy_s * 1e6 / max(1, self.report.messages)


@contextlib.contextmanager
def side(kind: str) -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(child("bench.broadcast", kind, folder))
        port = int(server.read())
        maker = server
        if kind == "gateway":
            maker = stack.enter_context(child("bench.changes", folder))
            maker.read()
            time.sleep(1.0)
        yield Side(server, maker, port)


class Deaf:
    """A client that subscribes to everything under many ids and reads nothing. After a second, the kernel's buffers for
    it are full."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(HEAD)
        self.socket.recv(4096)
        for number in range(DEAF_IDS):
            said = {"op": "subscribe", "id": str(number), "view": VIEW, "since": "latest"}
            self.socket.sendall(frame(json.dumps(said).encode()))

    @property
    def queued_bytes(self) -> int:
        """The number of bytes waiting for this client in the kernel on the server's side."""
        port, own = (f":{address[1]:04X}" for address in (self.socket.getpeername(), self.socket.getsockname()))
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = line.split()
            if local.endswith(port) and remote.endswith(own):
                return int(queues.partition(":")[0], 16)
        raise AssertionError("the subscriber that reads nothing was disconnected too early")


def beside_one_that_is_deaf(ours: Side, hearers: Running) -> tuple[Measured, int]:
    """Measure the deliveries while one subscriber reads nothing. Also return the number of bytes that are waiting for
    it. This number is compared before and after, to prove that the server could not send it anything."""
    deaf = Deaf(ours.port)
    with deaf.socket:
        ours.measure(hearers, CALM_PER_SECOND, WARM_S)
        full = deaf.queued_bytes
        beside = ours.measure(hearers, CALM_PER_SECOND)
        assert deaf.queued_bytes == full > 0, "the subscriber that reads nothing was not blocked"
    return beside, full


def crowd(port: int, count: int = SUBSCRIBERS, says: list[str] = SAYS) -> contextlib.AbstractContextManager[Running]:
    return subscribing(Wish(port, count, says))


def run() -> Iterator[Figure | Absent]:
    allow_many_files()
    with side("bare") as bare, crowd(bare.port) as hearers:
        full = bare.measure(hearers, PER_SECOND)
        calm = bare.measure(hearers, CALM_PER_SECOND)
    with side("gateway") as ours:
        before = ours.server.resident_kib
        with crowd(ours.port) as hearers:
            each_kib = (ours.server.resident_kib - before) / SUBSCRIBERS
            yield from _busy(ours.measure(hearers, PER_SECOND), full)
            alone = ours.measure(hearers, CALM_PER_SECOND)
            yield from _ages(alone, calm)
            beside, queued = beside_one_that_is_deaf(ours, hearers)
            yield Figure(
                "fanout: the same p99, beside one that reads nothing",
                beside.report.age(0.99),
                "ms",
                alone.report.age(0.99),
                "without it",
                "the same",
            )
            yield Figure("fanout: what waits for that one in the kernel", queued / 1024, "KiB")
        yield Figure("fanout: memory for a subscriber", each_kib, "KiB")
    yield from _by_events()
    yield from _idle()


def _by_events() -> Iterator[Figure]:
    """Measure the same with server-sent events."""
    measured = []
    for kind in ("bare", "gateway"):
        with side(kind) as server, crowd(server.port, SUBSCRIBERS, PATHS) as hearers:
            measured.append(server.measure(hearers, PER_SECOND))
    bare, ours = measured
    name, against = "fanout: the same by server-sent events", "bare, same bytes"
    yield Figure(f"{name}, deliveries", ours.per_second, "deliveries/s", bare.per_second, against)
    yield Figure(f"{name}, processor time", ours.each_us, "us", bare.each_us, against)


def _busy(ours: Measured, bare: Measured) -> Iterator[Figure]:
    name, against = f"fanout: {SUBSCRIBERS:,} subscribers, {CITIES} filters", "bare broadcast, same bytes"
    yield Figure(f"{name}, deliveries", ours.per_second, "deliveries/s", bare.per_second, against, "70%")
    yield Figure("fanout: a delivery, processor time of the server", ours.each_us, "us", bare.each_us, against)
    yield Figure("fanout: changes made meanwhile", ours.made_per_second, "changes/s", bare.made_per_second, against)
    yield Figure("fanout: marks other than changes meanwhile, of 50", ours.report.others, "messages")
    share, base = (measured.report.busy_s / measured.report.elapsed_s * 100 for measured in (ours, bare))
    yield Figure("fanout: a core's time that the subscribers' process took", share, "%", base, against)


def _ages(ours: Measured, bare: Measured) -> Iterator[Figure]:
    against = "bare broadcast, same bytes"
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        yield Figure(
            f"fanout: {name} from change to receipt, {CALM_PER_SECOND:.0f} changes/s",
            ours.report.age(share),
            "ms",
            bare.report.age(share),
            against,
        )
    yield Figure("fanout: deliveries then", ours.per_second, "deliveries/s", bare.per_second, against)


def _idle() -> Iterator[Figure]:
    """Measure the cost of connections that receive nothing for a while."""
    with side("gateway") as ours:
        before = ours.server.resident_kib
        with crowd(ours.port, IDLE):
            time.sleep(2.0)
            connection_kib = (ours.server.resident_kib - before) / IDLE
            busy = ours.server.busy_s
            time.sleep(5.0)
            share = (ours.server.busy_s - busy) / 5.0 * 100
        yield Figure(f"fanout: {IDLE:,} idle connections, memory for one", connection_kib, "KiB")
        yield Figure("fanout: the same, processor", share, "% of a core")
