"""What an expression means: an expression, rows, and what it gives for each of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BadExpression
from penstock.filters import compiled

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
