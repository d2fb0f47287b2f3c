"""Runs of a stream's events: one order over partitions, and positions from which reading continues."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cursor import StreamCursor, decode, encode, stream_cursor, view_cursor
from penstock.core.errors import BadCursor
from penstock.core.schema import event_schema
from penstock.serve.channels.row_filter import NO_FILTER, base_filter
from penstock.serve.channels.stream_reader import EventRun, Offsets, extent, locate, look_back, read_run
from tests.serve.fakes import FakeLog, Reading

MANY = 1_000_000
writes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 4), st.integers(0, 5)), max_size=25
)  # partition, events (0 for a tick, -1 for a gap), ingest time
LONG = 100
"""A gap of more offsets than there are rows in a run."""


def filled(plan: list[tuple[int, int, int]]) -> FakeLog:
    log, number = FakeLog(3), 0
    for partition, count, at in plan:
        if count < 0:
            log.skip(partition, LONG)
        elif count == 0:
            log.tick(partition, at)
        else:
            log.write(partition, *range(number, number + count), at_s=at)
            number += count
    return log


def events(run: EventRun) -> list[int]:
    return [json.loads(event or b"")["n"] for event in run.rows(NO_FILTER)]


def read(log: FakeLog, start: Offsets, events_max: int = MANY, bytes_max: int = MANY) -> EventRun:
    return read_run(log, "s", start, dict(log.ends("s")), events_max=events_max, bytes_max=bytes_max)


@given(writes, st.integers(1, 7), st.sampled_from([1, 60, MANY]))
def test_runs_that_follow_each_other_give_every_event_once(
    plan: list[tuple[int, int, int]], events_max: int, bytes_max: int
) -> None:
    """However small the runs, together they hold each event once, in order of offset inside each partition."""
    log = filled(plan)
    place, received, sizes = dict(log.starts("s")), [], []
    while place != log.ends("s"):
        run = read(log, place, events_max, bytes_max)
        assert run.after != place
        place = run.after
        received += events(run)
        sizes.append(len(run.events))
    plan = [step for step in plan if step[1] > 0]
    total = sum(count for _, count, _ in plan)
    assert sorted(received) == list(range(total))
    assert max(sizes, default=0) <= events_max
    home, number = {}, 0
    for partition, count, _ in plan:
        for event in range(number, number + count):
            home[event] = partition
        number += count
    for partition in range(3):
        own = [event for event in received if home[event] == partition]
        assert own == sorted(own)


@given(writes, st.integers(1, 7), st.sampled_from([1, 60, MANY]))
def test_events_are_ordered_by_time_then_partition(
    plan: list[tuple[int, int, int]], events_max: int, bytes_max: int
) -> None:
    """If time does not decrease inside a partition, the order is that of (ingest time, partition, offset), and the size
    of the runs does not change it."""
    plan = sorted(plan, key=lambda step: step[2])
    expected, number = [], 0
    for partition, count, at in plan:
        for event in range(number, number + count):
            expected.append((at, partition, event))
        number += max(0, count)
    log = filled(plan)
    place, received = dict(log.starts("s")), list[int]()
    while place != log.ends("s"):
        run = read(log, place, events_max, bytes_max)
        place = run.after
        received += events(run)
    assert received == [event for _, _, event in sorted(expected)]


def test_ticks_are_passed_over_but_counted() -> None:
    """A tick is not an event, and the position after a run is past it."""
    log = FakeLog(1)
    log.tick(0)
    log.write(0, 1)
    log.tick(0)
    run = read(log, {0: 0})
    assert events(run) == [1]
    assert run.after == log.ends("s")


def test_an_event_has_no_system_columns() -> None:
    """A reader sees only the fields of the event."""
    log = FakeLog(1)
    log.write(0, 1, text="x")
    assert json.loads(next(read(log, {0: 0}).rows(NO_FILTER)) or b"") == {"n": 1, "text": "x"}


def test_large_events_make_small_pieces() -> None:
    """The bound on bytes holds inside a batch, whatever the bound on events allows."""
    log = FakeLog(1)
    log.write(0, *range(100), text="x" * 1000)
    assert 1 <= len(read(log, {0: 0}, bytes_max=10_000).events) <= 11


@pytest.mark.parametrize(
    "cursor",
    [
        stream_cursor(1, {0: 0}),
        stream_cursor(1, {0: 0, 1: 0, 7: 0}),
        view_cursor(1, 1),
        "",
        "nonsense",
        "Latest",
    ],
)
def test_a_cursor_that_cannot_be_of_this_stream_is_refused(cursor: str) -> None:
    """Missing, unknown or future partitions and other kinds of text are `BadCursor`, not a guess."""
    log = FakeLog()
    log.write(0, *range(10))
    with pytest.raises(BadCursor):
        locate(cursor, extent(log, "s"))


def test_a_cursor_ahead_of_the_end_is_refused() -> None:
    """The end itself is a position."""
    log = FakeLog()
    log.write(0, *range(10))
    end = log.ends("s")[0]
    assert locate(stream_cursor(1, {0: end, 1: 0}), extent(log, "s")) == ({0: end, 1: 0}, None)
    with pytest.raises(BadCursor):
        locate(stream_cursor(1, {0: end + 1, 1: 0}), extent(log, "s"))


def encode_raw(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode()


@given(st.text() | st.binary().map(encode_raw))
def test_any_text_as_a_cursor_is_a_place_or_refused(text: str) -> None:
    """No text makes the server fail."""
    log = FakeLog()
    try:
        locate(text, extent(log, "s"))
    except BadCursor:
        return


def test_a_deeply_nested_cursor_is_refused() -> None:
    """A cursor that would exhaust the decoder's stack is `BadCursor` like any other invalid text."""
    with pytest.raises(BadCursor):
        locate(encode_raw(b"\x94\xa1s\x01\x80" + b"\x91" * 10_000), extent(FakeLog(), "s"))


