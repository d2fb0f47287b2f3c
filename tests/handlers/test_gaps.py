"""Batches and pieces of a log whose offsets have gaps, short and long, at the start, in between and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.core.times import from_micros, micros_of
from penstock.handlers import inputs as inputs_module
from penstock.handlers.batches import batch_end, batch_stop, steps
from penstock.handlers.inputs import InputSpec, OffsetRange, chunks, read_inputs
from penstock.handlers.machine import Machine
from penstock.handlers.shard import Shard
from tests.handlers.fleet import Fix, geofence
from tests.memory_log import MemoryLog

LONG = 1_000
"""Longer than a batch and a piece of these tests."""
GAPS = st.sampled_from([0, 0, 0, 1, 3, LONG])
PARTITION = st.tuples(st.lists(st.tuples(GAPS, st.integers(1, 3)), max_size=12), GAPS)
"""The gap before each row, and the time since the row before; and the gap after the last."""
STREAMS = st.lists(st.lists(PARTITION, min_size=1, max_size=2), min_size=1, max_size=2)


class SparseStreams:
    """Streams with rows at some of the offsets of each partition, in a log in memory: `rows` are the offset and time of
    each row."""

    def __init__(self, streams: Sequence[Sequence[tuple[Sequence[tuple[int, int]], int]]]) -> None:
        self.log = MemoryLog()
        self.rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for stream, partitions in enumerate(streams):
            self.log.declare(StreamSpec(f"s{stream}", event_schema(Fix), len(partitions)))
            for partition, (rows, tail) in enumerate(partitions):
                self._fill(f"s{stream}", partition, rows, tail)
        self.starts = {stream: dict(self.log.starts(stream)) for stream in self.log.specs}
        self.ends = {stream: dict(self.log.ends(stream)) for stream in self.log.specs}

    def _fill(self, stream: str, partition: int, rows: Sequence[tuple[int, int]], tail: int) -> None:
        offset = time = 0
        given = self.rows[stream, partition] = []
        for gap, later in rows:
            offset, time = offset + gap, time + later
            given.append((offset, time))
            event = Fix(fix=f"{stream}/{partition}/{offset}", vehicle="a", x=5.0 * (offset % 2))
            self.log.leave_gap(stream, partition, gap)
            self.log.insert(stream, partition, to_batch(Fix, [event], ids=[None], keys=["a"], now=from_micros(time)))
            offset += 1
        self.log.leave_gap(stream, partition, tail)

    def within(self, stream: str, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        return [row for row in self.rows[stream, partition] if start <= row[0] < end]


Batch = list[tuple[int, str, int, int]]


def batch_of(streams: SparseStreams, start: Any, end: Any) -> Batch:
    """The time and the place of each row between two positions."""
    return [
        (time, stream, partition, offset)
        for stream, partitions in end.items()
        for partition, stop in partitions.items()
        for offset, time in streams.within(stream, partition, start[stream][partition], stop)
    ]


@settings(deadline=None)
@given(STREAMS, st.integers(1, 6), st.booleans())
def test_batches_across_gaps_have_every_row_once_and_in_order(streams: Any, rows_max: int, placed: bool) -> None:
    """Each goes on where the one before ended, and none of the rows that a shard reads is later than those of the next
    batch."""
    sparse = SparseStreams(streams)
    how = dict.fromkeys(sparse.ends, placed)
    most = sum(end for ends in sparse.ends.values() for end in ends.values()) + 1
    planned = list(islice(steps(sparse.log, how, sparse.starts, sparse.ends, rows_max), most))
    assert not planned or (planned[0][0], planned[-1][1]) == (sparse.starts, sparse.ends)
    batches = [batch_of(sparse, start, end) for start, end in planned]
    assert sorted(row for batch in batches for row in batch) == sorted(batch_of(sparse, sparse.starts, sparse.ends))
    for shard in (0, 1):
        own = [[row for row in batch if not placed or row[2] == shard] for batch in batches]
        assert all(max(before)[0] <= min(after)[0] for before, after in pairwise(filter(None, own)))


@settings(deadline=None)
@given(STREAMS, st.integers(1, 6))
def test_a_batch_passes_gaps_while_a_stream_has_nothing_new(streams: Any, rows_max: int) -> None:
    """Planned again and again, it ends before the first row that must wait for others, and never goes back."""
    sparse = SparseStreams([*streams, [([], 0)]])
    how, position = dict.fromkeys(sparse.ends, False), sparse.starts
    most = sum(end for ends in sparse.ends.values() for end in ends.values()) + 1
    for _ in range(most):
        reached = batch_end(sparse.log, how, position, sparse.ends, rows_max)
        assert batch_of(sparse, position, reached) == []
        if reached == position:
            break
        assert all(reached[name][number] >= position[name][number] for name in how for number in position[name])
        position = reached
    else:
        pytest.fail("it goes on without an end")
    for (stream, partition), rows in sparse.rows.items():
        first = rows[0][0] if rows else sparse.ends[stream][partition]
        assert position[stream][partition] <= first


def test_a_gap_longer_than_a_batch_costs_no_batch_of_its_own() -> None:
    """A batch has as many rows as it may, however far apart they are."""
    few = SparseStreams([[([(LONG, 1), (LONG, 1)], LONG)]])
    assert batch_stop(few.log, "s0", {0: 0}, few.ends["s0"], 10) == few.ends["s0"]
    many = SparseStreams([[([(LONG, 1)] * 11, 0)]])
    reached = batch_stop(many.log, "s0", {0: 0}, many.ends["s0"], 10)
    assert (many.log.rows_between("s0", {0: 0}, reached), reached) == (10, {0: 11 * LONG + 10})


@settings(deadline=None, max_examples=50)
@given(PARTITION, st.integers(1, 8), st.booleans())
def test_chunks_across_gaps_come_to_the_same_as_the_whole(partition: Any, size: int, placed: bool) -> None:
    sparse = SparseStreams([[partition]])
    log = sparse.log
    reading = InputSpec({"s0": Fix}, {"s0": ("vehicle",)}, {"s0": placed}, 0, 1)
    whole = [OffsetRange("s0", 0, 0, sparse.ends["s0"][0])]
    once, shard, emitted, events = Shard(), Shard(), [], 0
    expected = Machine(geofence).run(once, read_inputs(log, reading, whole))
    once.apply(expected.changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs_module, "PIECE_ROWS", size)
        patch.setattr(inputs_module, "CHUNK_ROWS", size)
        for part in chunks(log, reading, whole):
            effects = Machine(geofence).run(shard, part)
            shard.apply(effects.changes)
            emitted += effects.emitted
            events += effects.events
    assert (shard.records, shard.digest, shard.time) == (once.records, once.digest, once.time)
    assert (emitted, events) == (expected.emitted, expected.events)
    assert events == sum(1 for batch in log.read(*whole[0]) for _ in micros_of(batch.column("_ingest_time")))
