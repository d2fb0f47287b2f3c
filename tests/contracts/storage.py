"""Promises of a storage about handlers, inherited by the tests of each one: `CommitContract`, `ReplacementContract`."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

from penstock.core.columns import event_rows, to_batch
from penstock.core.contracts import AppendPosition, LedgerEntry, Log, StreamSpec
from penstock.core.errors import Damaged, DeclarationError, DiskFull, LedgerMismatch
from penstock.core.event_shape import event_spec
from penstock.core.schema import Event, Failed, State, event_schema
from penstock.core.shapes import shape_of
from penstock.handlers.contracts import ChangedRows, HandledShard, HandlerBatch, StateReplacement, StreamOutput
from penstock.handlers.shard import NO_VERSION, Codec, KeyState, Shard, ShardChanges
from penstock.runtime.storage import OpenHandler, Storage, StoredLog
from penstock.store import ViewSpec
from tests.clocks import ManualClock
from tests.contracts.processes import run_apart

HANDLER, STREAM, FAILED = "sales", "sales.sold", "sales.failed"
SHARDS = 2
ORIGIN = '[{"orders/0":0,"orders/1":0}]'
VIEW = ViewSpec(HANDLER, ("item",), None, None, None, 100, 1 << 20)
NEW_ORIGIN, NEW_PIECES = '[{"orders/0":2,"orders/1":0}]', 500
COLUMNS = pa.schema([("item", pa.string()), ("pieces", pa.int64())])
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Sold(Event):
    item: str
    batch: int


class Stock(State):
    pieces: int = 0


INPUTS = {"orders": event_spec(Sold).shape}


def position(number: int) -> str:
    """Return the position at which batch `number` begins."""
    return f'[{{"orders/0":{number},"orders/1":{number}}}]'


def entry(number: int, epoch: int = 1) -> LedgerEntry:
    return LedgerEntry(number, position(number), position(number + 1), epoch)


def sold(number: int, shard: int) -> pa.RecordBatch:
    events = [Sold(item=f"item {shard}", batch=number)]
    return to_batch(Sold, events, ids=[f"{number}/{shard}"], keys=[f"item {shard}"], now=NOON)


def failure(number: int) -> pa.RecordBatch:
    event = Failed(
        stream="orders", partition=0, offset=number, key="item 0", error=f"batch {number}", traceback="", event="{}"
    )
    return to_batch(Failed, [event], ids=[f"{number}/failed"], keys=["item 0"], now=NOON)


def make_batch(number: int, shards: Mapping[int, HandledShard], *, emits: bool = True) -> HandlerBatch:
    """Make a batch that sells one piece of the item of each shard: an event for each, and a failure in shard 0. It sets
    the row of item 0, and deletes that of item 1 in every second batch. Without `emits` it changes state only."""
    if not emits:
        return HandlerBatch(entry(number), shards, [StreamOutput(STREAM, [])], StreamOutput(FAILED, []))
    rows = pa.Table.from_pylist([{"item": "item 0", "pieces": number + 1}], COLUMNS)
    other = [{"item": "item 1", "pieces": number + 1}]
    if number % 2:
        deletes = pa.Table.from_pylist(other, COLUMNS).select(["item"])
    else:
        rows = pa.concat_tables([rows, pa.Table.from_pylist(other, COLUMNS)])
        deletes = pa.Table.from_pylist([], COLUMNS).select(["item"])
    emitted = StreamOutput(STREAM, [(shard, iter([sold(number, shard)])) for shard in range(SHARDS)])
    failed = StreamOutput(FAILED, [(0, iter([failure(number)]))])
    return HandlerBatch(entry(number), shards, [emitted], failed, ChangedRows(rows, deletes))


class OpenedStorage:
    """A storage with one handler open, as in the engine."""

    def __init__(self, storage: Storage, *, view: bool = True) -> None:
        self.storage = storage
        self.log: StoredLog = storage.log(disk_reserve_bytes=0)
        self.log.declare(StreamSpec(STREAM, event_schema(Sold), SHARDS))
        self.log.declare(StreamSpec(FAILED, event_schema(Failed), SHARDS))
        table = storage.view_table(VIEW, ManualClock(NOON)) if view else None
        if table is not None:
            table.describe(COLUMNS)
        self.handler: OpenHandler = storage.open_handler(
            HANDLER, self.log, count=SHARDS, origin=ORIGIN, shape=shape_of(Stock), table=table
        )

    def prepare(self, number: int, *, emits: bool = True) -> HandlerBatch:
        """Write the deltas of a batch, as Spark's workers do, and return the batch."""
        return make_batch(number, {shard: self._write_delta(number, shard) for shard in range(SHARDS)}, emits=emits)

    def _write_delta(self, number: int, shard: int) -> HandledShard:
        """Write what batch `number` changes, as the version after those that count: also if the batch is done."""
        known = self.handler.handled.shards.get(shard)
        store = self.storage.shard(HANDLER, self.handler.handled.generation, shard)
        base = NO_VERSION if known is None else known.version
        version = self.handler.handled.next_id
        state = store.load(base)
        record = Codec(Stock).seal(f"item {shard}", KeyState(Stock(pieces=number + 1)), None)
        changes = ShardChanges({f"item {shard}": record}, {}, number)
        state.apply(changes)
        store.write_delta(version, base, changes, state.digest)
        return HandledShard.of(state, version)

    def commit(self, number: int, *, emits: bool = True) -> bool:
        return self.storage.commit(self.handler, self.prepare(number, emits=emits))

    def replace(self, *, is_origin: bool = False) -> None:
        """Replace the state: one key in shard 1, none in shard 0, and one row in the view."""
        shard = Shard()
        record = Codec(Stock).seal("item 1", KeyState(Stock(pieces=NEW_PIECES)), None)
        shard.apply(ShardChanges({"item 1": record}, {}, 0))
        rows = pa.Table.from_pylist([{"item": "item 1", "pieces": NEW_PIECES}], COLUMNS)
        shards = {0: Shard(), 1: shard}
        replacement = StateReplacement(shape_of(Stock), shards, NEW_ORIGIN, INPUTS, is_origin, rows)
        self.storage.replace_state(self.handler, replacement)

    def close(self) -> None:
        self.handler.close()
        self.log.close()


