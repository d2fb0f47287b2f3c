"""A data directory on which one file after the other is run as the engine does, on the Spark session of the tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from penstock.app.loading import load
from penstock.core.columns import partition_of, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory, take
from penstock.runtime.embedded.storage import EmbeddedStorage, open_storage
from penstock.runtime.engine import Engine
from penstock.runtime.rebuild import Rebuild, choose
from penstock.runtime.views import view_spec
from penstock.store.reader import ViewReader
from tests.harness import edited
from tests.runtime import meters

FIRST = Path(meters.__file__)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINIMUM = [("max(watts) AS watts", "min(watts) AS watts")]
PARTITIONS = 2
METERS = 5


def changed(folder: Path, edits: Sequence[tuple[str, str]], name: str = "second.py") -> Path:
    """Write the app's file with other code."""
    return edited(FIRST, folder / name, edits)


def reading(number: int, *, at: float | None = None) -> meters.Reading:
    """Return reading N, which is of meter N % 5, and comes N seconds after noon."""
    time = NOON + timedelta(seconds=number if at is None else at)
    return meters.Reading(reading=str(number), at=time, meter=f"m{number % METERS}", watts=1 + number * 37 % 101)


def readings(first: int, count: int) -> list[meters.Reading]:
    return [reading(number) for number in range(first, first + count)]


class Site:
    """One data directory."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self.spark, self.directory = spark, DataDirectory(root)
        self.settings = Settings(**{"partitions": PARTITIONS, "disk_reserve_bytes": 0, **settings})
        self.directory.make()
        with self.log() as log:
            self._numbers = itertools.count(sum(log.ends("readings").values()))

    @contextmanager
    def log(self) -> Iterator[EmbeddedLog]:
        log = EmbeddedLog(self.directory.streams)
        log.declare(StreamSpec("readings", event_schema(meters.Reading), PARTITIONS))
        try:
            yield log
        finally:
            log.close()

    def send(self, events: Sequence[meters.Reading], came: float | None = None) -> None:
        """Append events in one commit for each partition, at a log time in seconds after noon, by default that of the
        newest of them."""
        now = max(event.at for event in events) if came is None else NOON + timedelta(seconds=came)
        with self.log() as log:
            for number in range(PARTITIONS):
                mine = [event for event in events if partition_of(event.meter, PARTITIONS) == number]
                if mine:
                    ids, keys = [event.reading for event in mine], [event.meter for event in mine]
                    batch = to_batch(meters.Reading, mine, ids=ids, keys=keys, now=now)
                    log.append("readings", number, batch, producer="test", sequence=next(self._numbers))

    @contextmanager
    def engine(self, target: Path, *, clean: bool = True, view: str = "peak") -> Iterator[Engine]:
        """Run the engine of an app with one view, until it has read everything."""
        app = load(str(target)).app
        owned = take(self.directory, app.name)
        engine = Engine(app, str(target), EmbeddedStorage(self.directory), self.settings, owned.epoch)
        engine.spark = self.spark
        try:
            (node,) = (query for query in app.queries if query.name == view)
            engine._start(node, clean)
            runner = engine.runners[node.name]
            assert runner.error is None, runner.error
            assert runner.query is not None
            assert runner.query.query is not None
            runner.query.query.processAllAvailable()
            yield engine
        finally:
            engine._stop(1)
            os.close(*owned.inherit)

    def run(self, target: Path, *, clean: bool = True, view: str = "peak") -> None:
        with self.engine(target, clean=clean, view=view):
            pass

    def rebuild(self, target: Path, *views: str, kept: bool = False) -> list[str]:
        """Prepare some views; returns the messages printed."""
        said: list[str] = []
        loaded = load(str(target))
        rebuild = Rebuild(
            loaded, str(target), open_storage(self.directory.root), self.settings, choose(loaded.app, views, ())
        )
        rebuild._spark = self.spark
        try:
            rebuild.prepare(said.append, lambda _: None, kept=kept)
        finally:
            rebuild.log.close()
        return said

    def reader(self, target: Path, view: str) -> tuple[int, int, list[dict[str, Any]]]:
        """Return generation, version and rows of a view, as the gateway has them."""
        (declaration,) = (declaration for declaration in load(str(target)).app.views if declaration.name == view)
        reader = ViewReader(self.directory.view_file(view), view_spec(declaration, self.settings))
        try:
            loaded = reader.load()
            assert loaded is not None
            return loaded.generation, loaded.version, [msgspec.json.decode(row) for row in loaded.rows.in_order()]
        finally:
            reader.close()

    def peak(self, target: Path) -> dict[str, tuple[int, int]]:
        return {row["meter"]: (row["watts"], row["n"]) for row in self.reader(target, "peak")[2]}

    def late(self, view: str = "minutes") -> list[int]:
        """Return the numbers of the readings in VIEW.late, in its order."""
        with self.log() as log:
            name = f"{view}.late"
            end = log.ends(name)[0]
            rows = [row for batch in log.read(name, 0, 0, end) for row in batch.to_pylist()]
        return [int(msgspec.json.decode(row["event"])["reading"]) for row in rows]


def expected(function: Any, events: Iterable[meters.Reading]) -> dict[str, tuple[int, int]]:
    """Return the expected rows: the extreme of each meter, and the number of readings."""
    by_meter: dict[str, list[int]] = {}
    for event in events:
        by_meter.setdefault(event.meter, []).append(event.watts)
    return {meter: (function(watts), len(watts)) for meter, watts in by_meter.items()}
