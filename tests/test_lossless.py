"""Rows as JSON and back: values that JSON cannot express are stored beside it."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.columns import json_rows
from penstock.core.errors import ViewError
from penstock.core.lossless import beyond_json, table_of, with_schema

UTC = pa.timestamp("us", "UTC")
FLOATS = st.none() | st.floats(width=64)
MICROS = st.none() | st.integers(-(2**62), 2**62)
DAYS = st.none() | st.integers(-(2**31), 2**31 - 1)
SHAPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float64(): FLOATS,
    pa.float32(): st.none() | st.floats(width=32),
    UTC: MICROS,
    pa.timestamp("us"): MICROS,
    pa.date32(): DAYS,
    pa.decimal128(38, 18): st.none() | st.decimals(-(10**19), 10**19, places=18),
    pa.int64(): st.none() | st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.none() | st.text(),
    pa.binary(): st.none() | st.binary(),
    pa.bool_(): st.none() | st.booleans(),
    pa.list_(pa.float64()): st.none() | st.lists(FLOATS, max_size=3),
    pa.list_(pa.date32()): st.none() | st.lists(DAYS, max_size=3),
    pa.map_(pa.string(), pa.float64()): st.none() | st.dictionaries(st.text(max_size=3), FLOATS, max_size=3),
    pa.struct([("x", pa.float64()), ("at", UTC)]): st.none() | st.fixed_dictionaries({"x": FLOATS, "at": MICROS}),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(SHAPES)), min_size=1, max_size=4))
    count = draw(st.integers(0, 4))
    columns = {}
    for number, kind in enumerate(kinds):
        values = [draw(SHAPES[kind]) for _ in range(count)]
        if pa.types.is_map(kind):
            values = [None if value is None else list(value.items()) for value in values]
        columns[f"c{number}"] = pa.array(values, kind)
    return pa.table(columns)


def plain(table: pa.Table) -> list[str]:
    """Return the rows as text in which NaN equals NaN, and times of any year are numbers."""
    return [repr(_numbers(column).to_pylist()) for column in table.combine_chunks().columns]


def _numbers(column: Any) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if kind == pa.list_(pa.date32()):
        return column.cast(pa.list_(pa.int32()))
    if pa.types.is_struct(kind):
        return column.cast(pa.struct([("x", pa.float64()), ("at", pa.int64())]))
    return column


@settings(deadline=None, max_examples=150)
@given(tables())
def test_every_value_comes_back_as_it_was(table: pa.Table) -> None:
    back = table_of(json_rows(table), beyond_json(table), table.schema, "v")
    assert back.schema == table.schema
    assert plain(back) == plain(table)


def test_only_rows_that_json_cannot_say_are_kept_twice() -> None:
    table = pa.table({"n": [1.0, math.nan, None, math.inf], "d": [Decimal("0.10")] * 4})
    assert list(beyond_json(table)) == [1, 3]
    assert beyond_json(table.slice(0, 1)) == {}


def test_dates_outside_the_years_that_json_can_say_come_back() -> None:
    days = pa.array([-719_163, -719_162, 0, None, 2_932_896, 2_932_897, 2**31 - 1], pa.int32())
    table = pa.table({"k": list("abcdefg"), "day": days.cast(pa.date32())})
    exact = beyond_json(table)
    assert list(exact) == [0, 5, 6]
    back = table_of(json_rows(table), exact, table.schema, "v")
    assert back["day"].cast(pa.int32()).to_pylist() == days.to_pylist()


def test_a_row_of_another_query_is_refused_and_never_read_as_null() -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    for row in (b'{"k":"a","n":"many"}', b'{"k":"a","n":1.5}', b'{"k":3,"n":1}'):
        with pytest.raises(ViewError, match="do not fit its columns"):
            table_of([row], {}, schema, "v")
    times = pa.schema([("at", UTC)])
    with pytest.raises(ViewError, match="penstock rebuild FILE --view v"):
        table_of([b'{"at":"noon"}'], {}, times, "v")


ROW = pa.schema([("whole", pa.int64()), ("x", pa.float64()), ("at", pa.struct([("x", pa.float64())]))])


def exact_row(table: pa.Table) -> bytes:
    (data,) = beyond_json(table).values()
    return data


def test_an_exact_row_is_read_by_name_and_integers_are_read_as_floats() -> None:
    data = exact_row(pa.Table.from_pylist([{"whole": 3, "x": math.nan, "at": {"x": 0.5}}], ROW))
    now = pa.schema([("at", ROW.field("at").type), ("new", pa.string()), ("whole", pa.float64())])
    assert table_of([b"{}"], {0: data}, now, "v").to_pylist() == [{"at": {"x": 0.5}, "new": None, "whole": 3.0}]


def test_details_of_a_type_that_do_not_affect_values_do_not_matter() -> None:
    strict = pa.struct([pa.field("x", pa.float64(), nullable=False)])
    written = pa.schema([pa.field("at", strict), pa.field("l", pa.list_(pa.field("element", pa.float64(), False)))])
    data = exact_row(pa.Table.from_pylist([{"at": {"x": math.inf}, "l": [1.0]}], written))
    now = pa.schema([("at", pa.struct([("x", pa.float64())])), ("l", pa.list_(pa.float64()))])
    assert table_of([b"{}"], {0: data}, now, "v").to_pylist() == [{"at": {"x": math.inf}, "l": [1.0]}]


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.string(), pa.float32(), pa.struct([("y", pa.float64())]), pa.list_(pa.float64())]
)
def test_an_exact_row_with_another_type_is_refused(kind: pa.DataType) -> None:
    data = exact_row(pa.table({"x": [math.nan]}))
    with pytest.raises(ViewError, match="its column x was double and is now"):
        table_of([b"{}"], {0: data}, pa.schema([("x", kind)]), "v")


@settings(deadline=None, max_examples=100)
@given(tables())
def test_a_row_from_before_it_had_a_schema_gets_the_same_bytes_as_a_new_one(table: pa.Table) -> None:
    for place, data in beyond_json(table).items():
        bare = table.combine_chunks().to_batches()[0].slice(place, 1).serialize().to_pybytes()
        assert data.endswith(bare)
        assert with_schema(bare, table.schema) == data
        assert with_schema(data, pa.schema([])) == data
