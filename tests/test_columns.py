"""The JSON of a row: one text for each value, whatever the batch it stands in."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columns import event_rows, json_rows, tick_batch, to_batch
from penstock.schema import Event, event_schema

TIMES = st.none() | st.datetimes(timezones=st.just(UTC)).map(
    lambda time: time.replace(microsecond=time.microsecond if time.second % 2 else 0)
)
UTC_TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", UTC_TIME), ("end", UTC_TIME)])
WINDOWS = st.none() | st.fixed_dictionaries({"start": TIMES, "end": TIMES})
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "at": (UTC_TIME, TIMES),
    "window": (WINDOW, WINDOWS),
    "nested": (pa.struct([("window", WINDOW)]), st.none() | st.fixed_dictionaries({"window": WINDOWS})),
    "times": (pa.list_(UTC_TIME), st.none() | st.lists(TIMES, max_size=3)),
    "map": (pa.map_(pa.string(), pa.int64()), st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9))),
    "text": (pa.string(), st.none() | st.text()),
    "whole": (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    "real": (pa.float64(), st.none() | st.floats()),
    "bytes": (pa.binary(), st.none() | st.binary()),
    "day": (pa.date32(), st.none() | st.dates()),
    "money": (pa.decimal128(20, 2), st.none() | st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100)),
    'a "quoted" name': (pa.bool_(), st.none() | st.booleans()),
    "count(1)": (pa.int32(), st.none() | st.integers(0, 9)),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: values for name, (_, values) in COLUMNS.items()}), max_size=6)


@settings(deadline=None, print_blob=True)
@given(ROWS, st.integers(1, 3))
def test_a_row_reads_as_msgspec_writes_its_values_however_the_table_is_cut(rows: list[Any], piece: int) -> None:
    batches = [
        pa.RecordBatch.from_pylist(rows[first : first + piece], schema=SCHEMA) for first in range(0, len(rows), piece)
    ]
    table = pa.Table.from_batches(batches, schema=SCHEMA)
    expected = [msgspec.json.encode(row) for row in table.to_pylist(maps_as_pydicts="strict")]
    assert json_rows(table) == expected
    assert json_rows(table.slice(1)) == expected[1:]


def test_chosen_columns_come_in_the_chosen_order() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    assert json_rows(batch, ["b", "a"]) == [b'{"b":"x","a":1}', b'{"b":null,"a":2}']
    assert json_rows(batch, []) == [b"{}", b"{}"]


def test_times_are_rfc_3339_in_utc_whatever_their_unit_and_zone() -> None:
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    for unit, zone in (("s", "UTC"), ("ms", "UTC"), ("ns", "UTC"), ("us", "Europe/Berlin")):
        column = pa.array([noon, None], pa.timestamp(unit, zone))
        assert json_rows(pa.table({"t": column})) == [b'{"t":"2024-07-01T12:00:00Z"}', b'{"t":null}']
    exact = pa.array([noon + timedelta(microseconds=50)], UTC_TIME)
    assert json_rows(pa.table({"t": exact})) == [b'{"t":"2024-07-01T12:00:00.000050Z"}']
    local = pa.array([datetime(2024, 7, 1, 12)], pa.timestamp("us"))
    assert json_rows(pa.table({"t": local})) == [b'{"t":"2024-07-01T12:00:00"}']


def test_what_json_cannot_say_has_one_spelling() -> None:
    table = pa.table(
        {
            "nan": pa.array([float("nan")]),
            "inf": pa.array([float("inf")]),
            "money": pa.array([Decimal("1.50")]),
            "bytes": pa.array([b"\x00\xff"]),
            "day": pa.array([date(2024, 2, 29)]),
        }
    )
    (row,) = json_rows(table)
    assert json.loads(row) == {"nan": None, "inf": None, "money": "1.50", "bytes": "AP8=", "day": "2024-02-29"}


class Reading(Event, id="name", time="at"):
    name: str
    at: datetime


def test_events_are_shown_without_ticks_and_system_columns() -> None:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    events = to_batch(Reading, [Reading(name="x", at=now)], ids=["x"], keys=[None], now=now)
    tick = tick_batch(event_schema(Reading), now, "at", now)
    both = pa.Table.from_batches([tick, events]).combine_chunks().to_batches()[0]
    assert event_rows(both) == [b'{"name":"x","at":"2024-01-01T00:00:00Z"}']
