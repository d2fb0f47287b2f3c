"""The time from a POST to the server-sent change, at 1,000 events per second.

Each event contains an increasing number, and the view keeps the highest number for each sensor, so every change shows
which events it includes. The time is measured from when a request is due until the change has been read. The baseline
is bare Spark with the same settings, from its own rate source at the same rate, through the same aggregation, until the
rows are in a Python function, without a log, gateway, store or server. Both are measured after a minute under load,
when Java has compiled the hot code.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

import httpx
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.report import Figure
from bench.running import app_process
from penstock.analyze.session import start_session
from penstock.core.settings import Settings

RATE = 1_000
REQUESTS = 100
WARM_S = 60.0
SECONDS = 30.0
SENSORS = 50


def percentiles(times_ms: list[float]) -> tuple[float, float]:
    cuts = quantiles(times_ms, n=100)
    return cuts[49], cuts[98]


def run() -> Iterator[Figure]:
    bare50, bare99 = percentiles(measure_bare())
    ours50, ours99 = percentiles(measure_ours())
    yield Figure(
        "latency: p50, POST to change", ours50, "ms", bare50, "bare Spark, rate source to foreachBatch", "< 300 ms"
    )
    yield Figure("latency: p99, POST to change", ours99, "ms", bare99, "bare Spark, rate source to foreachBatch")


class Tally:
    """Records when each event was sent, by sensor, and how long it took until a change included it."""

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[int, float]]] = {str(sensor): [] for sensor in range(SENSORS)}
        self.times_ms: list[float] = []
        self.from_s = 0.0
        self.lock = threading.Lock()

    def seen(self, sensor: str, last: int, now: float) -> None:
        with self.lock:
            waiting = self.sent[sensor]
            while waiting and waiting[0][0] <= last:
                _, at = waiting.pop(0)
                if at >= self.from_s:
                    self.times_ms.append((now - at) * 1000)


def measure_ours() -> list[float]:
    tally, stop = Tally(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, app_process(Path(folder)) as url:
        reader = threading.Thread(target=follow, args=(url, tally, stop), daemon=True)
        reader.start()
        tally.from_s = time.perf_counter() + WARM_S
        produce(url, tally, WARM_S + SECONDS)
        time.sleep(2)
        stop.set()
    return tally.times_ms


def produce(url: str, tally: Tally, seconds: float) -> None:
    """Send `REQUESTS` requests per second on a fixed schedule. If a slow response delays the next request, the delay
    counts as part of that request's latency."""
    began, number, batch_size = time.perf_counter(), 0, RATE // REQUESTS
    with httpx.Client() as client:
        for turn in range(int(seconds * REQUESTS)):
            due = began + turn / REQUESTS
            time.sleep(max(0.0, due - time.perf_counter()))
            events = [reading(number + index) for index in range(batch_size)]
            with tally.lock:
                for event in events:
                    tally.sent[str(event["sensor"])].append((int(str(event["number"])), due))
            body = "\n".join(map(json.dumps, events))
            answer = client.post(
                f"{url}/v1/streams/readings", content=body, headers={"content-type": "application/x-ndjson"}
            )
            assert answer.json()["accepted"] == batch_size, answer.text
            number += batch_size


def reading(number: int) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    return {"reading": str(number), "sensor": str(number % SENSORS), "at": now, "value": 1.0, "number": number}


def follow(url: str, tally: Tally, stop: threading.Event) -> None:
    with httpx.stream("GET", f"{url}/v1/views/sensors/live", timeout=60) as answer:
        for line in answer.iter_lines():
            if stop.is_set():
                return
            if line.startswith("data: "):
                now = time.perf_counter()
                for row in json.loads(line[6:]).get("upserts", ()):
                    tally.seen(row["sensor"], row["last"], now)


def measure_bare() -> list[float]:
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        root = Path(folder)
        spark = start_session("bench", Settings(), logs=root / "log", warehouse=root / "warehouse")
        rows = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
        sensors = (F.col("value") % SENSORS).alias("sensor")
        frame = rows.groupBy(sensors).agg(F.count("*"), F.max("timestamp").alias("at"), F.max("value"))
        from_s = time.time() + WARM_S

        def output(batch: DataFrame, _: int) -> None:
            table = batch.toArrow()
            now = time.time()
            if now >= from_s:
                times.extend((now - at.timestamp()) * 1000 for at in table.column("at").to_pylist())

        query = frame.writeStream.outputMode("update").option("checkpointLocation", str(root / "checkpoint"))
        running = query.foreachBatch(output).start()
        time.sleep(WARM_S + SECONDS)
        running.stop()
        spark.stop()
    return times
