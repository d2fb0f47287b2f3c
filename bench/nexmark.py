"""Events per second through each Nexmark query, from the log to the result, one Spark query at a time.

As in the benchmark, all kinds of events count, even if a query reads only bids. There is no baseline, because figures
for other systems come from other machines.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import islice
from pathlib import Path

from pyspark.sql import SparkSession

from bench.nexmark_log import NexmarkLog, engine_for, run_each
from bench.report import Figure
from examples.nexmark import QUERIES, app_for
from examples.nexmark_queries.events import Bid
from examples.nexmark_queries.generator import Generator
from penstock.analyze.session import start_session
from penstock.app.app import App
from penstock.core.filters import compiled
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory

EVENTS = 500_000
PER_SECOND = 2_000
"""Events per second of event time, so that the run covers four minutes of event time."""
PIECE = 25_000
WARM = ("q0", "q17")
TARGET = Path(__file__).parent.parent / "examples/nexmark.py"


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        root = Path(folder)
        tell(f"{EVENTS:,} events into the log")
        fill(root / "streams", Generator(EVENTS, seed=1, per_second=PER_SECOND))
        spark = start_session("bench", Settings(), logs=root / "log", warehouse=root / "warehouse")
        try:
            for name in WARM:
                tell(f"{name}, to warm up")
                measure(spark, root, name)
            for name in QUERIES:
                tell(name)
                seconds, rows = measure(spark, root, name)
                yield Figure(f"nexmark: {name}, {rows:,} rows", EVENTS / seconds, "events/s")
        finally:
            spark.stop()


def tell(what: str) -> None:
    print(f"nexmark: {what}", file=sys.stderr, flush=True)


def fill(streams: Path, events: Generator) -> None:
    """Append the events to the log in pieces, each at the time of its first event. A final tick completes everything
    that is still waiting."""
    log, happening = NexmarkLog(streams), iter(events)
    while piece := list(islice(happening, PIECE)):
        log.append(piece, piece[0].dateTime)
    log.tick(events.at(events.events) + timedelta(minutes=1))
    log.close()


def measure(spark: SparkSession, root: Path, name: str) -> tuple[float, int]:
    """Return how long a query takes for all events, and how many rows it has."""
    app = app_for(name)
    if app.feeds:
        return measure_feed(root / "streams", app)
    directory = DataDirectory(root / "data")
    shutil.copytree(root / "streams", directory.streams)
    engine = engine_for(app, f"{TARGET}:{name}", directory, spark)
    began = time.perf_counter()
    for _ in run_each(engine):
        pass
    seconds = time.perf_counter() - began
    engine._stop(0)
    rows = count(directory, app, name)
    shutil.rmtree(directory.root)
    return seconds, rows


def count(directory: DataDirectory, app: App, name: str) -> int:
    """Return the number of rows in the view, or of events in the stream, with that name."""
    if name in {view.name for view in app.views}:
        with closing(sqlite3.connect(directory.view_file(name))) as file:
            return int(file.execute("SELECT count(*) FROM rows").fetchone()[0])
    log = EmbeddedLog(directory.streams, read_only=True)
    total = sum(log.ends(name).values())
    log.close()
    return total


def measure_feed(streams: Path, app: App) -> tuple[float, int]:
    """Measure one reader of a feed, which reads the log through the feed's filter."""
    (feed,) = app.feeds
    row_filter = compiled(shown(event_schema(Bid)), feed.condition, feed.select)
    log = EmbeddedLog(streams, read_only=True)
    began, rows = time.perf_counter(), 0
    for partition, end in log.ends(feed.of).items():
        for batch in log.read(feed.of, partition, 0, end):
            rows += row_filter.project(batch.filter(row_filter.mask(batch))).num_rows
    log.close()
    return time.perf_counter() - began, rows
