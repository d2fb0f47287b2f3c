"""Events come out of columns as they went in: every type, with nulls and without, any slice, in parts of any size."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import EpochMillis, Event, Record
from penstock.core import arrays
from penstock.core.columns import to_batch
from penstock.core.schema import INT_MAX, INT_MIN
from penstock.core.times import from_micros, times, to_micros
from penstock.handlers.rows import to_events

TIMES = st.datetimes(timezones=st.just(UTC))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(Record):
    x: float
    at: datetime | None = None
    tags: list[str] = []  # noqa: RUF012  # msgspec gives each instance its own


class Every(Event):
    text: str
    whole: int
    real: float
    yes: bool
    data: bytes
    at: datetime
    day: date
    money: Decimal
    id: UUID
    colour: Colour
    side: Literal["left", "right"]
    millis: EpochMillis
    point: Point
    points: list[Point]
    named: dict[str, int]
    perhaps: int | None = None
    sometime: datetime | None = None
    someone: UUID | None = None
    nowhere: Point | None = None


POINTS = st.builds(
    Point, x=st.floats(allow_nan=False), at=st.none() | TIMES, tags=st.lists(st.text(max_size=3), max_size=2)
)
EVENTS = st.builds(
    Every,
    text=st.text(max_size=5),
    whole=st.integers(INT_MIN, INT_MAX),
    real=st.floats(allow_nan=False),
    yes=st.booleans(),
    data=st.binary(max_size=5),
    at=TIMES,
    day=st.dates(),
    money=st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100),
    id=st.uuids(),
    colour=st.sampled_from(Colour),
    side=st.sampled_from(["left", "right"]),
    millis=TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
    point=POINTS,
    points=st.lists(POINTS, max_size=2),
    named=st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
    perhaps=st.none() | st.integers(-9, 9),
    sometime=st.none() | TIMES,
    someone=st.none() | st.uuids(),
    nowhere=st.none() | POINTS,
)


def read(events: list[Every], start: int = 0) -> list[Any]:
    nothing: list[str | None] = [None] * len(events)
    batch = to_batch(Every, events, ids=nothing, keys=nothing, now=datetime.now(UTC)).slice(start)
    return to_events(Every, batch)


@settings(deadline=None, print_blob=True)
@given(st.lists(EVENTS, max_size=6), st.integers(0, 3), st.integers(1, 7))
def test_an_event_comes_out_as_it_went_in(events: list[Any], start: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_STEP", step)
        copies = read(events, start)
    assert [msgspec.structs.asdict(event) for event in copies] == [
        msgspec.structs.asdict(event) for event in events[start:]
    ]
    assert all(isinstance(event, Every) and repr(event).startswith("Every(") for event in copies)


class At(Event):
    at: datetime


@settings(deadline=None, max_examples=500)
@given(st.lists(TIMES, min_size=1, max_size=5))
@example([datetime(2041, 5, 10, 21, 9, 45, 999_999, UTC)])
@example([datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_a_time_keeps_its_microsecond(times: list[datetime]) -> None:
    nothing: list[str | None] = [None] * len(times)
    batch = to_batch(At, [At(at=time) for time in times], ids=nothing, keys=nothing, now=times[0])
    instants = [event.at for event in to_events(At, batch)]
    assert instants == times
    assert [from_micros(to_micros(time)) for time in times] == times
    assert all(time.utcoffset() == timedelta(0) for time in instants)


@settings(deadline=None, max_examples=500)
@given(st.lists(st.integers(1 - 2**51, 2**51 - 1), min_size=1, max_size=20))
@example([1 - 2**51, -1_000_001, -1_000_000, -999_999, -1, 0, 1, 999_999, 2**51 - 1])
def test_times_made_all_at_once_are_those_made_one_by_one(micros: list[int]) -> None:
    instants = list(times(pa.array(micros, pa.timestamp("us", "UTC"))))
    assert instants == list(map(from_micros, micros))
    assert all(time.tzinfo is UTC for time in instants)
