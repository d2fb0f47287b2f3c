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

from penstock.columns import place, to_batch
from penstock.contracts import StreamSpec
from penstock.queue import EmbeddedLog
from penstock.runtime.directory import DataDirectory, take
from penstock.runtime.engine import Engine
from penstock.runtime.loading import load
from penstock.runtime.rebuild import Rebuild, choose
from penstock.runtime.views import view_spec
from penstock.schema import event_schema
from penstock.settings import Settings
from penstock.store.reader import ViewReader
from tests.runtime import meters

FIRST = Path(meters.__file__)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINIMUM = [("max(watts) AS watts", "min(watts) AS watts")]
PARTITIONS = 2
METERS = 5


def changed(folder: Path, edits: Sequence[tuple[str, str]], name: str = "second.py") -> Path:
    """The app's file with other code."""
    text = FIRST.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


def reading(number: int, *, at: float | None = None) -> meters.Reading:
    """Number N is of meter N % 5, and comes N seconds after noon."""
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
        """Append events in one commit for each partition, at a log time in seconds after noon, else at that of the
        newest of them."""
        now = max(each.at for each in events) if came is None else NOON + timedelta(seconds=came)
        with self.log() as log:
            for number in range(PARTITIONS):
                mine = [each for each in events if place(each.meter, PARTITIONS) == number]
                if mine:
                    ids, keys = [each.reading for each in mine], [each.meter for each in mine]
                    batch = to_batch(meters.Reading, mine, ids=ids, keys=keys, now=now)
                    log.append("readings", number, batch, producer="test", sequence=next(self._numbers))

    @contextmanager
    def engine(self, target: Path, *, clean: bool = True, view: str = "peak") -> Iterator[Engine]:
        """The engine of an app, of which one view runs, and has read everything that there is."""
        app = load(str(target)).app
        owned = take(self.directory, app.name)
        engine = Engine(app, str(target), self.directory, self.settings, owned.epoch)
        engine.spark = self.spark
        try:
            (node,) = (each for each in app.queries if each.name == view)
            engine._start(node, clean)
            runner = engine.runners[node.name]
            assert runner.error is None, runner.error
            assert runner.query is not None
            assert runner.query.query is not None
            runner.query.query.processAllAvailable()
            yield engine
        finally:
            engine._stop(1)
            os.close(owned.descriptor)

    def run(self, target: Path, *, clean: bool = True, view: str = "peak") -> None:
        with self.engine(target, clean=clean, view=view):
            pass

    def rebuild(self, target: Path, *views: str, kept: bool = False) -> list[str]:
        """Prepare some views; returns what is said."""
        said: list[str] = []
        loaded = load(str(target))
        rebuild = Rebuild(loaded, str(target), self.directory.root, self.settings, choose(loaded.app, views, ()))
        rebuild._spark = self.spark
        try:
            rebuild.prepare(said.append, lambda _: None, kept=kept)
        finally:
            rebuild.log.close()
        return said

    def reader(self, target: Path, view: str) -> tuple[int, int, list[dict[str, Any]]]:
        """Generation, version and rows of a view, as the gateway has them."""
        (found,) = (each for each in load(str(target)).app.views if each.name == view)
        reader = ViewReader(self.directory.view_file(view), view_spec(found, self.settings))
        try:
            loaded = reader.load()
            assert loaded is not None
            return loaded.generation, loaded.version, [msgspec.json.decode(row) for row in loaded.rows.in_order()]
        finally:
            reader.close()

    def peak(self, target: Path) -> dict[str, tuple[int, int]]:
        return {row["meter"]: (row["watts"], row["n"]) for row in self.reader(target, "peak")[2]}

    def late(self, view: str = "minutes") -> list[int]:
        """The numbers of the readings in VIEW.late, in its order."""
        with self.log() as log:
            name = f"{view}.late"
            end = log.ends(name)[0]
            rows = [row for batch in log.read(name, 0, 0, end) for row in batch.to_pylist()]
        return [int(msgspec.json.decode(row["event"])["reading"]) for row in rows]


def expected(function: Any, events: Iterable[meters.Reading]) -> dict[str, tuple[int, int]]:
    """What the view must have: the extreme of each meter, and how many readings there were."""
    by_meter: dict[str, list[int]] = {}
    for each in events:
        by_meter.setdefault(each.meter, []).append(each.watts)
    return {meter: (function(watts), len(watts)) for meter, watts in by_meter.items()}
