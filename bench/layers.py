"""The time from a POST to the change in a view that is built on other views, for chains of derived views and for a
diamond.

A view has 10,000 rows. Ten times a second, a request updates 100 of them. All events in a request contain the request's
number, which increases, so in a change to any view above, the highest number shows which requests are included. The
time is measured from when a request is due until the change has been read. The baseline is the same app with only the
view of the stream, measured first in the same run. The target is (depth + 1) times its p50; the diamond's depth is 2.
Shapes with 100,000 rows have no target and are measured for a fifth of the time. By default each shape is measured for
five minutes; set `BENCH_SECONDS` to a shorter time.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx

from bench.latency import percentiles
from bench.report import Figure
from bench.running import app_process

APP = Path(__file__).parent / "layered.py"
ROWS, MANY_ROWS = 10_000, 100_000
TURNS_A_SECOND = 10
ROWS_A_TURN = 100
WARM_S = 45.0
SECONDS = float(os.environ.get("BENCH_SECONDS", "300"))
SHAPES = {"1": ("layer1", 1), "2": ("layer2", 2), "4": ("layer4", 4), "diamond": ("top", 2)}


def run() -> Iterator[Figure]:
    many = {shape: SHAPES[shape] for shape in ("1", "4")}
    for rows, shapes, seconds in ((ROWS, SHAPES, SECONDS), (MANY_ROWS, many, SECONDS / 5)):
        single, _ = percentiles(measure("0", "items", rows, seconds))
        yield Figure(f"layers: a single view, {rows:,} rows, p50", single, "ms")
        for shape, (top, depth) in shapes.items():
            p50, p99 = percentiles(measure(shape, top, rows, seconds))
            name = "diamond" if shape == "diamond" else f"depth {depth}"
            bar = f"{depth + 1} times" if rows == ROWS else ""
            yield Figure(f"layers: {name}, {rows:,} rows, p50", p50, "ms", single, "a single view, p50", bar)
            yield Figure(f"layers: {name}, {rows:,} rows, p99", p99, "ms", single, "a single view, p50")


class Seen:
    """Records when each request was due, and how long it took before a change included it."""

    def __init__(self) -> None:
        self.due: deque[tuple[int, float]] = deque()
        self.times_ms: list[float] = []
        self.from_s = float("inf")

    def change(self, number: int, now: float) -> None:
        while self.due and self.due[0][0] <= number:
            _, due = self.due.popleft()
            if due >= self.from_s:
                self.times_ms.append((now - due) * 1000)


def measure(shape: str, top: str, rows: int, seconds: float) -> list[float]:
    """Return, for each request, the time in milliseconds until the change in the view `top`."""
    seen = Seen()
    os.environ["BENCH_SHAPE"] = shape
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, app_process(Path(folder), APP) as url:
        fill(url, rows)
        reader = threading.Thread(target=follow, args=(f"{url}/v1/views/{top}/live", seen), daemon=True)
        reader.start()
        seen.from_s = time.perf_counter() + WARM_S
        produce(url, rows, seen, WARM_S + seconds)
        deadline = time.perf_counter() + 60
        while seen.due and time.perf_counter() < deadline:
            time.sleep(0.05)
        assert not seen.due, f"{len(seen.due)} requests never reached {top}"
    return seen.times_ms


def fill(url: str, rows: int) -> None:
    with httpx.Client(timeout=60) as client:
        for first in range(0, rows, 5_000):
            send(client, url, range(first, min(rows, first + 5_000)), 0)


def produce(url: str, rows: int, seen: Seen, seconds: float) -> None:
    began = time.perf_counter()
    with httpx.Client(timeout=60) as client:
        for turn in range(int(seconds * TURNS_A_SECOND)):
            due = began + turn / TURNS_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            seen.due.append((turn + 1, due))
            send(client, url, [(turn * ROWS_A_TURN + index) % rows for index in range(ROWS_A_TURN)], turn + 1)


def send(client: httpx.Client, url: str, items: Iterator[int] | range | list[int], number: int) -> None:
    body = "\n".join(json.dumps({"item": f"{item:06d}", "number": number}) for item in items)
    answer = client.post(f"{url}/v1/streams/updates", content=body, headers={"content-type": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text


def follow(address: str, seen: Seen) -> None:
    with httpx.stream("GET", address, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                now = time.perf_counter()
                rows = json.loads(line[6:]).get("upserts", ())
                if rows:
                    seen.change(max(row["number"] for row in rows), now)


def main() -> None:
    """Measure a single shape during development: `python -m bench.layers SHAPE ROWS`."""
    import sys

    shape, rows = sys.argv[1], int(sys.argv[2])
    times = measure(shape, SHAPES[shape][0] if shape in SHAPES else "items", rows, SECONDS)
    print(f"{shape}: p50 {median(times):.0f} ms, p99 {percentiles(times)[1]:.0f} ms, {len(times)} requests")


if __name__ == "__main__":
    main()
