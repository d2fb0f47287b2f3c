"""A handler that keeps a view, on a real log and with real files, without Spark: batches are planned here as Spark
would, and each is run in a process that, for all that it remembers, has just started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.analyze.batches import own_positions
from penstock.analyze.handled import _offset
from penstock.analyze.worker import RESULT, ShardWork, Worker
from penstock.app import App
from penstock.columns import place, text_of, tick_batch, to_batch
from penstock.contracts import Output, StreamSpec
from penstock.cursor import Positions, source_positions
from penstock.declared import Keeper
from penstock.queue import EmbeddedLog
from penstock.runtime import handlers
from penstock.runtime.changes import ChangePublisher
from penstock.runtime.directory import DataDirectory
from penstock.runtime.loading import code_of
from penstock.runtime.rebuild_handler import HandlerRebuild
from penstock.runtime.renewal import Renewal
from penstock.runtime.views import open_kept, open_reader
from penstock.schema import event_schema, shown
from penstock.settings import Settings
from penstock.shard import HASH_BYTES, NOTHING, digest_text
from penstock.store import HandlerLedger, ViewTable
from penstock.testing import BEGIN, STEP, Fault

SHARDS = 2


def keep(
    keeper: Keeper, directory: DataDirectory, settings: Settings, log: EmbeddedLog, *, read: bool
) -> handlers.Kept:
    """The view that a handler keeps, as the engine has it, with its stream of changes if someone will `read` that."""
    table, reader = open_kept(keeper, directory, settings), open_reader(keeper.view, directory, settings)
    assert reader is not None
    if not read:
        reader.close()
        return handlers.Kept(table)
    publisher = ChangePublisher(keeper.view, shown(event_schema(keeper.row)), reader, log)

    def committed() -> None:
        publisher.publish()
        publisher.close()

    return handlers.Kept(table, committed)


class Keeping:
    """One handler of an app, which reads one stream."""

    def __init__(self, root: Path, app: App, keeper: Keeper, target: str) -> None:
        self.app, self.keeper, self.target = app, keeper, target
        (self.stream,) = [each for each in app.streams if each.name in keeper.reads]
        self.directory, self.settings = DataDirectory(root), Settings(partitions=SHARDS)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams)
        self.log.declare(StreamSpec(self.stream.name, event_schema(self.stream.event), SHARDS))
        self.plan = handlers.plan(app, keeper, target, self.directory, self.settings)
        for output in keeper.outputs:
            self.log.declare(StreamSpec(output.name, event_schema(output.event), SHARDS))
        self.sent, self.time = 0, BEGIN

    def send(self, items: Sequence[Any]) -> None:
        """Append events and ticks at the log times that `testing.run` gives them."""
        cls, name = self.stream.event, self.stream.name
        for each in items:
            self.time += each.by if isinstance(each, Fault) else STEP
            if isinstance(each, Fault):
                batches = dict.fromkeys(range(SHARDS), tick_batch(event_schema(cls), self.time))
            else:
                key = None if self.stream.key is None else text_of(getattr(each, self.stream.key))
                batches = {place(key, SHARDS): to_batch(cls, [each], ids=[None], keys=[key], now=self.time)}
            for partition, batch in batches.items():
                self.log.append(name, partition, batch, producer="test", sequence=self.sent)
                self.sent += 1

    def batch(self) -> bool:
        """Run all that is new as one batch. False if there was nothing to do."""
        ledger = handlers.open_ledger(self.keeper, self.plan, self.directory, self.log)
        kept = self._open()
        renewal = Renewal(self.app, self.keeper, ledger, self.directory, kept.table)
        renewal.run(self.log, self.settings, code_of(self.target))
        sink = handlers.HandlerSink(self.keeper, self.plan, ledger, self.log, kept)
        try:
            output = self._output(ledger)
            return output.start != output.end and sink.commit(output)
        finally:
            sink.close()

    def rebuild(self) -> None:
        """Prepare state and rows from the log; the next batch takes them over."""
        code = code_of(self.target)
        made = HandlerRebuild(self.app, self.keeper, self.directory, self.log, self.settings, code)
        made.prepare(lambda _: None)
        made.mark()

    def _open(self) -> handlers.Kept:
        return keep(self.keeper, self.directory, self.settings, self.log, read=True)

    def _output(self, ledger: HandlerLedger) -> Output:
        name = self.stream.name
        start, end = source_positions(ledger.state.end), {name: dict(self.log.ends(name))}
        rows = [
            (shard, number, payload)
            for shard in range(SHARDS)
            for number, payload in Worker(self.plan).run(self._work(ledger, shard, start, end))
        ]
        columns = [list(each) for each in zip(*rows, strict=True)]
        arrays = [pa.array(each, kind) for each, kind in zip(columns, RESULT.types, strict=True)]
        texts = [msgspec.json.encode([_offset(each)]).decode() for each in (start, end)]
        return Output(ledger.state.next_id, texts[0], texts[1], 1, pa.Table.from_arrays(arrays, schema=RESULT))

    def _work(self, ledger: HandlerLedger, shard: int, start: Positions, end: Positions) -> ShardWork:
        state = ledger.state
        known = state.shards.get(shard)
        base, digest = (known.version, known.digest) if known is not None else (NOTHING, bytes(HASH_BYTES))
        way = (own_positions(self.plan.placed, shard, each) for each in (source_positions(state.origin), start, end))
        return ShardWork(shard, state.generation, base, digest, state.next_id, *way)

    def table(self) -> ViewTable:
        """The view's file, to be closed."""
        return self._open().table

    def rows(self) -> list[dict[str, Any]]:
        table = self.table()
        found = [
            msgspec.json.decode(data) for (data,) in table._connection.execute("SELECT data FROM rows ORDER BY key")
        ]
        assert table.size == len(found)
        table.close()
        return found

    def version(self) -> int:
        table = self.table()
        table.close()
        return table.version

    def changes(self) -> int:
        return self.log.events_appended(f"{self.keeper.name}.changes")

    def digest(self) -> str:
        ledger = handlers.open_ledger(self.keeper, self.plan, self.directory, self.log)
        ledger.close()
        return digest_text(sum(int.from_bytes(each.digest, "little") for each in ledger.state.shards.values()))
