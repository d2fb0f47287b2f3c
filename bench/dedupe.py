"""The cost of remembering ten million event ids: memory, disk space and startup time.

Each step runs in a separate process. The memory figure is the difference from a process that handles the same events
but remembers no ids; the baseline is a plain Python set that contains the same ids. For a restart, the figure is the
peak memory of the process. The disk figure is the size of an event that contains only its id, which is stored twice: as
a field, and as the id for de-duplication.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.report import Figure
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import Event, event_schema
from penstock.queue import EmbeddedLog

IDS = 10_000_000
PIECE = 20_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1024 * 1024


class Seen(Event, id="seen"):
    seen: str


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        empty, _ = _asked("fill", folder, "0")
        bare, _ = _asked("set", folder, "0")
        for path in Path(folder).iterdir():
            path.unlink()
        full, filled_s = _asked("fill", folder, str(IDS))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        started, start_s = _asked("start", folder, str(IDS))
    yield Figure("dedupe: memory for an id", (full - empty) / IDS, "bytes", bare / IDS, "a bare Python set")
    yield Figure("dedupe: the most while it starts again", (started - empty) / IDS, "bytes")
    yield Figure("dedupe: disk for an id", size / IDS, "bytes")
    yield Figure("dedupe: start with 10,000,000 ids", start_s, "s")
    yield Figure("dedupe: events taken while they are remembered", IDS / filled_s, "events/s")


def _asked(*arguments: str) -> tuple[float, float]:
    """Run a step in a new process, and return the memory and time that it reports."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.dedupe", *arguments], check=True, capture_output=True, text=True
    )
    memory, seconds = done.stdout.split()
    return float(memory), float(seconds)


def _ids(number: int) -> list[str]:
    return [f"reading-{number * PIECE + row}" for row in range(PIECE)]


def _memory(what: str) -> int:
    """Return a memory figure for this process: `VmRSS` for the current size, or `VmHWM` for the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what}")


def main(action: str, folder: str, remembered: str) -> None:
    began, before = time.perf_counter(), _memory("VmRSS")
    if action == "set":
        held = {event_id for number in range(IDS // PIECE) for event_id in _ids(number)}
        print(_memory("VmRSS") - before, len(held))
        return
    log = EmbeddedLog(Path(folder))
    log.declare(StreamSpec("seen", event_schema(Seen), 1, int(remembered)))
    if action == "fill":
        for number in range(IDS // PIECE):
            ids = _ids(number)
            events = [Seen(seen=event_id) for event_id in ids]
            at = NOW + timedelta(seconds=number)
            log.admit("seen", {0: to_batch(Seen, events, ids=ids, keys=[None] * PIECE, now=at)})
    seconds = time.perf_counter() - began
    memory = _memory("VmHWM" if action == "start" else "VmRSS")
    log.close()
    print(memory, seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
