"""The events that are late, and the windows that they missed: a table, and a naive reference over random events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Event
from penstock.analyze.lateness import Closing, Finder, TimedStream, late_batch
from penstock.core.columns import tick_batch, to_batch
from penstock.core.reading import with_offsets
from penstock.core.schema import Late, event_schema
from penstock.core.times import from_micros, to_micros

S, MINUTE = 1_000_000, 60_000_000
NOON = to_micros(datetime(2026, 1, 1, 12, tzinfo=UTC))
TUMBLING, SLIDING, SHIFTED = Closing(MINUTE, MINUTE), Closing(MINUTE, 20 * S), Closing(MINUTE, MINUTE, 10 * S)
SESSION, ALONE = Closing(30 * S), Closing(0)


@pytest.mark.parametrize(
    ("closing", "at", "watermark", "missed"),
    [
        (TUMBLING, 59, 59.9, []),  # its window is open
        (TUMBLING, 59, 60, [(0, 60)]),  # over as soon as the watermark reaches its end
        (TUMBLING, 60, 60, []),  # the first event of the next window
        (SLIDING, 59, 60, [(0, 60)]),  # and not (20, 80) and (40, 100), which contain it too
        (SLIDING, 59, 85, [(0, 60), (20, 80)]),
        (SLIDING, 59, 100, [(0, 60), (20, 80), (40, 100)]),
        (Closing(50 * S, 20 * S), 59, 70, [(20, 70)]),  # a step that does not divide the length: (0, 50) is before it
        (Closing(50 * S, 20 * S), 49, 70, [(0, 50), (20, 70)]),
        (SHIFTED, 5, 10, [(-50, 10)]),
        (SHIFTED, 10, 69, []),
        (SESSION, 20, 49, []),
        (SESSION, 20, 50, [(20, 50)]),  # alone, it would have ended there
    ],
)
def test_an_event_misses_the_windows_that_are_over(
    closing: Closing, at: float, watermark: float, missed: list[tuple[int, int]]
) -> None:
    now, then = NOON + round(watermark * S), NOON + round(at * S)
    assert [((a - NOON) // S, (b - NOON) // S) for a, b in closing.missed(then, now)] == missed
    assert closing.is_late(pa.array([then, None]), now).to_pylist() == [bool(missed), None]


class Fix(Event, id="fix", time="at"):
    fix: int
    at: datetime | None


class Rows:
    """A log of one stream: the batches of each partition."""

    def __init__(self, partitions: Mapping[int, list[pa.RecordBatch]]) -> None:
        self.partitions = partitions

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if self.partitions[partition]:
            for batch in pa.Table.from_batches(self.partitions[partition]).slice(start, end - start).to_batches():
                yield with_offsets(batch, start)
                start += batch.num_rows

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not needed")


def batch(times: list[int | None]) -> pa.RecordBatch:
    events = [Fix(fix=number, at=None if at is None else from_micros(at)) for number, at in enumerate(times)]
    ids: list[str | None] = [str(event.fix) for event in events]
    return to_batch(Fix, events, ids=ids, keys=ids, now=from_micros(NOON))


def tick(at: int) -> pa.RecordBatch:
    return tick_batch(event_schema(Fix), from_micros(NOON), "at", from_micros(at))


def positions(*offsets: int) -> str:
    return msgspec.json.encode([{f"fixes/{number}": offset for number, offset in enumerate(offsets)}]).decode()


def test_what_is_told_of_a_late_event_is_the_event_its_place_its_windows_and_by_how_much() -> None:
    log = Rows({0: [batch([NOON + 90 * S]), tick(NOON), batch([NOON + 5 * S])], 1: [batch([NOON + 61 * S])]})
    finder = Finder([TimedStream("fixes", "at")], [TUMBLING])
    (late,) = finder.find(log, positions(0, 0), positions(3, 1), NOON + 75 * S)
    assert (late.stream, late.partition, late.offset, late.id) == ("fixes", 0, 2, "0")
    assert (late.at, late.watermark, late.late_s) == (from_micros(NOON + 5 * S), from_micros(NOON + 75 * S), 15.0)
    assert [(window.start, window.end) for window in late.windows] == [(from_micros(NOON), from_micros(NOON + MINUTE))]
    assert msgspec.json.decode(late.event) == {"fix": 0, "at": "2026-01-01T12:00:05Z"}
    record_batch = late_batch("speeds", [late], from_micros(NOON))
    assert record_batch.schema == event_schema(Late)
    assert record_batch.column("_id").to_pylist() == ["speeds/fixes/0/2"]


def test_nothing_is_late_before_there_is_a_watermark_or_where_nothing_is_kept_by_time() -> None:
    log = Rows({0: [batch([NOON])]})
    reads = [TimedStream("fixes", "at")]
    assert list(Finder(reads, [TUMBLING]).find(log, "[]", positions(1), None)) == []
    assert list(Finder(reads, []).find(log, positions(0), positions(1), NOON + 9 * MINUTE)) == []


def test_what_is_late_for_no_window_is_late_by_its_own_time() -> None:
    (late,) = Finder([TimedStream("fixes", "at")], [ALONE]).find(
        Rows({0: [batch([NOON, NOON + 11 * S])]}), positions(0), positions(2), NOON + 10 * S
    )
    assert (late.offset, late.windows, late.late_s) == (0, [], 10.0)


def naive(closing: Closing, at: int, watermark: int) -> list[tuple[int, int]]:
    """Return every window near the time that contains the time and is over."""
    if not closing.step:
        return [(at, at + closing.span)] if at + closing.span <= watermark else []
    first = closing.origin + ((at - closing.span - closing.origin) // closing.step - 1) * closing.step
    starts = range(first, at + closing.step + 1, closing.step)
    return [(a, a + closing.span) for a in starts if a <= at < a + closing.span and a + closing.span <= watermark]


seconds = st.integers(-200, 200)
windows = st.builds(
    lambda step, more, origin: Closing((step + more) * S, step * S, origin * S),
    st.integers(1, 40), st.integers(0, 90), st.integers(-30, 30),
)  # fmt: skip
kinds = st.lists(windows | st.integers(0, 90).map(lambda gap: Closing(gap * S)), min_size=1, max_size=3)
rows = st.lists(st.tuples(st.booleans(), st.none() | seconds.map(lambda halves: halves * S // 2)), max_size=12)


@given(kinds, st.lists(rows, min_size=1, max_size=3), seconds, st.data())
@settings(max_examples=100)
def test_the_late_events_of_any_batch_are_those_of_a_naive_search(
    closings: list[Closing], partitions: list[list[tuple[bool, int | None]]], mark: int, data: st.DataObject
) -> None:
    watermark = mark * S
    log = Rows(
        {
            number: [batch([at]) if is_event else tick(at or 0) for is_event, at in mine]
            for number, mine in enumerate(partitions)
        }
    )
    starts = [data.draw(st.integers(0, len(mine))) for mine in partitions]
    late_events = Finder([TimedStream("fixes", "at")], closings).find(
        log, positions(*starts), positions(*map(len, partitions)), watermark
    )
    late_windows = {
        (late.partition, late.offset): [(to_micros(one.start), to_micros(one.end)) for one in late.windows]
        for late in late_events
    }
    expected = {}
    for number, mine in enumerate(partitions):
        for offset, (is_event, at) in list(enumerate(mine))[starts[number] :]:
            if is_event and at is not None and any(naive(closing, at, watermark) for closing in closings):
                spans = [closing for closing in closings if closing.span]
                expected[number, offset] = sorted({one for closing in spans for one in naive(closing, at, watermark)})
    assert late_windows == expected


def test_of_very_many_windows_the_newest_are_told() -> None:
    day_by_second = Closing(86_400 * S, S)
    missed = day_by_second.missed(NOON, NOON + 86_000 * S)
    assert len(missed) == 100
    assert missed[-1] == (NOON - 400 * S, NOON + 86_000 * S)
    assert missed[0][0] == missed[-1][0] - 99 * S


def test_times_before_1970_have_the_windows_that_they_are_in() -> None:
    at = to_micros(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC))
    assert TUMBLING.is_late(pa.array([at]), -1).to_pylist() == [False]
    assert TUMBLING.is_late(pa.array([at]), 0).to_pylist() == [True]
    assert from_micros(at) + timedelta(seconds=1) == from_micros(0)
