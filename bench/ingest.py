"""Durable single-event POSTs per second, and NDJSON events per second, followed by the other ingestion paths
(`bench.ways`).

The baseline is a bare echo on the same server, with the same bodies from the same generator. Each event has an id and
is checked, de-duplicated and committed with fsync before the response is sent. The two are measured alternately, three
times each, and the median is used.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from statistics import median

from bench import ways
from bench.events import event
from bench.load import Result
from bench.load import run as load
from bench.report import Absent, Figure

CONNECTIONS = 256
SECONDS = 5.0
TURNS = 3
LINES = 1_000
LINE_CONNECTIONS = 8


def singles() -> Iterator[bytes]:
    while True:
        yield event()


def lines() -> Iterator[bytes]:
    while True:
        yield b"\n".join(event() for _ in range(LINES))


@contextlib.contextmanager
def server(kind: str) -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        command = [sys.executable, "-m", "bench.server", kind, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield int(process.stdout.readline())
            process.stdin.close()
            process.wait(30)


def measure(kind: str, bodies: Iterator[bytes], connections: int, content_type: str) -> Result:
    with server(kind) as port:
        path = "/v1/streams/readings"
        load("127.0.0.1", port, path, bodies, connections, 1.0, content_type=content_type)
        result = load("127.0.0.1", port, path, bodies, connections, SECONDS, content_type=content_type)
    assert result.errors == 0, f"{kind}: {result.errors} errors"
    return result


def run() -> Iterator[Figure | Absent]:
    turns = [
        (measure(kind, singles(), CONNECTIONS, "application/json") for kind in ("echo", "gateway"))
        for _ in range(TURNS)
    ]
    pairs = [tuple(turn) for turn in turns]
    echo = median(pair[0].per_second for pair in pairs)
    ours = median(pair[1].per_second for pair in pairs)
    yield Figure("ingest: durable POSTs of one event", ours, "requests/s", echo, "bare echo, same server", "80%")
    yield Figure("ingest: p99 of such a POST", median(pair[1].p99_ms for pair in pairs), "ms")
    batches = measure("gateway", lines(), LINE_CONNECTIONS, "application/x-ndjson").per_second * LINES
    echoed = measure("echo", lines(), LINE_CONNECTIONS, "application/x-ndjson").per_second * LINES
    yield Figure("ingest: NDJSON events", batches, "events/s", echoed, "bare echo of the same bodies")
    yield from ways.run()
