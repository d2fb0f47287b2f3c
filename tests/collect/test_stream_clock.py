"""The progress of time in a stream: by its events, by ticks, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Event
from penstock.collect.stream_clock import StreamClock
from penstock.collect.writer import Writer, WriteTarget
from penstock.core.contracts import StreamSpec
from penstock.core.schema import KIND_TICK, event_schema
from penstock.core.times import to_micros
from penstock.queue import EmbeddedLog
from tests.clocks import ManualClock
from tests.holes import holes

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
S = timedelta(seconds=1)


class Fix(Event, time="at"):
    at: datetime | None
    car: str = "a"


@dataclass
class Posted:
    events: list[Fix]
    key: str | None = None
    indexes: None = None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    embedded_log = EmbeddedLog(tmp_path)
    embedded_log.declare(StreamSpec("fixes", event_schema(Fix), 2))
    yield embedded_log
    embedded_log.close()


class Stream:
    """A writer whose clock is set by hand, in seconds after noon; event times are in seconds after eleven."""

    def __init__(self, log: EmbeddedLog, start: float = 0) -> None:
        self.clock = ManualClock()
        self.clock.time = NOON + start * S
        self.stream_clock = StreamClock("at", to_micros(self.clock.time))
        self.log, self.writer = log, Writer(WriteTarget("fixes", Fix, "car", 2), log, self.clock, self.stream_clock)

    def post(self, at: float, *times: float | None) -> None:
        self.clock.time = NOON + at * S
        events = [Fix(at=None if time is None else NOON + (time - 3600) * S) for time in times]
        self.writer.commit([Posted(events)])

    def tick(self, at: float, event_time: float | None) -> None:
        self.writer.tick(NOON + at * S, None if event_time is None else NOON + (event_time - 3600) * S)

    def at(self, now: float) -> float | None:
        clock = self.stream_clock.stream_time.clock(to_micros(NOON + now * S))
        return None if clock is None else (clock - to_micros(NOON)) / 1e6 + 3600


def test_event_time_goes_on_by_the_clock_from_the_newest_event(log: EmbeddedLog) -> None:
    stream = Stream(log)
    assert stream.at(5) is None  # it never had an event
    stream.post(10, 100, 90)
    assert (stream.at(10), stream.at(25)) == (100, 115)
    stream.post(20, 50)  # an older event only shows that the stream is not silent
    assert stream.at(25) == 115
    assert stream.stream_clock.stream_time.came == to_micros(NOON + 20 * S)
    stream.post(30, 112, None)
    assert stream.at(30) == 112
    assert stream.stream_clock.stream_time.skew == to_micros(NOON + 30 * S) - to_micros(NOON + (112 - 3600) * S)


def test_a_tick_carries_the_event_time_that_it_is_told(log: EmbeddedLog) -> None:
    stream = Stream(log)
    stream.post(0, 100)
    stream.tick(10, None)
    stream.tick(20, 120)
    ticks = pa.Table.from_batches(log.read("fixes", 0, 0, log.ends("fixes")[0]))  # the event is in the other partition
    assert ticks.column("_kind").to_pylist() == [KIND_TICK, KIND_TICK]
    assert ticks.column("at").to_pylist() == [None, NOON + (120 - 3600) * S]
    assert stream.stream_clock.stream_time.event_time == to_micros(NOON + (120 - 3600) * S)
    assert stream.at(30) == 130  # from the event on, not from the tick


def test_after_a_restart_the_time_that_nobody_was_there_does_not_count(log: EmbeddedLog) -> None:
    before = Stream(log)
    before.post(0, 100, 80)
    before.tick(10, 110)
    after = Stream(log, start=1000)
    assert (after.at(1000), after.at(1007)) == (100, 107)
    assert after.stream_clock.stream_time.event_time == to_micros(NOON + (110 - 3600) * S)
    assert after.stream_clock.stream_time.came == to_micros(NOON + 1000 * S)


def test_after_a_restart_with_nothing_but_ticks_at_the_end_the_last_of_them_stands_for_the_events(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Stream(log)
    before.post(0, 100)
    before.tick(10, 110)
    before.tick(20, 120)
    monkeypatch.setattr("penstock.collect.writer.TAIL_ROWS", 1)
    assert Stream(log, start=1000).at(1003) == 123


def test_after_a_restart_a_long_gap_at_the_end_hides_no_time(tmp_path: Path) -> None:
    """Ingest times go on to rise, though the clock was set back, and event time is that of the rows before the gap."""
    log = EmbeddedLog(tmp_path, offsets=holes({0: 2_000, 2_001: 5_000}))
    log.declare(StreamSpec("fixes", event_schema(Fix), 2))
    Stream(log).post(100, 110)
    after = Stream(log, start=50)
    assert after.stream_clock.stream_time.event_time == to_micros(NOON + (110 - 3600) * S)
    after.post(50, 115)
    ends = log.ends("fixes")
    rows = [batch for partition, end in ends.items() for batch in log.read("fixes", partition, 0, end)]
    first, second = (time for batch in rows for time in batch.column("_ingest_time").to_pylist())
    assert NOON + 100 * S == first < second
    log.close()
