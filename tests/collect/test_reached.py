"""How far time has come in a stream: by its events, by ticks, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock import Event
from penstock.collect.reached import Reached
from penstock.collect.writer import Target, Writer
from penstock.contracts import StreamSpec
from penstock.queue import EmbeddedLog
from penstock.rows import to_micros
from penstock.schema import KIND_TICK, event_schema
from tests.collect.fakes import ManualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
S = timedelta(seconds=1)


class Fix(Event, time="at"):
    at: datetime | None
    car: str = "a"


@dataclass
class Posted:
    events: list[Fix]
    key: str | None = None
    places: None = None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    made = EmbeddedLog(tmp_path)
    made.declare(StreamSpec("fixes", event_schema(Fix), 2))
    yield made
    made.close()


class Stream:
    """A writer whose clock is set by hand, in seconds after noon; event times are in seconds after eleven."""

    def __init__(self, log: EmbeddedLog, start: float = 0) -> None:
        self.clock = ManualClock()
        self.clock.time = NOON + start * S
        self.reached = Reached("at", to_micros(self.clock.time))
        self.log, self.writer = log, Writer(Target("fixes", Fix, "car", 2), log, self.clock, self.reached)

    def post(self, at: float, *times: float | None) -> None:
        self.clock.time = NOON + at * S
        events = [Fix(at=None if each is None else NOON + (each - 3600) * S) for each in times]
        self.writer.commit([Posted(events)])

    def tick(self, at: float, told: float | None) -> None:
        self.writer.tick(NOON + at * S, None if told is None else NOON + (told - 3600) * S)

    def at(self, now: float) -> float | None:
        clock = self.reached.stand.clock(to_micros(NOON + now * S))
        return None if clock is None else (clock - to_micros(NOON)) / 1e6 + 3600


def test_event_time_goes_on_by_the_clock_from_the_newest_event(log: EmbeddedLog) -> None:
    stream = Stream(log)
    assert stream.at(5) is None  # it never had an event
    stream.post(10, 100, 90)
    assert (stream.at(10), stream.at(25)) == (100, 115)
    stream.post(20, 50)  # an older one changes nothing, but that the stream is not silent
    assert stream.at(25) == 115
    assert stream.reached.stand.came == to_micros(NOON + 20 * S)
    stream.post(30, 112, None)
    assert stream.at(30) == 112
    assert stream.reached.stand.skew == to_micros(NOON + 30 * S) - to_micros(NOON + (112 - 3600) * S)


def test_a_tick_carries_the_event_time_that_it_is_told(log: EmbeddedLog) -> None:
    stream = Stream(log)
    stream.post(0, 100)
    stream.tick(10, None)
    stream.tick(20, 120)
    (table,) = log.read("fixes", 0, 0, 2)  # the event is in the other partition
    assert table.column("_kind").to_pylist() == [KIND_TICK, KIND_TICK]
    assert table.column("at").to_pylist() == [None, NOON + (120 - 3600) * S]
    assert stream.reached.stand.told == to_micros(NOON + (120 - 3600) * S)
    assert stream.at(30) == 130  # from the event on, not from the tick


def test_after_a_restart_the_time_that_nobody_was_there_does_not_count(log: EmbeddedLog) -> None:
    before = Stream(log)
    before.post(0, 100, 80)
    before.tick(10, 110)
    after = Stream(log, start=1000)
    assert (after.at(1000), after.at(1007)) == (100, 107)
    assert after.reached.stand.told == to_micros(NOON + (110 - 3600) * S)
    assert after.reached.stand.came == to_micros(NOON + 1000 * S)


def test_after_a_restart_with_nothing_but_ticks_at_the_end_the_last_of_them_stands_for_the_events(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Stream(log)
    before.post(0, 100)
    before.tick(10, 110)
    before.tick(20, 120)
    monkeypatch.setattr("penstock.collect.writer.TAIL_ROWS", 1)
    assert Stream(log, start=1000).at(1003) == 123
