"""The events of Nexmark in a log, as the front door would have written them, and its queries run on them one by one."""

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
from penstock.app import App
from penstock.columns import place, text_of, tick_batch, to_batch
from penstock.contracts import StreamSpec
from penstock.declared import Handler, Stream, View
from penstock.graph import order
from penstock.queue import EmbeddedLog
from penstock.runtime.directory import DataDirectory
from penstock.runtime.engine import Engine
from penstock.schema import event_schema
from penstock.settings import Settings

PARTITIONS = 2
TRIES = 10


class NexmarkLog:
    """Writes the three streams. `number` is that of the last append."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = EmbeddedLog(folder)
        self.streams = {stream.name: stream for stream in app_for().streams}
        for stream in self.streams.values():
            self.log.declare(StreamSpec(stream.name, event_schema(stream.event), PARTITIONS))
        self.number = 0

    def append(self, events: Sequence[Happening], now: datetime) -> None:
        """Events that came together, at that log time."""
        self.number += 1
        for name, each in apart(events).items():
            for partition, batch in _batches(self.streams[name], each, now).items():
                self.log.append(name, partition, batch, producer="nexmark", sequence=self.number)

    def tick(self, now: datetime) -> None:
        """Let all streams know that log time has come so far."""
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
        parts.setdefault(place(text_of(getattr(event, stream.key)), PARTITIONS), []).append(event)
    made = {}
    for partition, each in parts.items():
        ids = [text_of(getattr(event, identity)) if identity else None for event in each]
        keys = [text_of(getattr(event, stream.key)) for event in each]
        made[partition] = to_batch(stream.event, each, ids=ids, keys=keys, now=now)
    return made


def engine_for(app: App, target: str, directory: DataDirectory, spark: SparkSession) -> Engine:
    """An engine on a Spark that is there already."""
    directory.make()
    engine = Engine(app, target, directory, Settings(partitions=PARTITIONS), 1)
    engine.spark = spark
    return engine


def run_each(engine: Engine) -> Iterator[View | Handler]:
    """Run the queries of an app one after the other, each until it has read all that there is."""
    for node in order(engine.app):
        engine._start(node, clean=False)
        _finish(engine.runners[node.name])
        yield node


def _finish(runner: Runner) -> None:
    """Let a query come to its end; one that fails on a busy machine is started again, as the engine would."""
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
