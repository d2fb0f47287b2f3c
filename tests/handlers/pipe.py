"""A handler from a real log, on a real Spark, to real files: run as the engine runs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.analyze.handled import handler_frame, register_handlers
from penstock.analyze.query import Query
from penstock.app import App
from penstock.columns import event_rows, place, text_of, tick_batch, to_batch
from penstock.contracts import StreamSpec
from penstock.declared import Handler, Keeper
from penstock.event_shape import event_spec
from penstock.graph import change_streams
from penstock.queue import EmbeddedLog
from penstock.runtime.comparison import Comparison
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import event_classes
from penstock.runtime.handlers import HandlerSink, open_ledger, plan, source
from penstock.runtime.loading import code_of
from penstock.runtime.renewal import Renewal
from penstock.schema import event_schema
from penstock.settings import Settings
from penstock.testing import BEGIN, STEP, Fault
from tests.handlers.keeping import keep


class HandlerPipe:
    """The streams of an app in a directory, and its handlers, run one at a time."""

    def __init__(self, spark: SparkSession, root: Path, app: App, target: Path, **settings: Any) -> None:
        self.spark, self.app, self.target = spark, app, target
        self.settings = Settings(**{"partitions": 2, **settings})
        self.directory = DataDirectory(root)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams, classes=event_classes(app))
        self._numbers = itertools.count(sum(sum(self.log.ends(name).values()) for name in self._names()))
        for stream in app.streams:
            self.log.declare(StreamSpec.of(stream.name, event_spec(stream.event), self.settings.partitions))

    def _names(self) -> list[str]:
        return [each.name for each in self.app.streams if (self.directory.streams / f"{each.name}.db").exists()]

    def append(self, name: str, items: Sequence[Any], first: datetime = BEGIN) -> None:
        """Append as the front door would have, at the log times that `testing.run` gives the same items."""
        stream = next(each for each in self.app.streams if each.name == name)
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
                batches = {place(key, self.settings.partitions): batch}
            for partition, batch in batches.items():
                self.log.append(name, partition, batch, producer="test", sequence=next(self._numbers))

    def sink(self, handler: Handler) -> HandlerSink:
        made = plan(self.app, handler, str(self.target), self.directory, self.settings)
        for output in handler.outputs:
            self.log.declare(StreamSpec.of(output.name, event_spec(output.event), made.shards))
        ledger = open_ledger(handler, made, self.directory, self.log)
        kept = None
        if isinstance(handler, Keeper):
            kept = keep(handler, self.directory, self.settings, self.log, read=handler.name in change_streams(self.app))
        renewal = Renewal(self.app, handler, ledger, self.directory, kept.table if kept is not None else None)
        comparison = Comparison(self.app, str(self.target), self.directory, self.settings)
        renewal.run(self.log, self.settings, code_of(str(self.target)), reread=comparison.rereads(handler))
        comparison.record(handler)
        return HandlerSink(handler, made, ledger, self.log, kept)

    def run(self, handler: Handler, *, clean: bool = True) -> dict[str, Any]:
        """Start, read everything, stop; returns what the handler says of itself."""
        sink = self.sink(handler)
        register_handlers(self.spark, {handler.name: source(sink.plan, self.directory, self.settings, 0.01)})
        query = Query(handler, self.directory.checkpoint(handler.name), sink, 1)
        query.start(handler_frame(self.spark, handler.name), trigger_ms=0, clean=clean)
        assert query.query is not None
        try:
            query.query.processAllAvailable()
        finally:
            query.stop()
            sink.close()
        return sink.describe()

    def events(self, stream: str) -> list[bytes]:
        """The events of a stream, in no order that matters."""
        found: list[bytes] = []
        for partition, end in self.log.ends(stream).items():
            for batch in self.log.read(stream, partition, self.log.starts(stream)[partition], end):
                found += event_rows(batch)
        return sorted(found)

    def close(self) -> None:
        self.log.close()


def later(items: Iterable[Any]) -> timedelta:
    """How much log time these items take."""
    return sum((item.by if isinstance(item, Fault) else STEP for item in items), timedelta(0))
