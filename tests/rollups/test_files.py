"""A rollup on a real log, with real files, without Spark: batches, crashes, and ranges of stored rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.analyze.handled import _handler_offset
from penstock.core import failpoints
from penstock.core.columns import partition_of, tick_batch, to_batch
from penstock.core.contracts import Output, StreamSpec
from penstock.core.cursor import source_positions
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.handlers.batches import own_positions
from penstock.handlers.contracts import HandlerLedgerEntry
from penstock.handlers.shard import HASH_BYTES, NO_VERSION
from penstock.handlers.worker import RESULT, HandlerWorker, ShardWork
from penstock.queue import EmbeddedLog
from penstock.runtime import handlers
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_kept
from penstock.serve.channels.ranges import BucketRange
from penstock.store import ViewSpec
from penstock.store.live import InMemoryView
from tests.rollups import till
from tests.rollups.till import Sale, app, sales

SHARDS = 2
MAY = datetime.fromisoformat("2024-05-01T00:00:00Z")


class Kept:
    """Plans batches as Spark would, and runs each in a simulated new process."""

    def __init__(self, root: Path) -> None:
        self.directory, self.settings = DataDirectory(root), Settings(partitions=SHARDS)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams)
        self.log.declare(StreamSpec("sold", event_schema(Sale), SHARDS))
        self.plan = handlers.plan(app, sales, till.__file__, EmbeddedStorage(self.directory), self.settings)
        for output in sales.outputs:
            self.log.declare(StreamSpec(output.name, event_schema(output.event), SHARDS))
        self.sent = 0

    def send(self, name: str, clock: str, cents: int, came: str | None = None) -> None:
        """Append a sale at a till, which happened at a time of that day and came then, or later."""
        sale = Sale(number=self.sent, at=_time(clock), till=name, cents=cents)
        batch = to_batch(Sale, [sale], ids=[str(self.sent)], keys=[name], now=_time(came or clock))
        self.log.append("sold", partition_of(name, SHARDS), batch, producer="test", sequence=self.sent)
        self.sent += 1

    def tick(self, clock: str) -> None:
        for shard in range(SHARDS):
            tick = tick_batch(event_schema(Sale), _time(clock))
            self.log.append("sold", shard, tick, producer="test", sequence=self.sent)
            self.sent += 1

    def batch(self) -> None:
        storage = EmbeddedStorage(self.directory)
        table = open_kept(sales, storage, self.settings)
        opened = handlers.open_handler(sales, self.plan, storage, self.log, table)
        sink = handlers.HandlerSink(sales, self.plan, storage, opened)
        try:
            sink.commit(self._output(opened.handled))
        finally:
            sink.close()

    def _output(self, handled: HandlerLedgerEntry) -> Output:
        ways = [source_positions(handled.origin), source_positions(handled.end)]
        ways.append({"sold": dict(self.log.ends("sold"))})
        rows = list[tuple[int, int, bytes]]()
        for shard in range(SHARDS):
            known = handled.shards.get(shard)
            base, digest = (known.version, known.digest) if known is not None else (NO_VERSION, bytes(HASH_BYTES))
            own = (own_positions(self.plan.placed, shard, positions) for positions in ways)
            work = ShardWork(shard, 0, base, digest, handled.next_id, *own)
            rows += [(shard, number, payload) for number, payload in HandlerWorker(self.plan).run(work)]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), RESULT.types, strict=True)]
        start, end = (msgspec.json.encode([_handler_offset(positions)]).decode() for positions in ways[1:])
        return Output(handled.next_id, start, end, 1, pa.Table.from_arrays(columns, schema=RESULT))

    def rows(self, wanted: BucketRange) -> list[tuple[str, str, int, int]]:
        """Return the rows that the gateway would serve of a range: start, till, orders and cents."""
        view = sales.view
        spec = ViewSpec(view.name, view.key, None, None, None, changes_kept=100, changes_bytes=2**20)
        table = InMemoryView(self.directory.view_file(view.name), spec, buffered_changes=10)
        asyncio.run(table.load())
        rows = [msgspec.json.decode(row) for row in wanted.of(table.snapshot().rows)]
        table.close()
        return [(row["start"][11:16], row["till"], row["orders"], row["cents"]) for row in rows]


def _time(clock: str) -> datetime:
    hours, minutes = clock.split(":")
    return MAY + timedelta(hours=int(hours), minutes=int(minutes))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    keeping = Kept(tmp_path)
    yield keeping
    keeping.log.close()


MINUTE, DAY = BucketRange("minute"), BucketRange("day")


def test_batches_bring_every_level_up_to_date_and_ranges_find_their_rows(kept: Kept) -> None:
    for name, clock in (("a", "10:01"), ("b", "10:00"), ("a", "10:00"), ("a", "10:00")):
        kept.send(name, clock, 1, "10:05")
    kept.batch()
    assert kept.rows(MINUTE) == [("10:00", "a", 2, 2), ("10:00", "b", 1, 1), ("10:01", "a", 1, 1)]
    assert kept.rows(DAY) == [("00:00", "a", 3, 3), ("00:00", "b", 1, 1)]
    assert kept.rows(BucketRange("minute", "2024-05-01T10:01:00Z")) == [("10:01", "a", 1, 1)]
    assert kept.rows(BucketRange("minute", None, "2024-05-01T10:01:00Z")) == [
        ("10:00", "a", 2, 2),
        ("10:00", "b", 1, 1),
    ]
    kept.send("a", "10:01", 5, "10:30")
    kept.tick("12:30")
    kept.batch()
    assert kept.rows(MINUTE) == []
    assert kept.rows(DAY) == [("00:00", "a", 4, 8), ("00:00", "b", 1, 1)]


CRASHES = ["handler.after_append@1", "ledger.before_commit@1", "ledger.after_commit@1", "ledger.before_commit@2"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_batch_that_crashed_counts_once(kept: Kept, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    kept.send("a", "10:00", 1)
    kept.send("b", "10:00", 1)
    kept.batch()
    kept.send("a", "10:00", 2, "10:10")
    kept.send("a", "13:00", 4)
    kept.send("a", "10:00", 8, "13:01")
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse(f"{crash}=stop"))
    with pytest.raises(failpoints.Interrupted):
        kept.batch()
    kept.batch()
    assert kept.rows(DAY) == [("00:00", "a", 4, 15), ("00:00", "b", 1, 1)]
    assert kept.rows(BucketRange("minute", "2024-05-01T13:00:00Z")) == [("13:00", "a", 1, 4)]
    assert ("10:00", "a", 2, 3) not in kept.rows(MINUTE)
