"""The JSON of a row: one text for each value, whatever its batch."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import columns
from penstock.core.columns import event_rows, from_json_rows, json_rows, tick_batch, to_batch
from penstock.core.schema import Event, event_schema

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
    "places": (
        pa.list_(pa.struct([("name", pa.string()), ("days", pa.list_(pa.date32()))])),
        st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries(
                {
                    "name": st.none() | st.text(max_size=3),
                    "days": st.none() | st.lists(st.none() | st.dates(), max_size=2),
                }
            ),
            max_size=3,
        ),
    ),
    "numbered": (
        pa.map_(pa.int32(), pa.list_(pa.binary())),
        st.none()
        | st.dictionaries(st.integers(0, 9), st.none() | st.lists(st.binary(max_size=3), max_size=2), max_size=3),
    ),
    "took": (
        pa.duration("us"),
        st.none() | st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    ),
    "o'clock": (pa.time64("us"), st.none() | st.times()),
    "small": (pa.float32(), st.none() | st.floats(width=32)),
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


AS_SENT = ["902.51", "0", "100", "-0.5", "0.000000000000000001", "12345678901234567890.123456789012345678", None]


@pytest.mark.parametrize("scale", [18, 22])
def test_decimals_are_written_as_they_were_sent_and_not_to_the_scale_of_their_column(scale: int) -> None:
    values = [None if text is None else Decimal(text) for text in AS_SENT]
    kind = pa.decimal256(60, scale)
    for sent, chosen in ((AS_SENT, values), (["902.51", None], [Decimal("902.51"), None])):
        table = pa.table(
            {
                "plain": pa.array(chosen, kind),
                "record": pa.array([{"d": number} for number in chosen], pa.struct([("d", kind)])),
                "list": pa.array([[number] for number in chosen], pa.list_(kind)),
                "map": pa.array(
                    [[("a", {"d": number})] for number in chosen], pa.map_(pa.string(), pa.struct([("d", kind)]))
                ),
            }
        )
        rows = [msgspec.json.decode(row) for row in json_rows(table)]
        assert [row["plain"] for row in rows] == sent
        assert [row["record"]["d"] for row in rows] == sent
        assert [row["list"] for row in rows] == [[number] for number in sent]
        assert [row["map"]["a"]["d"] for row in rows] == sent


def test_decimals_of_a_scale_that_a_view_chose_keep_it() -> None:
    for scale, expected in ((0, ["100", "0"]), (2, ["100.00", "0.00"]), (8, ["100.00000000", "0.00000000"])):
        table = pa.table({"d": pa.array([Decimal(100), Decimal(0)], pa.decimal128(20, scale))})
        assert [msgspec.json.decode(row)["d"] for row in json_rows(table)] == expected


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


def _finite(value: Any) -> Any:
    """Replace values that JSON cannot express."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(deadline=None, print_blob=True)
