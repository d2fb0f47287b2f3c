"""A handler from a real log, on a real Spark, to real files: run as the engine runs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.streaming_query import SparkQuery
from penstock.app.app import App
from penstock.app.declared import Handler, ViewHandler
from penstock.app.graph import change_streams
from penstock.control import HandlerFigures
from penstock.core.columns import event_rows, partition_of, text_of, tick_batch, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.handlers.samples import BEGIN
from penstock.queue import EmbeddedLog
from penstock.runtime.comparison import Comparison
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.events import event_classes
from penstock.runtime.handlers import HandlerSink, open_handler, plan, source
from penstock.runtime.state_replacement import StateReplacer
from penstock.runtime.views import open_kept
from penstock.testing import STEP, Fault
from tests.handlers.view_handlers import publish_changes


class HandlerPipe:
    """The streams of an app in a directory, and its handlers, run one at a time."""

    def __init__(self, spark: SparkSession, root: Path, app: App, target: Path, **settings: Any) -> None:
        self.spark, self.app, self.target = spark, app, target
        self.settings = Settings(**{"partitions": 2, **settings})
        self.directory = DataDirectory(root)
        self.storage = EmbeddedStorage(self.directory)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams, classes=event_classes(app))
        self._numbers = itertools.count(sum(sum(self.log.ends(name).values()) for name in self._names()))
        for stream in app.streams:
            self.log.declare(StreamSpec.of(stream.name, event_spec(stream.event), self.settings.partitions))

    def _names(self) -> list[str]:
        return [stream.name for stream in self.app.streams if (self.directory.streams / f"{stream.name}.db").exists()]

    def append(self, name: str, items: Sequence[Any], first: datetime = BEGIN) -> None:
        """Append as the gateway would have, at the log times that `testing.run` gives the same items."""
        stream = next(stream for stream in self.app.streams if stream.name == name)
        time = first
        for item in items:
            time += item.by if isinstance(item, Fault) else STEP
            if isinstance(item, Fault):
                tick = tick_batch(event_schema(stream.event), time)
                batches = dict.fromkeys(range(self.settings.partitions), tick)
            else:
                key = text_of(getattr(item, stream.key)) if stream.key else None
                identity = stream.event.__id_field__
                ids = [text_of(getattr(item, identity)) if identity else None]
                batch = to_batch(stream.event, [item], ids=ids, keys=[key], now=time)
                batches = {partition_of(key, self.settings.partitions): batch}
            for partition, batch in batches.items():
                self.log.append(name, partition, batch, producer="test", sequence=next(self._numbers))

    def sink(self, handler: Handler) -> HandlerSink:
        handler_plan = plan(self.app, handler, str(self.target), self.storage, self.settings)
        for output in handler.outputs:
            self.log.declare(StreamSpec.of(output.name, event_spec(output.event), handler_plan.shards))
        table = open_kept(handler, self.storage, self.settings) if isinstance(handler, ViewHandler) else None
        opened = open_handler(handler, handler_plan, self.storage, self.log, table)
        comparison = Comparison(self.app, str(self.target), self.storage, self.settings)
        replacer = StateReplacer(self.app, handler, opened, self.storage)
        replacer.run(
            self.log,
            self.settings,
            comparison.adoptable(handler),
            reread=comparison.rereads(handler),
            record=lambda: comparison.record(handler),
        )
        comparison.record(handler)
        if isinstance(handler, ViewHandler) and handler.name in change_streams(self.app):
            committed = publish_changes(handler, self.storage, self.settings, self.log)
            return HandlerSink(handler, handler_plan, self.storage, opened, committed)
        return HandlerSink(handler, handler_plan, self.storage, opened)

    def run(self, handler: Handler, *, clean: bool = True) -> HandlerFigures:
        """Start, read everything, stop; returns the figures of the handler."""
        sink = self.sink(handler)
        register_handlers(self.spark, {handler.name: source(sink.plan, self.storage, self.settings, 0.01)})
        query = SparkQuery(handler, Checkpoint(self.directory.checkpoint(handler.name)), sink, 1)
        query.start(handler_frame(self.spark, handler.name), trigger_ms=0, clean=clean)
        assert query.query is not None
        try:
            query.query.processAllAvailable()
        finally:
            query.stop()
            sink.close()
        return sink.describe()

    def events(self, stream: str) -> list[bytes]:
        """Return the events of a stream, in any order."""
        rows: list[bytes] = []
        for partition, end in self.log.ends(stream).items():
            for batch in self.log.read(stream, partition, self.log.starts(stream)[partition], end):
                rows += event_rows(batch)
        return sorted(rows)

    def close(self) -> None:
        self.log.close()


def later(items: Iterable[Any]) -> timedelta:
    """Return the log time that these items take."""
    return sum((item.by if isinstance(item, Fault) else STEP for item in items), timedelta(0))