def test_the_cursor_of_the_widest_stream_can_be_read_back() -> None:
    """1,024 partitions with large offsets fit in a cursor that is accepted."""
    cursor = StreamCursor(2**48 - 1, dict.fromkeys(range(1024), 2**63 - 1))
    assert decode(encode(cursor)) == cursor


def test_a_column_that_the_log_does_not_have_yet_is_null_in_a_filter() -> None:
    """The class of an event has a new field, and the process that writes the stream has not started yet."""
    log = filled([(0, 2, 0)])
    batches = list(log.read("s", 0, 0, log.ends("s")[0]))

    def rows(where: str) -> list[bytes | None]:
        return [row for batch in batches for row in row_filter.through(where, None).rows(batch)]

    row_filter = base_filter("s", pa.schema([*event_schema(Reading), ("added", pa.string())]))
    assert rows("added IS NULL AND n = 1") == [None, b'{"n":1,"text":"","added":null}']
    assert rows("added = 'x'") == [None, None]


class RecreatedLog(FakeLog):
    """A log whose stream is recreated while its extent is read."""

    is_stable = True

    def starts(self, stream: str) -> Mapping[int, int]:
        starts = super().starts(stream)
        if not self.is_stable:
            self.is_stable = True
            self.remake()
        return starts


def test_the_extent_of_a_stream_is_of_one_generation() -> None:
    """Or a cursor of the stream that is gone would be refused as ahead of the end, and not answered by a reset."""
    log = RecreatedLog(1)
    log.write(0, 1, 2, 3)
    before = extent(log, "s")
    cursor = stream_cursor(before.generation, before.ends)
    log.is_stable = False
    now = extent(log, "s")
    assert (now.generation, now.ends) == (log.generation("s"), {0: 0})
    assert locate(cursor, now) == ({0: 0}, "the stream was recreated")


@pytest.mark.parametrize("gap", [0, 1, LONG])
def test_looking_back_passes_gaps(gap: int) -> None:
    """It finds so many events, and all rows of a partition that has fewer; a gap is not read, so it is no bound."""
    log = FakeLog(1)
    for number in range(20):
        log.skip(0, gap)
        log.write(0, number)
        log.tick(0)
    log.skip(0, gap)
    end = log.ends("s")[0]

    def found_events(events: int, rows_max: int) -> int:
        start = look_back(log, "s", 0, (0, end), events, rows_max=rows_max)
        return sum(batch.column("_kind").to_pylist().count(0) for batch in log.read("s", 0, start, end))

    assert [found_events(events, 1_000) >= events for events in (1, 5, 20)] == [True] * 3
    assert found_events(21, 1_000) == 20
    assert 3 <= found_events(20, 6) < 20


def test_a_piece_passes_a_gap_in_few_reads() -> None:
    log = FakeLog(1)
    log.write(0, 1)
    log.skip(0, 100_000)
    log.write(0, 2)
    place, received = {0: log.offsets("s", 0)[0]}, list[int]()
    while place != log.ends("s"):
        run = read(log, place, events_max=1)
        place = run.after
        received += events(run)
    assert (received, log.reads < 20) == ([1, 2], True)
