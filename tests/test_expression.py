"""Conditions in SQL text: what they mean, held against SQLite; what they refuse; and how they are checked."""

from __future__ import annotations

import enum
import operator
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadExpression
from penstock.expression import LENGTH_MAX, NODES_MAX, Column, columns_of, compiled
from penstock.schema import EpochMillis, Event, Record, wire_class

COLUMNS = {
    "a": Column("whole"), "b": Column("whole"), "x": Column("real"), "s": Column("text"), "t": Column("text"),
    "f": Column("truth"), "g": Column("truth"),
}  # fmt: skip
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
_words = st.sampled_from(["s", "t", "NULL"]) | _texts.map(_quoted)
_truths = st.sampled_from(["f", "g", "TRUE", "FALSE", "NULL"])
_signs = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


def _comparisons(operands: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(operands, min_size=1, max_size=4).map(", ".join)
    negated = st.sampled_from(["", "NOT "])
    return st.one_of(
        st.tuples(operands, _signs, operands).map(" ".join),
        st.tuples(operands, negated, several).map(lambda each: f"{each[0]} {each[1]}IN ({each[2]})"),
        st.tuples(operands, negated, operands, operands).map(
            lambda each: f"{each[0]} {each[1]}BETWEEN {each[2]} AND {each[3]}"
        ),
        st.tuples(operands, negated).map(lambda each: f"{each[0]} IS {each[1]}NULL"),
    )


_leaves = _comparisons(_numbers) | _comparisons(_words) | _truths
conditions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map("".join),
        inner.map(lambda each: f"NOT ({each})"),
        inner.map(lambda each: f"({each})"),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE r (a INTEGER, b INTEGER, x REAL, s TEXT, t TEXT, f INTEGER, g INTEGER)")
        yield connection


@given(text=conditions, row=rows)
def test_a_condition_holds_where_sqlite_says_so(sqlite: sqlite3.Connection, text: str, row: dict[str, Any]) -> None:
    sqlite.execute("DELETE FROM r")
    sqlite.execute("INSERT INTO r VALUES (:a, :b, :x, :s, :t, :f, :g)", row)
    wanted = sqlite.execute(f"SELECT count(*) FROM r WHERE {text}").fetchone()[0] == 1
    assert compiled(text, COLUMNS, operator.getitem)(row) == wanted


ATTACKS = {
    "a method of Java": "java_method('java.lang.Runtime', 'getRuntime') = s",
    "reflect": "reflect('java.lang.System', 'exit', 1) = s",
    "a function": "lower(s) = 'a'",
    "a function without parentheses": "CURRENT_USER = s",
    "a sub-query": "a = (SELECT 1)",
    "a sub-query in IN": "a IN (SELECT a FROM r)",
    "a column in IN": "a IN b",
    "EXISTS": "EXISTS (SELECT 1)",
    "a statement": "SELECT 1",
    "another statement": "DROP TABLE r",
    "two statements": "a = 1; DROP TABLE r",
    "a semicolon at the end": "a = 1;",
    "UNION": "a = 1 UNION SELECT 1",
    "a comment to the end": "a = 1 -- and more",
    "a comment inside": "a /* or not */ = 1",
    "a comment that is open": "a = 1 /*",
    "CASE": "CASE WHEN a = 1 THEN TRUE END",
    "IF": "IF = 1",
    "IF as a function": "IF(a = 1, TRUE, FALSE)",
    "a cast": "a::text = '1'",
    "a cast by name": "CAST(a AS TEXT) = '1'",
    "a typed literal": "DATE '2024-01-01' = s",
    "arithmetic": "a + 1 = 2",
    "minus a column": "-a = 1",
    "minus minus": "a = - - 1",
    "text put together": "s = 'a' || 'b'",
    "text side by side": "s = 'a' 'b'",
    "LIKE": "s LIKE '%'",
    "a pattern": "s RLIKE '(a+)+$'",
    "a placeholder": "a = ?",
    "a named placeholder": "a = :x",
    "a variable": "a = @x",
    "a template": "a = {{ 1 }}",
    "an element": "s[0] = 'a'",
    "a part": "s.length = 1",
    "an attribute of Python": "__class__ = 's'",
    "a star": "*",
    "a lambda": "(a -> a) = 1",
    "an interval": "a = INTERVAL 1 DAY",
    "a tuple": "(a, b) = (1, 2)",
    "collation": "s = 'a' COLLATE nocase",
    "null-safe": "a <=> 1",
    "IS with a value": "a IS 1",
    "IS TRUE": "f IS TRUE",
    "symmetric": "a BETWEEN SYMMETRIC 1 AND 2",
    "IN nothing": "a IN ()",
    "quotes of Unicode": "s = \u2018a\u2019",
    "double quotes of Unicode": "s = \u201ca\u201d",
    "text in double quotes": 's = "alarm"',
    "backticks": "`a` = 1",
    "dollar quotes": "s = $$a$$",
    "hexadecimal": "s = x'ff'",
    "a quote that is open": "s = 'a",
    "a null character": "s = a\0",
    "nothing": "",
    "blanks": " \n",
    "half of it": "a = ",
    "no condition": "a",
    "a text alone": "'yes'",
    "a number alone": "1",
    "500 parentheses": "(" * 500 + "f" + ")" * 500,
    "parentheses that stay open": "(" * 1000,
    "400 times NOT": "NOT " * 400 + "f",
    "1000 times minus": "a = " + "- " * 1000 + "1",
    "too many parts": " OR ".join(["f"] * NODES_MAX),
    "too long": "f OR " * 1000 + "f",
    "a huge number": "a = 1e999999999",
    "a number of 2000 digits": "a = " + "9" * 2000,
    "text and number": "s = 1",
    "number and text": "a = '1'",
    "truth and number": "f = 1",
    "a comparison of a comparison": "a < b < 3",
    "columns of two kinds": "a = s",
    "literals of two kinds": "1 = 'a'",
    "IN with two kinds": "a IN (1, 'b')",
    "BETWEEN with two kinds": "s BETWEEN 'a' AND 3",
    "NOT of a number": "NOT a",
    "AND with a text": "f AND 'x'",
    "an unknown column": "severity = 1",
    "a column in capitals": "A = 1",
}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_what_is_not_on_the_list_is_refused_with_a_sentence(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(text, COLUMNS)
    assert 10 < len(refusal.value.message) < 300
    assert "Error" not in refusal.value.message
    assert caplog.records == [], "a stranger must not fill the log"


@given(st.text(max_size=200) | st.text("()'\"=<>ANDORTaf1 .,-;/*", max_size=200))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    row = dict.fromkeys(COLUMNS)
    try:
        holds = compiled(text, COLUMNS, operator.getitem)
    except BadExpression:
        return
    assert holds(row) in (True, False)


def test_as_many_parts_as_are_allowed_are_allowed() -> None:
    text = " OR ".join(["f"] * (NODES_MAX // 3))
    assert compiled(text, COLUMNS, operator.getitem)({"f": True})
    assert len(text) < LENGTH_MAX


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Grade(enum.Enum):
    LOW = 1
    HIGH = 2


class Place(Record):
    lat: float


class Reading(Event, id="number", time="at"):
    number: UUID
    at: EpochMillis
    seen: datetime | None = None
    day: date | None = None
    price: Decimal | None = None
    ratio: float | None = None
    colour: Colour | None = None
    grade: Grade | None = None
    unit: Literal["m", "s"] = "m"
    level: Literal[1, 2] = 1
    place: Place | None = None
    tags: list[str] | None = None
    raw: bytes = b""


NUMBER = "6f1c5e0e-6d3c-4c57-9d0e-0d4a3c1b2a39"


def reading(**more: Any) -> Any:
    """A reading as the front door has it."""
    return wire_class(Reading)(number=UUID(NUMBER), at=1_714_564_800_000, **more)  # noon of 2024-05-01


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"number = '{NUMBER}'", {}),
        (f"number IN ('{NUMBER.upper()}')", {}),
        ("at = '2024-05-01T12:00:00Z'", {}),
        ("at BETWEEN '2024-05-01T13:59:59+02:00' AND '2024-05-01T14:00:00.001+02:00'", {}),
        ("'2024-05-01T11:00:00Z' < at", {}),
        ("at > seen", {"seen": datetime(2024, 1, 1, tzinfo=UTC)}),
        ("day >= '2024-05-01'", {"day": date(2024, 5, 1)}),
        ("price = 0.1", {"price": Decimal("0.1")}),
        ("ratio = 0.1", {"ratio": 0.1}),
        ("price = ratio", {"price": Decimal("0.1"), "ratio": 0.1}),
        ("price > -1.5e3", {"price": Decimal(-1499)}),
        ("level < 1.5", {"level": 1}),
        ("colour = 'red'", {"colour": Colour.RED}),
        ("grade >= 2", {"grade": Grade.HIGH}),
        ("unit = 's' AND level = 2", {"unit": "s", "level": 2}),
        ("colour IS NULL", {}),
    ],
)
def test_a_field_of_an_event_is_compared_by_its_type(text: str, more: dict[str, Any]) -> None:
    holds = compiled(text, columns_of(Reading))
    assert holds(reading(**more))
    assert not compiled(f"NOT ({text})", columns_of(Reading))(reading(**more))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("at = '2024-05-01'", "is no time; write '2024-05-01T12:00:00Z'"),
        ("at = '2024-05-01T12:00:00'", "is no time"),
        ("day = 'May'", "is no date"),
        ("number = '1'", "is no uuid"),
        ("unit = 1", "1 (a number) cannot be compared with unit (text)"),
        ("price > unit", "price (a number) cannot be compared with unit (text)"),
        ("place = 1", "there is no column 'place' to compare"),
        ("tags = 'a'", "there is no column 'tags' to compare"),
        ("raw = 'a'", "there is no column 'raw' to compare"),
        ('unit = "s"', "text stands in 'single quotes'"),
        ("level", "level is no condition: compare it with something"),
        ("place.lat = 1", "without a dot"),
    ],
)
def test_a_mistake_is_told_in_words(text: str, says: str) -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(text, columns_of(Reading))
    assert says in refusal.value.message


def test_names_that_sql_knows_are_columns_all_the_same() -> None:
    columns = {name: Column("whole") for name in ("date", "user", "count", "timestamp", "end", "order", "a b")}
    text = 'date = 1 AND user = 1 AND count = 1 AND timestamp = 1 AND end = 1 AND "order" = 1 AND "a b" = 1'
    assert compiled(text, columns, operator.getitem)(dict.fromkeys(columns, 1))
