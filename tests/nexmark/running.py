"""Queries of Nexmark on Spark, with the engine's processes killed meanwhile, compared with the reference."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from bench.nexmark_log import NexmarkLog
from bench.running import descendants
from examples.nexmark import app_for
from examples.nexmark_queries.events import LATE_AFTER, Bid
from examples.nexmark_queries.generator import Generator, Happening, shuffled
from penstock.core.columns import event_rows
from penstock.core.filters import compiled
from penstock.core.schema import KIND_EVENT, event_schema, shown
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from tests.harness import ROOT
from tests.nexmark import reference
from tests.nexmark.rows import Row, rows_of

PER_SECOND = 100
PIECE = 100
AFTER = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Play:
    """Events in the order in which they arrive, and at last one of each kind that is a minute later: with it, all
    windows that contain the others are over. Log time is separate: ten events in a second of it."""

    def __init__(self, count: int, seed: int, folder: Path) -> None:
        events = list(Generator(count, seed=seed, per_second=PER_SECOND))
        last: list[Any] = list({type(event): event for event in events}.values())
        new = [{} if isinstance(event, Bid) else {"id": 1} for event in last]
        closers = [
            msgspec.structs.replace(event, dateTime=event.dateTime + AFTER, **more)
            for event, more in zip(last, new, strict=True)
        ]
        self.events: list[Happening] = [*shuffled(events, LATE_AFTER, seed), *closers]
        self.world = reference.World(self.events)
        self._log, self._sent = NexmarkLog(folder), 0

    def send(self, until: int) -> None:
        """Append the events up to a number, and advance log time to them."""
        while self._sent < until:
            piece = self.events[self._sent : min(until, self._sent + PIECE)]
            self._log.append(piece, self._now())
            self._sent += len(piece)
        self._log.tick(self._now())

    def _now(self) -> datetime:
        return NOON + timedelta(milliseconds=100 * self._sent)

    def finish(self) -> None:
        """Send the rest; then let a minute pass."""
        self.send(len(self.events))
        self._log.tick(self._now() + AFTER)
        self._log.close()


class Results:
    """Reads the results in a data directory."""

    def __init__(self, directory: DataDirectory, names: Sequence[str]) -> None:
        self.directory, self.app = directory, app_for(*names)

    def rows(self, name: str) -> list[Row]:
        """Return the rows of the view of that name, or all events of the stream, or those that the feed lets pass."""
        if name in {view.name for view in self.app.views}:
            with closing(sqlite3.connect(self.directory.view_file(name))) as file:
                return rows_of(name, [msgspec.json.decode(data) for (data,) in file.execute("SELECT data FROM rows")])
        for feed in self.app.feeds:
            if feed.name == name:
                passes = compiled(shown(event_schema(Bid)), feed.condition, feed.select)
                batches = [passes.project(batch.filter(passes.mask(batch))) for batch in self._batches(feed.of)]
                return rows_of(name, [row for batch in batches for row in batch.to_pylist()])
        events = [row for batch in self._batches(name) for row in event_rows(batch)]
        return rows_of(name, map(msgspec.json.decode, events))

    def expected(self, name: str, world: reference.World) -> list[Row]:
        return reference.q12(self._arrivals()) if name == "q12" else reference.EXPECTED[name](world)

    def _arrivals(self) -> list[tuple[int, datetime]]:
        """Return the bidder and the arrival time of each bid in the log."""
        arrivals: list[tuple[int, datetime]] = []
        for batch in self._batches("bid"):
            columns = [batch.column(name).to_pylist() for name in ("bidder", "_ingest_time")]
            arrivals += zip(*columns, strict=True)
        return arrivals

    def _batches(self, stream: str) -> Iterator[Any]:
        """Yield the events of a stream, without ticks."""
        log = EmbeddedLog(self.directory.streams, read_only=True)
        for partition, end in log.ends(stream).items():
            for batch in log.read(stream, partition, 0, end):
                yield batch.filter([kind == KIND_EVENT for kind in batch.column("_kind").to_pylist()])
        log.close()


@contextmanager
def worker(data: Path, names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run the engine while in the block. Then kill it with -9, with Java and Spark's Python processes."""
    command = [sys.executable, "-m", "tests.nexmark.worker", str(data), *names]
    with open(data / "worker.log", "a") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield process
    finally:
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def survive(data: Path, names: Sequence[str], *, count: int, seed: int, kills: int) -> tuple[Results, reference.World]:
    """Run queries over arriving events, killed `kills` times, and once to the end."""
    data.mkdir()
    chance, play = Random(seed), Play(count, seed, DataDirectory(data).streams)
    nodes = len(app_for(*names).views) + len(app_for(*names).handlers)
    play.send(count // (kills + 2))
    for number in range(kills):
        with worker(data, names) as process:
            last = chance.randrange(nodes)
            said = [line.strip() for line in islice(process.stdout or (), last + 1)]
            assert len(said) == last + 1, (data / "worker.log").read_text()[-3_000:]
            print(f"killed after {said[-1]}")
            play.send((number + 2) * count // (kills + 2))
    play.finish()
    with worker(data, names) as process:
        lines = [line.strip() for line in process.stdout or ()]
        assert lines[-1:] == ["done"], (data / "worker.log").read_text()[-3_000:]
    return Results(DataDirectory(data), names), play.world
