"""The meaning of conditions, compared with SQLite: comparisons, IN, BETWEEN, NULL, AND, OR, NOT, and precedence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.filters import compiled

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("t", pa.string()),
     ("f", pa.bool_()), ("g", pa.bool_())]
)  # fmt: skip
_texts = st.sampled_from(["", "a", "A", "b", "it's", "é", "\U0001f600", "10", "%"])
_wholes = st.integers(-3, 3)
_reals = st.sampled_from([-2.5, -1.0, 0.0, 0.1, 0.5, 1.0, 2.5])
_null = st.none()
rows = st.fixed_dictionaries(
    dict.fromkeys("ab", _wholes | _null)
    | {"x": _reals | _null}
    | dict.fromkeys("st", _texts | _null)
    | dict.fromkeys("fg", st.booleans() | _null)
)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_numbers = st.sampled_from(["a", "b", "x", "NULL"]) | _wholes.map(str) | _reals.map(str)
_sums = st.lists(st.sampled_from(["a", "b", "2", "3"]), min_size=1, max_size=4).flatmap(
    lambda terms: st.lists(
        st.sampled_from([" + ", " - ", " * ", " % "]), min_size=len(terms) - 1, max_size=len(terms) - 1
    ).map(lambda signs: "".join(f"{term}{sign}" for term, sign in zip(terms, [*signs, ""], strict=True)))
)
_words = st.sampled_from(["s", "t", "NULL"]) | _texts.map(_quoted)
_truths = st.sampled_from(["f", "g", "TRUE", "FALSE", "NULL"])
_signs = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


def _comparisons(operands: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(operands, min_size=1, max_size=4).map(", ".join)
    negated = st.sampled_from(["", "NOT "])
    return st.one_of(
        st.tuples(operands, _signs, operands).map(" ".join),
        st.tuples(operands, negated, several).map(lambda parts: f"{parts[0]} {parts[1]}IN ({parts[2]})"),
        st.tuples(operands, negated, operands, operands).map(
            lambda parts: f"{parts[0]} {parts[1]}BETWEEN {parts[2]} AND {parts[3]}"
        ),
        st.tuples(operands, negated).map(lambda parts: f"{parts[0]} IS {parts[1]}NULL"),
    )


_leaves = _comparisons(_numbers) | _comparisons(_sums) | _comparisons(_words) | _truths
conditions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map("".join),
        inner.map(lambda condition: f"NOT {condition}"),
        inner.map(lambda condition: f"NOT ({condition})"),
        inner.map(lambda condition: f"({condition})"),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE r (a INTEGER, b INTEGER, x REAL, s TEXT, t TEXT, f INTEGER, g INTEGER)")
        yield connection


@settings(deadline=None)
@given(text=conditions, row=rows)
def test_a_condition_holds_where_sqlite_says_so(sqlite: sqlite3.Connection, text: str, row: dict[str, Any]) -> None:
    sqlite.execute("DELETE FROM r")
    sqlite.execute("INSERT INTO r VALUES (:a, :b, :x, :s, :t, :f, :g)", row)
    wanted = sqlite.execute(f"SELECT count(*) FROM r WHERE {text}").fetchone()[0] == 1
    batch = pa.RecordBatch.from_pylist([row], SCHEMA)
    assert compiled(SCHEMA, text, None).mask(batch).to_pylist() == [wanted]
