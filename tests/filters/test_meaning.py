"""The meaning of expressions: an expression, rows, and its value for each of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import BadExpression
from penstock.core.filters import compiled

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("ratio", pa.float64()),
        ("word", pa.string()),
        ("flag", pa.bool_()),
        ("place", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
        ("_id", pa.string()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"number": 1, "ratio": 2.5, "word": "one", "flag": True, "place": {"lat": 1.5, "name": "here"}},
    {"number": 2, "ratio": -1.0, "word": "", "flag": False, "place": {"lat": None, "name": None}},
    {},
]
BATCH = pa.RecordBatch.from_pylist(ROWS, SCHEMA)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("number = 1", [True, False, False]),
        ("number <> 1", [False, True, False]),
        ("number < 1.5", [True, False, False]),
        ("NOT number = 1", [False, True, False]),
        ("flag", [True, False, False]),
        ("flag OR number IS NULL", [True, False, True]),
        ("flag AND NULL", [False, False, False]),
        ("NOT (flag AND NULL)", [False, True, False]),
        ("number BETWEEN 1 AND 2", [True, True, False]),
        ("number IN (1, 3)", [True, False, False]),
        ("number NOT IN (1, 3)", [False, True, False]),
        ("number NOT IN (1, NULL)", [False, False, False]),
        ("number IN (1, 3, 5, 1.5)", [True, False, False]),
        ("number NOT IN (1, 3, 5, 1e40)", [False, True, False]),
        ("number NOT IN (1, 3, 5, NULL)", [False, False, False]),
        ("number NOT IN (3, 5, nullif(7, 7))", [False, False, False]),
        ("number NOT IN (3, 5, ratio, 2.5)", [True, True, False]),
        ("word NOT IN ('one', 'two', 'three')", [False, True, False]),
        ("ratio * 0 IN (5, 0, 7)", [True, True, False]),
        ("ratio * 0 IN (5, -0.0, 7)", [True, True, False]),
        ("word IS NOT NULL", [True, True, False]),
        ("place.lat > 1", [True, False, False]),
        ("place.lat IS NULL", [False, True, True]),
        ("ratio > number", [True, False, False]),
    ],
)
def test_a_condition_holds_where_sql_says_so(where: str, wanted: list[bool]) -> None:
    assert compiled(SCHEMA, where, None).mask(BATCH).to_pylist() == wanted


def test_columns_are_selected_named_and_kept() -> None:
    chosen = compiled(SCHEMA, None, 'word, place.lat, ratio AS "a b"', key=["number"])
    assert chosen.schema.names == ["number", "word", "lat", "a b"]
    assert chosen.columns == {"number", "word", "place", "ratio"}
    assert chosen.project(BATCH).to_pylist()[0] == {"number": 1, "word": "one", "lat": 1.5, "a b": 2.5}
    assert chosen.project(BATCH).schema == chosen.schema


def test_a_key_keeps_its_name_and_its_place() -> None:
    assert compiled(SCHEMA, None, "word, number AS n", key=["number"]).schema.names == ["number", "word", "n"]
    assert compiled(SCHEMA, None, "word, number", key=["number"]).schema.names == ["word", "number"]
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, None, "word, ratio AS number", key=["number"])
    assert refusal.value.position == 15


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("1 + 2 * 3 = 7", True),
        ("10 - 2 - 3 = 5", True),
        ("8 / 2 / 2 = 2", True),
        ("2 * 7 % 4 = 2", True),
        ("-2 + 3 = 1", True),
        ("- (2 + 3) * 2 = -10", True),
        ("1 + 1 BETWEEN 2 AND 1 + 2", True),
        ("'a' || 'b' = 'ab'", True),
        ("TRUE OR FALSE AND FALSE", True),
        ("(TRUE OR FALSE) AND FALSE", False),
        ("NOT TRUE OR TRUE", True),
        ("NOT 1 = 2", True),
        ("NOT 1 IN (1)", False),
        ("NOT 'a' LIKE 'b'", True),
        ("NOT NULL IS NULL", False),
        ("1 < 2 = TRUE", True),
    ],
)
def test_operators_bind_as_in_sql(where: str, wanted: bool) -> None:
    assert compiled(SCHEMA, where, None).mask(BATCH).to_pylist() == [wanted] * 3


@pytest.mark.parametrize(
    ("select", "type"),
    [
        ("number + 1", pa.int64()),
        ("number / 1", pa.float64()),
        ("number + ratio", pa.float64()),
        ("lower(word)", pa.string()),
        ("number > 1", pa.bool_()),
        ("coalesce(number, 1.5)", pa.float64()),
        ("coalesce(number, 1)", pa.int64()),
        ("NULL", pa.null()),
    ],
)
def test_what_is_computed_has_a_type(select: str, type: pa.DataType) -> None:
    assert compiled(SCHEMA, None, f"{select} AS made").schema.field("made").type == type


def test_a_column_of_nulls_is_null_everywhere() -> None:
    schema = pa.schema([("none", pa.null()), ("number", pa.int64())])
    batch = pa.RecordBatch.from_pylist([{"number": 1}, {}], schema)
    for where in ("none = 1", "none + 1 IN (1, 2, 3)", "number IN (none, 2, 3, 4)", "lower(none) = 'a'", "none > none"):
        assert compiled(schema, where, None).mask(batch).to_pylist() == [False, False], where
    assert compiled(schema, "none IS NULL", None).mask(batch).to_pylist() == [True, True]


@pytest.mark.parametrize("select", ["ratio AS number", "number + 1 AS number", "flag, place.lat AS number"])
def test_nothing_else_is_called_like_the_key(select: str) -> None:
    """Rows of a view are distinguished by their keys, and deletes name them."""
    assert compiled(SCHEMA, None, "number AS number, word", key=["number"]).schema.names == ["number", "word"]
    with pytest.raises(BadExpression, match="'number' is a key column") as refusal:
        compiled(SCHEMA, None, select, key=["number"])
    assert (refusal.value.part, refusal.value.position) == ("select", select.index("number", len(select) - 6))


def test_without_texts_nothing_changes() -> None:
    everything = compiled(SCHEMA, None, None)
    assert everything.mask(BATCH).to_pylist() == [True, True, True]
    assert everything.project(BATCH) is BATCH
    assert everything.schema == SCHEMA


@pytest.mark.parametrize(
    ("where", "position"),
    [("numbr = 1", 0), ("flag AND word = 1", 16), ("place.lon = 1", 6), ("_id = 'a'", 0), ("flag AND", 5)],
)
def test_an_error_points_at_the_character(where: str, position: int) -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, where, None)
    assert (refusal.value.part, refusal.value.position) == ("where", position)