@given(ROWS, st.lists(st.sampled_from(sorted(COLUMNS)), unique=True))
def test_rows_that_were_written_are_read_as_they_were_but_for_numbers_that_json_has_not(
    rows: list[Any], names: list[str]
) -> None:
    batch = pa.RecordBatch.from_pylist([{name: _finite(row[name]) for name in row} for row in rows], schema=SCHEMA)
    written = json_rows(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    read = from_json_rows(written, SCHEMA)
    read.validate(full=True)
    assert read.equals(batch, check_metadata=True)
    chosen = from_json_rows(written, SCHEMA, names)
    assert chosen.num_rows == len(rows)
    assert chosen.equals(batch.select(names))


def test_times_of_every_unit_and_zone_are_read_as_they_were() -> None:
    noon = datetime(2024, 7, 1, 12, 0, 0, 125_000, tzinfo=UTC)
    for kind in (
        pa.timestamp("ms", "UTC"),
        pa.timestamp("ns", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("us"),
    ):
        given = noon if kind.tz else noon.replace(tzinfo=None)
        batch = pa.RecordBatch.from_arrays([pa.array([given, None], kind)], ["t"])
        assert from_json_rows(json_rows(batch), batch.schema).equals(batch)


def test_what_is_missing_or_cannot_be_said_is_null() -> None:
    schema = pa.schema([("t", UTC_TIME), ("n", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    rows = [b'{"t":"10000-01-01T00:00:00Z","n":1}', b'{"t":"2024-01-01T00:00:00Z","s":{"a":5},"other":[1]}']
    assert from_json_rows(rows, schema).to_pylist() == [
        {"t": None, "n": 1, "s": None},
        {"t": datetime(2024, 1, 1, tzinfo=UTC), "n": None, "s": {"a": 5, "b": None}},
    ]


def test_columns_that_are_never_null_stay_so() -> None:
    start = pa.field("start", UTC_TIME, nullable=False)
    schema = pa.schema(
        [pa.field("window", pa.struct([start]), nullable=False), pa.field("n", pa.int64(), nullable=False)]
    )
    rows = [b'{"window":{"start":"2024-01-01T00:00:00Z"},"n":1}']
    assert from_json_rows(rows, schema).schema.equals(schema)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "text"), (pa.int64(), 1.5), (pa.int8(), 300), (pa.int64(), 2**64), (pa.string(), 1),
        (pa.float64(), "1.5"), (pa.date32(), "soon"), (pa.decimal128(5, 2), "12345678.9"), (pa.bool_(), 1),
        (pa.timestamp("us", "UTC"), 5), (pa.list_(pa.int64()), ["a"]), (pa.struct([("a", pa.int64())]), [1]),
        (pa.list_(pa.decimal128(5, 2)), ["x"]), (pa.map_(pa.string(), pa.int64()), {"a": "b"}),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_column_is_null_and_the_rest_is_read(kind: pa.DataType, value: object) -> None:
    """Rows outlive a change of their query, and of the types of its columns."""
    schema = pa.schema([("changed", kind), ("same", pa.int64())])
    rows = [json.dumps({"changed": value, "same": 1}).encode(), b'{"same":2}']
    assert from_json_rows(rows, schema).to_pylist() == [{"changed": None, "same": 1}, {"changed": None, "same": 2}]


def test_times_that_python_has_not_are_text_or_null_at_any_depth() -> None:
    """Python's dates end with the year 9999, Arrow's text about 22,000 years later."""
    days = pa.array([2**31 - 1, None, 3_000_000, 0], pa.int32()).cast(pa.date32())
    text = [None, None, "10183-09-21", "1970-01-01"]
    offsets = pa.array([0, None, 2, 4], pa.int32())
    listed = pa.ListArray.from_arrays(offsets, days)
    mapped = pa.MapArray.from_arrays(offsets, pa.array(list("abcd")), days)
    sized = pa.FixedSizeListArray.from_arrays(days, 2)

    def seen(column: pa.Array) -> list[object]:
        return [msgspec.json.decode(row)["x"] for row in json_rows(pa.table({"x": column}))]

    assert seen(days) == text
    assert seen(listed) == [text[:2], None, text[2:]]
    assert seen(listed.slice(1)) == [None, text[2:]]
    assert seen(mapped) == [{"a": None, "b": None}, None, {"c": text[2], "d": text[3]}]
    assert seen(mapped.slice(2)) == [{"c": text[2], "d": text[3]}]
    assert seen(sized) == [text[:2], text[2:]]
    assert seen(pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), listed)) == [[text[:2], None, text[2:]]]
    assert seen(pa.array([2**63 - 1], pa.timestamp("us", "UTC"))) == [None]


@pytest.mark.parametrize("names", [[f"c{number}" for number in range(2_000)], ["x" * 20_000]], ids=["many", "long"])
def test_names_that_a_client_may_choose_are_not_kept_if_they_are_large(names: list[str]) -> None:
    columns.forget_json_objects()
    table = pa.table({name: [1] for name in names})
    assert [msgspec.json.decode(row) for row in json_rows(table)] == [dict.fromkeys(names, 1)]
    nested = pa.table({"x": pa.StructArray.from_arrays([pa.array([1])] * len(names), names)})
    assert [msgspec.json.decode(row) for row in json_rows(nested)] == [{"x": dict.fromkeys(names, 1)}]
    assert columns._json_struct.cache_info().currsize == 1, "for the outer object of the second"