@contextmanager
def opened(storage: Storage, *, view: bool = True) -> Iterator[OpenedStorage]:
    handle = OpenedStorage(storage, view=view)
    try:
        yield handle
    finally:
        handle.close()


def events(storage: Storage, stream: str = STREAM) -> Counter[bytes]:
    """Return the events of a stream, with the number of copies of each."""
    log = storage.log_reader()
    try:
        count: Counter[bytes] = Counter()
        for partition, end in log.ends(stream).items():
            for batch in log.read(stream, partition, log.starts(stream)[partition], end):
                count.update(event_rows(batch))
        return count
    finally:
        log.close()


def rows(storage: Storage) -> dict[str, int]:
    """Return the rows of the view."""
    reader = storage.view_reader(VIEW)
    assert reader is not None
    try:
        served = reader.table()
        return {} if served is None else {row["item"]: row["pieces"] for row in served.table.to_pylist()}
    finally:
        reader.close()


def pieces(storage: Storage) -> dict[str, int]:
    """Return the committed state, by key."""
    handled = storage.handled(HANDLER)
    state: dict[str, int] = {}
    assert handled is not None
    for number, known in handled.shards.items():
        shard: Shard = storage.shard(HANDLER, handled.generation, number).load(known.version)
        assert HandledShard.of(shard, known.version) == known
        state |= {key: Codec(Stock).decode(record).state.pieces for key, record in shard.records.items()}
    return state


def require_complete(storage: Storage, number: int) -> None:
    """Fail unless batches 0 to `number` count exactly once, everywhere."""
    handled = storage.handled(HANDLER)
    assert handled is not None
    assert handled.entry == entry(number)
    assert handled.intended is None
    assert (handled.emitted, handled.failed) == (SHARDS * (number + 1), number + 1)
    assert len(events(storage)) == SHARDS * (number + 1)
    assert len(events(storage, FAILED)) == number + 1
    assert {*events(storage).values(), *events(storage, FAILED).values()} == {1}
    assert rows(storage) == ({"item 0": number + 1} | ({} if number % 2 else {"item 1": number + 1}))
    assert pieces(storage) == {f"item {shard}": number + 1 for shard in range(SHARDS)}
    latest = storage.handler_history(HANDLER)
    try:
        done = latest.latest()
        assert done is not None
        log = storage.log_reader()
        assert done.outputs == {stream: dict(log.ends(stream)) for stream in (STREAM, FAILED)}
        log.close()
        assert done.end == position(number + 1)
    finally:
        latest.close()


def commit_and_die(storage: Storage, number: int) -> None:
    """Commit a batch in a separate process, which a failpoint kills."""
    with opened(storage) as handle:
        handle.commit(number)


def replace_and_die(storage: Storage) -> None:
    """Replace the state in a process of its own, which a failpoint ends."""
    with opened(storage) as handle:
        handle.replace()


@contextmanager
def full_after(log: Log, appends: int) -> Iterator[None]:
    """For the length of a block, let a log take so many appends and then find the disk full."""
    real, left = log.append, appends

    def append(*args: Any, **named: Any) -> AppendPosition:
        nonlocal left
        if left == 0:
            raise DiskFull("the disk is full")
        left -= 1
        return real(*args, **named)

    with patch.object(log, "append", append):
        yield


