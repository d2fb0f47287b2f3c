"""Pieces of a stream: one order over partitions, and positions that continue each other."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor import StreamCursor, decode, encode, stream_cursor, view_cursor
from penstock.errors import BadCursor
from penstock.schema import event_schema
from penstock.serve.channels.lens import NOTHING, lens_on
from penstock.serve.channels.pieces import Offsets, Piece, extent, locate, read_piece
from tests.serve.fakes import FakeLog, Reading

MANY = 1_000_000
writes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 5)), max_size=25
)  # partition, events (0 for a tick), ingest time


def filled(plan: list[tuple[int, int, int]]) -> FakeLog:
    log, number = FakeLog(3), 0
    for partition, count, at in plan:
        if count == 0:
            log.tick(partition, at)
        else:
            log.write(partition, *range(number, number + count), at_s=at)
            number += count
    return log


def events(piece: Piece) -> list[int]:
    return [json.loads(event or b"")["n"] for event in piece.rows(NOTHING)]


def read(log: FakeLog, start: Offsets, events_max: int = MANY, bytes_max: int = MANY) -> Piece:
    return read_piece(log, "s", start, dict(log.ends("s")), events_max=events_max, bytes_max=bytes_max)


@given(writes, st.integers(1, 7), st.sampled_from([1, 60, MANY]))
def test_pieces_that_follow_each_other_give_every_event_once(
    plan: list[tuple[int, int, int]], events_max: int, bytes_max: int
) -> None:
    """However small the pieces, together they hold each event once, in order of offset inside each partition."""
    log = filled(plan)
    place, found, sizes = dict(log.starts("s")), [], []
    while place != log.ends("s"):
        piece = read(log, place, events_max, bytes_max)
        assert piece.after != place
        place = piece.after
        found += events(piece)
        sizes.append(len(piece.events))
    total = sum(count for _, count, _ in plan)
    assert sorted(found) == list(range(total))
    assert max(sizes, default=0) <= events_max
    home, number = {}, 0
    for partition, count, _ in plan:
        for each in range(number, number + count):
            home[each] = partition
        number += count
    for partition in range(3):
        own = [each for each in found if home[each] == partition]
        assert own == sorted(own)


@given(writes, st.integers(1, 7), st.sampled_from([1, 60, MANY]))
def test_events_are_ordered_by_time_then_partition(
    plan: list[tuple[int, int, int]], events_max: int, bytes_max: int
) -> None:
    """If time does not go back inside a partition, the order is that of (ingest time, partition, offset), and the size
    of the pieces does not change it."""
    plan = sorted(plan, key=lambda each: each[2])
    expected, number = [], 0
    for partition, count, at in plan:
        for each in range(number, number + count):
            expected.append((at, partition, each))
        number += count
    log = filled(plan)
    place, found = dict(log.starts("s")), list[int]()
    while place != log.ends("s"):
        piece = read(log, place, events_max, bytes_max)
        place = piece.after
        found += events(piece)
    assert found == [each for _, _, each in sorted(expected)]


def test_ticks_are_passed_over_but_counted() -> None:
    """A tick is no event, and the position after a piece is past it."""
    log = FakeLog(1)
    log.tick(0)
    log.write(0, 1)
    log.tick(0)
    piece = read(log, {0: 0})
    assert events(piece) == [1]
    assert piece.after == {0: 3}


def test_an_event_has_no_system_columns() -> None:
    """A reader sees the fields of the event and nothing of ours."""
    log = FakeLog(1)
    log.write(0, 1, text="x")
    assert json.loads(read(log, {0: 0}).rows(NOTHING)[0] or b"") == {"n": 1, "text": "x"}


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
        stream_cursor(1, {0: 11, 1: 0}),
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
    """A cursor made to exhaust the decoder's stack is `BadCursor` like any other nonsense."""
    with pytest.raises(BadCursor):
        locate(encode_raw(b"\x94\xa1s\x01\x80" + b"\x91" * 10_000), extent(FakeLog(), "s"))


def test_the_cursor_of_the_widest_stream_can_be_read_back() -> None:
    """1,024 partitions with large offsets fit in a cursor that we take back."""
    cursor = StreamCursor(2**48 - 1, dict.fromkeys(range(1024), 2**63 - 1))
    assert decode(encode(cursor)) == cursor


def test_a_column_that_the_log_does_not_have_yet_is_null_in_a_filter() -> None:
    """The class of an event has a new field, and the process that writes the stream has not started yet."""
    log = filled([(0, 2, 0)])
    (batch,) = log.read("s", 0, 0, 2)
    lens = lens_on("s", pa.schema([*event_schema(Reading), ("added", pa.string())]))
    assert lens.through("added IS NULL AND n = 1", None).rows(batch) == [None, b'{"n":1,"text":"","added":null}']
    assert lens.through("added = 'x'", None).rows(batch) == [None, None]
