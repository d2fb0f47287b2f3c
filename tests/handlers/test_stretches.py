"""Rows that are run in pieces give the same result as all of them at once, however the log has stored them."""

from __future__ import annotations

from datetime import timedelta
from itertools import cycle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.core.times import from_micros
from penstock.handlers import inputs as inputs_module
from penstock.handlers import machine as machine_module
from penstock.handlers.inputs import InputSpec, OffsetRange, chunks, read_inputs
from penstock.handlers.machine import Machine
from penstock.handlers.shard import ENTRY_BYTES, HASH_BYTES, HASH_MODULUS, Draft, Shard, ShardChanges
from tests.handlers.fleet import Fix, geofence
from tests.memory_log import MemoryLog

READING = InputSpec({"fixes": Fix}, {"fixes": ("vehicle",)}, {"fixes": True}, 0, 1)
FIXES = st.tuples(
    st.sampled_from("abcdef"),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([None, None, None, "quiet", "raise", "state", "class", "value", "forget"]),
)
ROWS = st.lists(st.tuples(st.none() | FIXES, st.integers(0, 4)), min_size=1, max_size=60)


def stored(rows: list[Any], sizes: list[int]) -> MemoryLog:
    """A log with these rows in the stream `fixes`, in batches of these sizes, over and over."""
    time, batches = timedelta(0), []
    for number, (fix, seconds) in enumerate(rows):
        time += timedelta(seconds=seconds)
        batches.append(_row(number, fix, time))
    table, log, start = pa.Table.from_batches(batches).combine_chunks(), MemoryLog(), 0
    log.declare(StreamSpec("fixes", event_schema(Fix), 1))
    for size in cycle(sizes):
        for batch in table.slice(start, size).to_batches():
            log.insert("fixes", 0, batch)
        start += size
        if start >= len(rows):
            return log
    raise AssertionError("a log has batches of at least one size")


def _row(number: int, fix: tuple[str, float, str | None] | None, time: timedelta) -> pa.RecordBatch:
    now = from_micros(0) + time
    if fix is None:
        return tick_batch(event_schema(Fix), now)
    vehicle, x, trouble = fix
    event = Fix(fix=str(number), vehicle=vehicle, x=x, trouble=trouble)
    return to_batch(Fix, [event], ids=[str(number)], keys=[vehicle], now=now)


@settings(deadline=None, max_examples=300)
@given(ROWS, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 8), st.integers(1, 9))
def test_pieces_come_to_the_same_as_the_whole(rows: list[Any], sizes: list[int], piece: int, held: int) -> None:
    log = stored(rows, sizes)
    whole = [OffsetRange("fixes", 0, 0, len(rows))]
    once = Shard()
    expected = Machine(geofence).run(once, read_inputs(log, READING, whole))
    once.apply(expected.changes)
    shard, runner, emitted, failures, events = Shard(), Machine(geofence), [], [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs_module, "PIECE_ROWS", piece)
        patch.setattr(machine_module, "HELD_BYTES_MAX", held * ENTRY_BYTES)
        for part in chunks(log, READING, whole):
            effects = runner.run(shard, part)
            shard.apply(effects.changes)
            emitted += effects.emitted
            failures += effects.failures
            events += effects.events
    assert (shard.records, shard.due, shard.digest, shard.time) == (once.records, once.due, once.digest, once.time)
    assert (emitted, events) == (expected.emitted, expected.events)
    assert [(failure.id, failure.event.error) for failure in failures] == [
        (failure.id, failure.event.error) for failure in expected.failures
    ]


def test_the_pieces_do_not_depend_on_how_rows_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a batch that is run again, after its rows were merged in the log, ends its passes at the same rows."""
    monkeypatch.setattr(inputs_module, "PIECE_ROWS", 4)
    rows = [(("a", 0.0, None), 1)] * 11
    for sizes in ([1], [3], [4], [5, 2], [11]):
        log = stored(rows, sizes)
        (stretch,) = chunks(log, READING, [OffsetRange("fixes", 0, 1, 11)])
        assert [len(piece.times) for piece in stretch.pieces()] == [4, 4, 2]


RECORDS = st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.binary(min_size=HASH_BYTES, max_size=24))


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=5), st.lists(RECORDS, max_size=4))
def test_size_and_digest_are_those_of_the_records_and_a_draft_goes_back(first: list[Any], then: list[Any]) -> None:
    shard = Shard()
    for records in first:
        shard.apply(ShardChanges(records, {}, 0))
    before = dict(shard.records)
    draft = Draft(shard)
    for records in then:
        draft.apply(ShardChanges(records, {}, 1))
        _require_sound(shard)
    draft.revert()
    _require_sound(shard)
    assert (shard.records, shard.time) == (before, 0)


def _require_sound(shard: Shard) -> None:
    hashes = (int.from_bytes(record[:HASH_BYTES], "little") for record in shard.records.values())
    assert shard.digest == sum(hashes) % HASH_MODULUS
    assert shard.size == sum(ENTRY_BYTES + len(key) + len(record) for key, record in shard.records.items())