class CommitContract:
    """Promises of every `Storage`: the output of a handler's batch counts once, or not at all."""

    POINTS: tuple[str, ...]
    """Failpoints inside the commit of one batch, in the order in which it reaches them."""
    INTENDED: str
    """The first of them after which the batch can only be run over the same range."""

    def fresh(self, folder: Path) -> Storage:
        """Return a new, empty storage."""
        raise NotImplementedError("each storage has tests that inherit these")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return self.fresh(tmp_path / "data")

    def test_a_commit_makes_all_parts_of_a_batch_count(self, storage: Storage) -> None:
        with opened(storage) as handle:
            assert handle.commit(0)
            require_complete(storage, 0)
            assert handle.commit(1)
            require_complete(storage, 1)

    def test_deltas_count_only_with_the_ledgers_entry(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            handle.prepare(1)
            require_complete(storage, 0)

    def test_a_batch_that_is_done_changes_nothing(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            assert not handle.commit(0)
            require_complete(storage, 0)
        with opened(storage) as again:
            assert not again.commit(0)
            require_complete(storage, 0)

    @pytest.mark.parametrize(
        "wrong",
        [
            LedgerEntry(1, position(1), position(3), 0),
            LedgerEntry(2, position(1), position(2), 1),
            LedgerEntry(1, position(0), position(2), 1),
            LedgerEntry(0, position(0), position(2), 1),
        ],
        ids=["older epoch", "skips a batch", "overlaps", "done over another range"],
    )
    def test_a_batch_that_does_not_follow_is_refused_and_nothing_written(
        self, storage: Storage, wrong: LedgerEntry
    ) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            with pytest.raises(LedgerMismatch):
                storage.commit(handle.handler, replace(handle.prepare(1), entry=wrong))
            require_complete(storage, 0)
            assert handle.commit(1)
            require_complete(storage, 1)

    def test_a_batch_that_changes_only_state_is_complete_without_output(self, storage: Storage) -> None:
        with opened(storage, view=False) as handle:
            assert handle.commit(0, emits=False)
        handled = storage.handled(HANDLER)
        assert handled is not None
        assert (handled.entry, handled.emitted, handled.failed) == (entry(0), 0, 0)
        assert not events(storage)
        assert pieces(storage) == {f"item {shard}": 1 for shard in range(SHARDS)}

    @pytest.mark.parametrize("number", [0, 1])
    def test_after_a_kill_at_any_point_the_batch_counts_once_when_it_is_offered_again(
        self, storage: Storage, number: int
    ) -> None:
        with opened(storage) as handle:
            for done in range(number):
                handle.commit(done)
        for point in self.POINTS:
            if run_apart(point, commit_and_die, storage, number) != -signal.SIGKILL:
                continue  # it was past this point before
            handled = storage.handled(HANDLER)
            if handled is not None and handled.entry == entry(number):
                require_complete(storage, number)
        with opened(storage) as handle:
            handle.commit(number)
            require_complete(storage, number)
            assert handle.commit(number + 1)
            require_complete(storage, number + 1)

    def test_a_kill_at_each_point_leaves_a_batch_to_complete(self, tmp_path: Path, storage: Storage) -> None:
        """Starts with an empty storage for each point, so that all points are reached."""
        for point in self.POINTS:
            fresh = self.fresh(tmp_path / point.replace("@", "-"))
            assert run_apart(point, commit_and_die, fresh, 0) == -signal.SIGKILL, f"{point} is not reached"
            handled = fresh.handled(HANDLER)
            assert handled is not None
            if handled.entry is not None:
                require_complete(fresh, 0)
            with opened(fresh) as handle:
                assert handle.commit(0) == (handled.entry is None)
                require_complete(fresh, 0)

    def test_a_batch_that_has_begun_to_have_an_effect_runs_over_the_same_range_only(
        self, tmp_path: Path, storage: Storage
    ) -> None:
        for point in self.POINTS:
            fresh = self.fresh(tmp_path / point.replace("@", "-"))
            run_apart(point, commit_and_die, fresh, 0)
            handled = fresh.handled(HANDLER)
            assert handled is not None
            with opened(fresh) as handle:
                other = replace(handle.prepare(0), entry=LedgerEntry(0, position(0), position(2), 1))
                if handled.entry is None and self.POINTS.index(point) < self.POINTS.index(self.INTENDED):
                    assert handled.intended is None
                    continue
                with pytest.raises(LedgerMismatch):
                    fresh.commit(handle.handler, other)
                handle.commit(0)
                require_complete(fresh, 0)

    @pytest.mark.parametrize("fails_at", range(SHARDS + 1))
    def test_a_disk_that_is_full_for_a_while_costs_nothing(self, storage: Storage, fails_at: int) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            with pytest.raises(DiskFull), full_after(handle.log, fails_at):
                storage.commit(handle.handler, handle.prepare(1))
            handled = storage.handled(HANDLER)
            assert handled is not None
            assert handled.entry == entry(0)
            assert handle.commit(1)
            require_complete(storage, 1)

    def test_a_handler_with_another_number_of_shards_is_refused(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
        with pytest.raises(Exception, match="shards"):
            storage.open_handler(HANDLER, handle.log, count=SHARDS + 1, origin=ORIGIN, shape=shape_of(Stock))


class ReplacementContract:
    """Promises of every `Storage`: all state of a handler is replaced at once, or not at all."""

    POINTS: tuple[str, ...]
    """Failpoints inside the replacement, in the order in which it reaches them."""

    def fresh(self, folder: Path) -> Storage:
        """Return an empty storage of its own."""
        raise NotImplementedError("each storage has tests that inherit these")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return self.fresh(tmp_path / "data")

    def require_replaced(self, storage: Storage) -> None:
        """Fail unless the new state counts, after batch 0 and instead of its state."""
        handled = storage.handled(HANDLER)
        assert handled is not None
        assert (handled.entry, handled.next_id, handled.end) == (entry(0), 1, position(1))
        assert (handled.emitted, handled.failed, handled.intended) == (SHARDS, 1, None)
        assert (handled.origin, handled.inputs, handled.padded) == (NEW_ORIGIN, INPUTS, False)
        assert handled.shards.keys() == {1}
        assert pieces(storage) == rows(storage) == {"item 1": NEW_PIECES}
        assert len(events(storage)) == SHARDS

    def test_a_replacement_changes_state_and_rows_and_no_batch(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            handle.replace()
            assert handle.handler.handled == storage.handled(HANDLER)
            self.require_replaced(storage)
        with opened(storage) as again:
            assert not again.commit(0)
            self.require_replaced(storage)
            assert again.commit(1)
        assert pieces(storage) == {"item 0": 2, "item 1": 2}
        assert rows(storage) == {"item 0": 2}

    def test_state_that_was_replaced_goes_only_when_it_is_dropped(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            old = handle.handler.handled
            handle.replace()
            known = old.shards[0]
            kept = storage.shard(HANDLER, old.generation, 0).load(known.version)
            assert HandledShard.of(kept, known.version) == known
            storage.drop_generations(HANDLER, handle.handler.handled.generation)
            with pytest.raises(Damaged):
                storage.shard(HANDLER, old.generation, 0).load(known.version)
            self.require_replaced(storage)

    @pytest.mark.parametrize("is_origin", [False, True])
    def test_state_to_which_no_log_leads_is_kept_as_the_origin(self, storage: Storage, is_origin: bool) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            handle.replace(is_origin=is_origin)
            self.require_replaced(storage)
            origin = storage.shard(HANDLER, handle.handler.handled.generation, 1).origin()
            assert list(origin.records) == (["item 1"] if is_origin else [])

    def test_nothing_is_replaced_while_a_batch_is_half_done(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            with pytest.raises(DiskFull), full_after(handle.log, 1):
                storage.commit(handle.handler, handle.prepare(1))
            before = storage.handled(HANDLER), rows(storage), pieces(storage)
            with pytest.raises(DeclarationError, match="batch 1 was started by the previous code and is half done"):
                handle.replace()
            assert (storage.handled(HANDLER), rows(storage), pieces(storage)) == before
            assert handle.commit(1)
            require_complete(storage, 1)

    def test_a_kill_at_each_point_leaves_the_old_state_or_the_new_one(self, tmp_path: Path, storage: Storage) -> None:
        """While it is the old one, the same replacement can be offered again."""
        for point in self.POINTS:
            fresh = self.fresh(tmp_path / point)
            with opened(fresh) as handle:
                handle.commit(0)
            before = fresh.handled(HANDLER)
            assert run_apart(point, replace_and_die, fresh) == -signal.SIGKILL, f"{point} is not reached"
            handled = fresh.handled(HANDLER)
            assert handled is not None
            with opened(fresh) as handle:
                fresh.drop_generations(HANDLER, handled.generation)
                if handled == before:
                    assert pieces(fresh) == {f"item {shard}": 1 for shard in range(SHARDS)}
                    handle.replace()
                self.require_replaced(fresh)

    def test_noted_inputs_are_durable_and_change_nothing_else(self, storage: Storage) -> None:
        with opened(storage) as handle:
            handle.commit(0)
            before = handle.handler.handled
            handle.handler.note_inputs(INPUTS)
            noted = storage.handled(HANDLER)
            assert noted == handle.handler.handled
            assert noted == msgspec.structs.replace(before, inputs=INPUTS, padded=False)
        with opened(storage) as again:
            assert again.handler.handled == noted
            require_complete(storage, 0)
