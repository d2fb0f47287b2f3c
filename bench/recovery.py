"""The time from kill -9 to the next output, at 1,000 events per second, for a Python worker that runs the handler and
for the engine.

The handler emits one event for each input event, with the time when the fix was sent. The time is measured from the
kill until a reader of the handler's stream gets the first event for a fix that was sent after the kill. For the last
kill of the engine, the time of each stage is taken from the log.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import httpx

from bench import fleet
from bench.report import Figure
from bench.running import app_process, command, descendants, engine_pid, python_workers

RATE = 1_000
REQUESTS = 50
VEHICLES = 1_000
WARM_S = 20.0
STEADY_S = 3.0
LIMIT_S = 90.0
WORKER_KILLS = 5
ENGINE_KILLS = 3


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        data = Path(folder)
        with app_process(data, Path(fleet.__file__)) as url, Load(url) as load:
            load.output_after(time.time())
            time.sleep(WARM_S)
            workers = [recovery(load, lambda: busiest(data)) for _ in range(WORKER_KILLS)]
            yield from figures("a Python worker", workers, "< 2 s")
            engines = [recovery(load, lambda: engine_of(data)) for _ in range(ENGINE_KILLS)]
            yield from figures("the engine", engines, "< 15 s")
            yield from stages(data, load.killed)


def figures(what: str, times_s: list[float], bar: str) -> Iterator[Figure]:
    yield Figure(f"recovery: {what} killed, median of {len(times_s)}", median(times_s), "s", bar=bar)
    yield Figure(f"recovery: {what} killed, worst", max(times_s), "s", bar=bar)


def recovery(load: Load, victim: Callable[[], int]) -> float:
    """Kill a process after a period of steady output, and return the seconds until there is output again."""
    time.sleep(STEADY_S)
    load.output_after(time.time())
    pid = victim()
    load.killed = time.time()
    os.kill(pid, signal.SIGKILL)
    return load.output_after(load.killed) - load.killed


def stages(data: Path, killed: float) -> Iterator[Figure]:
    """Yield the time from the kill to each stage of the new engine, based on the start times of its processes and on
    its log."""
    engine = engine_of(data)
    yield Figure("recovery: the engine, from the kill to its process", started_at(engine) - killed, "s")
    java = [pid for pid in descendants(engine) if command(pid).partition("\0")[0].endswith("java")]
    yield Figure("recovery: the engine, from the kill to Java", min(map(started_at, java)) - killed, "s")
    lines = (data / "log/engine.log").read_text().splitlines()
    for words, what in (("is up", "Spark's session"), (": starting", "the query's start"), (": running", "its batch")):
        line = next(line for line in reversed(lines) if line.endswith(words))
        at = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        yield Figure(f"recovery: the engine, from the kill to {what}", at - killed, "s")


def started_at(pid: int) -> float:
    """Return the time when a process started, according to the system clock, accurate to a hundredth of a second."""
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - uptime_s + ticks / os.sysconf("SC_CLK_TCK")


def engine_of(data: Path) -> int:
    pid = engine_pid(data)
    assert pid is not None, "there is no engine"
    return pid


def busiest(data: Path) -> int:
    """Return the worker that used the most processor time within half a second, which is the one that runs the
    handler."""
    before = {pid: processor_ticks(pid) for pid in python_workers(engine_of(data))}
    time.sleep(0.5)
    return max(before, key=lambda pid: processor_ticks(pid) - before[pid])


def processor_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


class Load:
    """A fleet that sends reports and a reader of the handler's output, which run for the duration of the block."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.killed = 0.0
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._sent = self._seen = 0.0
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._send, self._read)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def output_after(self, moment: float) -> float:
        """Wait for an emitted event whose fix was sent after the given time, and return the time at which it was
        read."""
        with self._news:
            assert self._news.wait_for(lambda: self._sent > moment, LIMIT_S), "no output comes"
            return self._seen

    def _send(self) -> None:
        began, batch_size = time.perf_counter(), RATE // REQUESTS
        with httpx.Client(timeout=30) as client:
            for turn in range(10**9):
                time.sleep(max(0.0, began + turn / REQUESTS - time.perf_counter()))
                if self._stop.is_set():
                    return
                fixes = [fix(turn * batch_size + index) for index in range(batch_size)]
                answer = client.post(f"{self.url}/v1/streams/fixes", json=fixes)
                assert answer.status_code == 200, answer.text

    def _read(self) -> None:
        with httpx.stream("GET", f"{self.url}/v1/streams/geofence/live", timeout=LIMIT_S) as answer:
            for line in answer.iter_lines():
                if self._stop.is_set():
                    return
                events = json.loads(line[6:]).get("events", ()) if line.startswith("data: ") else ()
                if events:
                    with self._news:
                        self._sent = max(datetime.fromisoformat(event["at"]).timestamp() for event in events)
                        self._seen = time.time()
                        self._news.notify_all()


def fix(number: int) -> dict[str, object]:
    """Return a report from a vehicle that crosses the fence every time."""
    inside = number // VEHICLES % 2
    now = datetime.now(UTC).isoformat()
    vehicle = f"vehicle-{number % VEHICLES}"
    return {"fix": str(number), "at": now, "vehicle": vehicle, "lat": 52.0 + inside, "lon": 13.0, "speed": 50.0}
