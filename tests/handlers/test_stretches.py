"""Rows that are run in pieces come to the same as all of them at once, however the log has stored them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import machine as machine_module
from penstock.analyze import inputs as inputs_module
from penstock.analyze.inputs import Range, Reading, chunks, read_inputs
from penstock.columns import tick_batch, to_batch
from penstock.machine import Machine
from penstock.rows import from_micros
from penstock.schema import event_schema
from penstock.shard import ENTRY_BYTES, HASH_BYTES, HASH_MODULUS, Changes, Draft, Shard
from tests.handlers.fleet import Fix, geofence

READING = Reading({"fixes": Fix}, {"fixes": ("vehicle",)}, {"fixes": True}, 0, 1)
FIXES = st.tuples(
    st.sampled_from("abcdef"),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([None, None, None, "quiet", "raise", "state", "class", "value", "forget"]),
)
ROWS = st.lists(st.tuples(st.none() | FIXES, st.integers(0, 4)), min_size=1, max_size=60)


class StoredRows:
    """What a handler needs of a log: rows, in batches of any sizes."""

    def __init__(self, rows: list[Any], sizes: list[int]) -> None:
        time, batches = timedelta(0), []
        for number, (fix, seconds) in enumerate(rows):
            time += timedelta(seconds=seconds)
            batches.append(_row(number, fix, time))
        self.table = pa.Table.from_batches(batches).combine_chunks()
        self.sizes = sizes

    def generation(self, stream: str) -> int:
        return 1

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        number = 0
        while start < end:
            size = min(self.sizes[number % len(self.sizes)], end - start)
            yield from self.table.slice(start, size).to_batches()
            start, number = start + size, number + 1


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
    log: Any = StoredRows(rows, sizes)
    whole = [Range("fixes", 0, 0, len(rows))]
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
    assert [(each.id, each.event.error) for each in failures] == [
        (each.id, each.event.error) for each in expected.failures
    ]


def test_the_pieces_do_not_depend_on_how_rows_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a batch that is run again, after its rows were merged in the log, ends its passes at the same rows."""
    monkeypatch.setattr(inputs_module, "PIECE_ROWS", 4)
    rows = [(("a", 0.0, None), 1)] * 11
    for sizes in ([1], [3], [4], [5, 2], [11]):
        log: Any = StoredRows(rows, sizes)
        (stretch,) = chunks(log, READING, [Range("fixes", 0, 1, 11)])
        assert [len(piece.times) for piece in stretch.pieces()] == [4, 4, 2]


RECORDS = st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.binary(min_size=HASH_BYTES, max_size=24))


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=5), st.lists(RECORDS, max_size=4))
def test_size_and_digest_are_those_of_the_records_and_a_draft_goes_back(first: list[Any], then: list[Any]) -> None:
    shard = Shard()
    for records in first:
        shard.apply(Changes(records, {}, 0))
    before = dict(shard.records)
    draft = Draft(shard)
    for records in then:
        draft.apply(Changes(records, {}, 1))
        _require_sound(shard)
    draft.revert()
    _require_sound(shard)
    assert (shard.records, shard.time) == (before, 0)


def _require_sound(shard: Shard) -> None:
    hashes = (int.from_bytes(record[:HASH_BYTES], "little") for record in shard.records.values())
    assert shard.digest == sum(hashes) % HASH_MODULUS
    assert shard.size == sum(ENTRY_BYTES + len(key) + len(record) for key, record in shard.records.items())
