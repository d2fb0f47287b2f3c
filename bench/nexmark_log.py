"""Writes Nexmark events to a log, as the gateway would have written them, and runs queries on them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from examples.nexmark import app_for
from examples.nexmark_queries.generator import Happening, apart
from penstock.analyze.runner import Runner
from penstock.app.app import App
from penstock.app.declared import Handler, Stream, View
from penstock.app.graph import order
from penstock.core.columns import partition_of, text_of, tick_batch, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.engine import Engine

PARTITIONS = 2
TRIES = 10


class NexmarkLog:
    """Writes to the three streams. `number` is the number of the last append."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = EmbeddedLog(folder)
        self.streams = {stream.name: stream for stream in app_for().streams}
        for stream in self.streams.values():
            self.log.declare(StreamSpec(stream.name, event_schema(stream.event), PARTITIONS))
        self.number = 0

    def append(self, events: Sequence[Happening], now: datetime) -> None:
        """Append events that arrived together at the given log time."""
        self.number += 1
        for name, stream_events in apart(events).items():
            for partition, batch in _batches(self.streams[name], stream_events, now).items():
                self.log.append(name, partition, batch, producer="nexmark", sequence=self.number)

    def tick(self, now: datetime) -> None:
        """Record in all streams that log time has advanced to `now`."""
        self.number += 1
        for name, stream in self.streams.items():
            for partition in range(PARTITIONS):
                tick = tick_batch(event_schema(stream.event), now)
                self.log.append(name, partition, tick, producer="nexmark", sequence=self.number)

    def close(self) -> None:
        self.log.close()


def _batches(stream: Stream, events: list[Happening], now: datetime) -> dict[int, pa.RecordBatch]:
    assert stream.key is not None
    identity = stream.event.__id_field__
    parts: dict[int, list[Happening]] = {}
    for event in events:
        parts.setdefault(partition_of(text_of(getattr(event, stream.key)), PARTITIONS), []).append(event)
    batches = {}
    for partition, part in parts.items():
        ids = [text_of(getattr(event, identity)) if identity else None for event in part]
        keys = [text_of(getattr(event, stream.key)) for event in part]
        batches[partition] = to_batch(stream.event, part, ids=ids, keys=keys, now=now)
    return batches


def engine_for(app: App, target: str, directory: DataDirectory, spark: SparkSession) -> Engine:
    """Create an engine on an existing Spark session."""
    directory.make()
    engine = Engine(app, target, EmbeddedStorage(directory), Settings(partitions=PARTITIONS), 1)
    engine.spark = spark
    return engine


def run_each(engine: Engine) -> Iterator[View | Handler]:
    """Run an app's queries one after another, each until it has read everything."""
    for node in order(engine.app):
        engine._start(node, clean=False)
        _finish(engine.runners[node.name])
        yield node


def _finish(runner: Runner) -> None:
    """Run a query until it has finished. If it fails, as it may on a busy machine, restart it, as the engine would."""
    for tries_left in reversed(range(TRIES)):
        if runner.query is None or runner.query.query is None:
            raise RuntimeError(runner.error)
        try:
            runner.query.query.processAllAvailable()
            runner.query.stop()
            return
        except StreamingQueryException:
            if not tries_left:
                raise
            runner.start(clean=False)
