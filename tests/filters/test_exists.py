"""`exists(list, name -> condition)`: whether an element of a list meets it, in SQL's three-valued logic."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import BadExpression
from penstock.core.filters import compiled
from penstock.core.filters.limits import CALLS_MAX, SLICE_ROWS

TOPIC = pa.struct([("urlkey", pa.string()), ("rank", pa.int64()), ("words", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [("n", pa.int64()), ("topics", pa.list_(TOPIC)), ("tags", pa.large_list(pa.string())),
     ("group", pa.struct([("topics", pa.list_(TOPIC))])), ("urlkey", pa.string())]
)  # fmt: skip


def topic(urlkey: str | None, rank: int | None = 0, *words: str) -> dict[str, Any]:
    return {"urlkey": urlkey, "rank": rank, "words": list(words)}


ROWS: list[dict[str, Any]] = [
    {"n": 0, "topics": [topic("python", 1, "snake", "code"), topic("sql", 9)], "tags": ["a", "b"], "urlkey": "outer"},
    {"n": 1, "topics": [topic("sql", 2), topic(None, 3)], "tags": [None], "urlkey": "outer"},
    {"n": 2, "topics": [], "tags": [], "urlkey": "outer"},
    {"n": 3, "topics": None, "tags": None, "urlkey": "outer"},
    {"n": 4, "topics": [None, topic("Python", 1)], "tags": ["b", None], "urlkey": "outer"},
]
BATCH = pa.RecordBatch.from_pylist(
    [row | {"group": {"topics": row["topics"]} if row["n"] else None} for row in ROWS], schema=SCHEMA
)


def values(expression: str, batch: pa.RecordBatch = BATCH) -> list[Any]:
    """Return the value of an expression for each row."""
    column: list[Any] = compiled(SCHEMA, None, f"{expression} AS x").project(batch).column("x").to_pylist()
    return column


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("exists(topics, t -> t.urlkey = 'python')", [True, None, False, None, None]),
        ("EXISTS(topics, t -> lower(t.urlkey) = 'python')", [True, None, False, None, True]),
        ("NOT exists(topics, t -> t.urlkey = 'python')", [False, None, True, None, None]),
        ("exists(topics, t -> t.urlkey IS NULL)", [False, True, False, None, True]),
        ("exists(topics, t -> t.urlkey = 'sql' AND t.rank > 5)", [True, False, False, None, None]),
        ("exists(topics, t -> t.urlkey = 'python') AND n = 0", [True, False, False, False, False]),
        ("exists(tags, t -> t IN ('b', 'c'))", [True, None, False, None, True]),
        ("exists(tags, urlkey -> urlkey LIKE 'a%')", [True, None, False, None, None]),
        ('exists(tags, "some tag" -> "some tag" = \'a\')', [True, None, False, None, None]),
        ("exists(topics, t -> exists(t.words, w -> w = 'code'))", [True, False, False, None, None]),
        ("exists(group.topics, t -> t.rank = 2)", [None, True, False, None, None]),
        ("exists(topics, t -> TRUE)", [True, True, False, None, True]),
        ("exists(topics, t -> NULL)", [None, None, False, None, None]),
    ],
)
def test_exists_is_true_false_or_unknown(expression: str, expected: list[bool | None]) -> None:
    assert values(expression) == expected
    assert values(expression, BATCH.slice(1, 3)) == expected[1:4]


def test_a_row_passes_if_an_element_does() -> None:
    assert compiled(SCHEMA, "exists(topics, t -> t.rank = 1)", None).mask(BATCH).to_pylist() == [
        True, False, False, False, True,
    ]  # fmt: skip


def test_long_lists_are_looked_at_in_slices_and_agree_with_python() -> None:
    drawn = random.Random(7)
    longest = 3 * SLICE_ROWS
    lists = [[drawn.choice([1, 2, 3]) for _ in range(drawn.randrange(longest))] for _ in range(20)]
    for numbers in drawn.sample(lists, 12):
        numbers.insert(drawn.randrange(len(numbers) + 1), drawn.choice([None, 4]))  # type: ignore[arg-type]
    schema = pa.schema([("numbers", pa.list_(pa.int64()))])
    batch = pa.RecordBatch.from_arrays([pa.array(lists, pa.list_(pa.int64()))], schema=schema)
    column = compiled(schema, None, "exists(numbers, n -> n * 2 > 6) AS x").project(batch).column("x").to_pylist()
    assert column == [True if 4 in numbers else None if None in numbers else False for numbers in lists]
    assert set(column) == {True, False, None}


def test_a_claim_stands_in_the_condition_and_one_that_is_missing_hides_the_row() -> None:
    where = "NOT exists(topics, t -> t.urlkey = claim('hidden'))"
    assert compiled(SCHEMA, where, None, claims={"hidden": "sql"}).mask(BATCH).to_pylist() == [
        False, False, True, False, False,
    ]  # fmt: skip
    assert compiled(SCHEMA, where, None, claims={}).mask(BATCH).to_pylist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("where", "message", "position"),
    [
        ("exists(n, t -> t = 1)", "exists requires a list, but n (a number) is not one", 7),
        ("exists(topics)", "exists takes a list and a condition", 0),
        ("exists(topics, n = 1)", "exists takes a list and a condition", 0),
        ("exists(topics, (t, i) -> i = 1)", "one name", 16),
        ("exists(topics, t -> t)", "is not a condition", 20),
        ("exists(topics, t -> t.urlkye = 'x')", "did you mean urlkey?", 22),
        ("exists(topics, t -> urlkey = 'x')", "write t.urlkey", 20),
        ("exists(tags, t -> n = 1)", "only the element, t, and its fields can be used", 18),
        ("lower(t -> t = 1) = 'x'", "is allowed only in exists", 6),
        ("topics -> 'x'", "not allowed", 0),
    ],
)
def test_what_is_wrong_with_it_is_told(where: str, message: str, position: int) -> None:
    with pytest.raises(BadExpression) as error:
        compiled(SCHEMA, where, None)
    assert message in error.value.message
    assert error.value.position == position


def test_what_stands_in_it_counts_for_the_limits() -> None:
    inside = " AND ".join(["lower(t.urlkey) = 'x'"] * CALLS_MAX)
    with pytest.raises(BadExpression, match="functions and patterns"):
        compiled(SCHEMA, f"exists(topics, t -> {inside})", None)
