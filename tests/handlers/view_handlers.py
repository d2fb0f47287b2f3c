"""A handler that keeps a view, on a real log and with real files, without Spark: batches are planned here as Spark
would, and each is run in a simulated new process, with nothing in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.analyze.handled import _handler_offset
from penstock.app.app import App
from penstock.app.declared import ViewHandler
from penstock.core.columns import partition_of, text_of, tick_batch, to_batch
from penstock.core.contracts import Output, StreamSpec
from penstock.core.cursor import Positions, source_positions
from penstock.core.schema import event_schema, shown
from penstock.core.settings import Settings
from penstock.handlers.batches import own_positions
from penstock.handlers.contracts import HandlerLedgerEntry
from penstock.handlers.samples import BEGIN
from penstock.handlers.shard import HASH_BYTES, NO_VERSION, digest_text
from penstock.handlers.worker import RESULT, HandlerWorker, ShardWork
from penstock.queue import EmbeddedLog
from penstock.runtime import handlers
from penstock.runtime.changes import ChangePublisher
from penstock.runtime.comparison import Comparison
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.rebuild_handler import HandlerRebuild
from penstock.runtime.state_replacement import StateReplacer
from penstock.runtime.storage import Storage
from penstock.runtime.views import open_kept, open_reader
from penstock.store import ViewTable
from penstock.testing import STEP, Fault

SHARDS = 2


def publish_changes(
    view_handler: ViewHandler, storage: Storage, settings: Settings, log: EmbeddedLog
) -> Callable[[], None]:
    """Do what the engine does for a handler whose view's changes are read: publish them when it opens the handler
    and after each batch."""
    reader = open_reader(view_handler.view, storage, settings)
    assert reader is not None
    publisher = ChangePublisher(view_handler.view, shown(event_schema(view_handler.row)), reader, log)

    publisher.publish()

    def committed() -> None:
        publisher.publish()
        publisher.close()

    return committed


class Keeping:
    """One handler of an app, which reads one stream."""

    def __init__(self, root: Path, app: App, view_handler: ViewHandler, target: str) -> None:
        self.app, self.view_handler, self.target = app, view_handler, target
        (self.stream,) = [stream for stream in app.streams if stream.name in view_handler.reads]
        self.directory, self.settings = DataDirectory(root), Settings(partitions=SHARDS)
        self.directory.make()
        self.storage = EmbeddedStorage(self.directory)
        self.log = EmbeddedLog(self.directory.streams)
        self.log.declare(StreamSpec(self.stream.name, event_schema(self.stream.event), SHARDS))
        self.plan = handlers.plan(app, view_handler, target, self.storage, self.settings)
        for output in view_handler.outputs:
            self.log.declare(StreamSpec(output.name, event_schema(output.event), SHARDS))
        self.sent, self.time = 0, BEGIN

    def send(self, items: Sequence[Any]) -> None:
        """Append events and ticks at the log times that `testing.run` gives them."""
        cls, name = self.stream.event, self.stream.name
        for event in items:
            self.time += event.by if isinstance(event, Fault) else STEP
            if isinstance(event, Fault):
                batches = dict.fromkeys(range(SHARDS), tick_batch(event_schema(cls), self.time))
            else:
                key = None if self.stream.key is None else text_of(getattr(event, self.stream.key))
                batches = {partition_of(key, SHARDS): to_batch(cls, [event], ids=[None], keys=[key], now=self.time)}
            for partition, batch in batches.items():
                self.log.append(name, partition, batch, producer="test", sequence=self.sent)
                self.sent += 1

    def batch(self) -> bool:
        """Run everything new as one batch. False if there was nothing to do."""
        table = self.table()
        opened = handlers.open_handler(self.view_handler, self.plan, self.storage, self.log, table)
        comparison = self._comparison()
        prepared = comparison.adoptable(self.view_handler)
        try:
            StateReplacer(self.app, self.view_handler, opened, self.storage).run(
                self.log, self.settings, prepared, record=lambda: comparison.record(self.view_handler)
            )
        except BaseException:
            opened.close()
            raise
        committed = publish_changes(self.view_handler, self.storage, self.settings, self.log)
        sink = handlers.HandlerSink(self.view_handler, self.plan, self.storage, opened, committed)
        try:
            output = self._output(opened.handled)
            return output.start != output.end and sink.commit(output)
        finally:
            sink.close()

    def rebuild(self) -> None:
        """Prepare state and rows from the log; the next batch takes them over."""
        comparison = self._comparison()
        rebuild = HandlerRebuild(self.app, self.view_handler, self.storage, self.log, self.settings, comparison)
        rebuild.prepare(lambda _: None)
        rebuild.mark()

    def _comparison(self) -> Comparison:
        return Comparison(self.app, self.target, self.storage, self.settings)

    def _output(self, handled: HandlerLedgerEntry) -> Output:
        name = self.stream.name
        start, end = source_positions(handled.end), {name: dict(self.log.ends(name))}
        rows = [
            (shard, number, payload)
            for shard in range(SHARDS)
            for number, payload in HandlerWorker(self.plan).run(self._work(handled, shard, start, end))
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, RESULT.types, strict=True)]
        texts = [msgspec.json.encode([_handler_offset(positions)]).decode() for positions in (start, end)]
        return Output(handled.next_id, texts[0], texts[1], 1, pa.Table.from_arrays(arrays, schema=RESULT))

    def _work(self, handled: HandlerLedgerEntry, shard: int, start: Positions, end: Positions) -> ShardWork:
        known = handled.shards.get(shard)
        base, digest = (known.version, known.digest) if known is not None else (NO_VERSION, bytes(HASH_BYTES))
        way = (
            own_positions(self.plan.placed, shard, positions)
            for positions in (source_positions(handled.origin), start, end)
        )
        return ShardWork(shard, handled.generation, base, digest, handled.next_id, *way)

    def table(self) -> ViewTable:
        """The view's file, to be closed."""
        table = open_kept(self.view_handler, self.storage, self.settings)
        assert isinstance(table, ViewTable)
        return table

    def rows(self) -> list[dict[str, Any]]:
        table = self.table()
        rows = [
            msgspec.json.decode(data) for (data,) in table._connection.execute("SELECT data FROM rows ORDER BY key")
        ]
        assert table.size == len(rows)
        table.close()
        return rows

    def version(self) -> int:
        table = self.table()
        table.close()
        return table.version

    def changes(self) -> int:
        return self.log.events_appended(f"{self.view_handler.name}.changes")

    def digest(self) -> str:
        handled = self.storage.handled(self.view_handler.name)
        shards = handled.shards.values() if handled is not None else ()
        return digest_text(sum(int.from_bytes(shard.digest, "little") for shard in shards))
