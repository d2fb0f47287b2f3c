"""Every later step can store whatever the decoder accepts: no event may poison the group it is written with."""

from __future__ import annotations

import asyncio
import base64
from datetime import date, timedelta
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.collect.decode import BodyDecoder
from penstock.collect.writer import Writer, WriteTarget
from penstock.core.columns import event_rows
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from tests.clocks import ManualClock
from tests.collect.support import Posted, answered, body, opened
from tests.every_type import EveryType, Spot
from tests.memory_log import MemoryLog


class Everything(EveryType):
    size: Literal[1, 2]
    place: Spot | None = None
    tags: list[str] | None = None
    counts: dict[str, int] | None = None


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timedelta(minutes=minutes))
TIMES = st.tuples(st.datetimes(), OFFSETS).map(lambda pair: pair[0].isoformat() + _offset(pair[1]))
DECIMALS = st.decimals().map(str) | st.floats(allow_nan=False, allow_infinity=False) | st.integers()
PLACES = st.fixed_dictionaries(
    {"lat": st.floats(allow_nan=False, allow_infinity=False)},
    optional={"seen": st.lists(TIMES, max_size=2), "costs": st.dictionaries(st.text(max_size=3), DECIMALS, max_size=2)},
)
EVENTS = st.fixed_dictionaries(
    {
        "name": st.text(max_size=8),
        "at": TIMES,
        "number": st.integers(-(2**63), 2**63 - 1) | st.integers(),
        "share": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        "flag": st.booleans(),
        "data": st.binary(max_size=8).map(lambda data: base64.b64encode(data).decode()),
        "day": st.dates().map(date.isoformat),
        "price": DECIMALS,
        "code": st.uuids().map(str),
        "colour": st.sampled_from(["red", "blue"]),
        "size": st.sampled_from([1, 2]),
        "sent": st.integers(-62_135_596_800_000, 253_402_300_799_999) | st.integers(),
    },
    optional={
        "place": st.none() | PLACES,
        "tags": st.none() | st.lists(st.text(max_size=5), max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=3),
    },
)


def _offset(offset: timedelta) -> str:
    minutes = int(offset.total_seconds() // 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _stored(events: list[Any], key: str) -> list[bytes]:
    """Return the events as JSON, written to a log and read back."""
    log = MemoryLog()
    log.declare(StreamSpec("all", event_schema(Everything), 3))
    Writer(WriteTarget("all", Everything, key, 3), log, ManualClock()).commit([Posted(events)])
    return [
        row
        for partition, end in log.ends("all").items()
        for batch in log.read("all", partition, 0, end)
        for row in event_rows(batch)
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(EVENTS, max_size=4),
    st.sampled_from(["name", "at", "number", "flag", "price", "code", "colour", "size", "sent"]),
)
def test_an_accepted_event_of_any_type_can_be_written_placed_and_read_back(sent: list[Any], key: str) -> None:
    decoded = BodyDecoder(Everything, event_bytes_max=10_000, events_max=10).decode(body(sent))
    assert len(decoded.events) + len(decoded.rejections) == len(sent)
    assert len(_stored(list(decoded.events), key)) == len(decoded.events)


def test_the_generator_of_events_makes_many_that_are_accepted() -> None:
    accepted = rejected = 0

    @settings(deadline=None, database=None, max_examples=50, derandomize=True)
    @given(EVENTS)
    def count(event: Any) -> None:
        nonlocal accepted, rejected
        decoded = BodyDecoder(Everything, event_bytes_max=10_000, events_max=10).decode(body(event))
        accepted += len(decoded.events)
        rejected += len(decoded.rejections)

    count()
    assert accepted >= 5
    assert rejected >= 5


def test_a_time_at_the_edge_of_the_calendar_is_rejected_and_not_a_failure_of_the_server() -> None:
    async def send() -> None:
        event = {"fix_id": "x", "at": "9999-12-31T23:59:59-14:00", "vehicle": "v"}
        async with opened(MemoryLog()) as rig:
            assert (await answered(rig.endpoint, "fixes", body(event))).status == 422
            assert (await answered(rig.endpoint, "fixes", body(event | {"at": "9999-12-31T23:59:59Z"}))).status == 200

    asyncio.run(send())
