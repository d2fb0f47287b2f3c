"""Expressions over one row, as closures: each returns the same as the filter of the same text, on the same rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from penstock import Event, Record
from penstock.cep.recognize.navigation import Scope
from penstock.core.errors import BadExpression
from penstock.core.filters import compiled
from penstock.core.filters.kinds import Mistake
from penstock.core.filters.syntax import columns
from penstock.core.schema import event_schema, shown


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(Record):
    lat: float
    name: str | None = None


class Row(Event, time="at"):
    at: datetime
    day: date
    i: int
    j: int | None
    x: float
    y: float | None
    m: Decimal
    s: str
    t: str | None
    ok: bool
    hue: Colour
    tag: UUID
    place: Place
    words: list[str]


SCHEMA = shown(event_schema(Row))
SCOPE = Scope(Row, ("A",), {"A": 0}, frozenset({"A"}), "A")


def stored(row: Row) -> dict[str, Any]:
    plain = {name: getattr(row, name) for name in Row.__struct_fields__}
    return plain | {"hue": row.hue.value, "tag": str(row.tag), "place": {"lat": row.place.lat, "name": row.place.name}}


def by_filter(text: str, rows: list[Row]) -> list[Any]:
    batch = pa.RecordBatch.from_pylist([stored(row) for row in rows], SCHEMA)
    values: list[Any] = compiled(SCHEMA, None, f"{text} AS v").project(batch).column(0).to_pylist()
    return values


def by_closure(text: str, rows: list[Row]) -> list[Any]:
    (item,) = columns(text)
    value = SCOPE.compile(item.node).value
    return [value((("A", row),), 1) for row in rows]


def plain(value: Any) -> Any:
    """Return the value without the digits and the zone that Arrow adds by the type of a column."""
    if isinstance(value, Colour):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([2**62, -(2**63), 2**53 + 1]))
REALS = st.sampled_from([0.0, -0.0, 1.5, -2.5, 3.0, 1e308, 2.0**53])
WORDS = st.sampled_from(["", "a", "ab", "Ab", "ß", "b%", "x_y"])
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2020, 1, 3), timezones=st.just(UTC))
ROWS = st.builds(
    Row,
    at=TIMES,
    day=st.dates(date(2020, 1, 1), date(2020, 1, 9)),
    i=NUMBERS,
    j=st.none() | NUMBERS,
    x=REALS,
    y=st.none() | REALS,
    m=st.sampled_from([Decimal("0.1"), Decimal("-2.5"), Decimal(3)]),
    s=WORDS,
    t=st.none() | WORDS,
    ok=st.booleans(),
    hue=st.sampled_from(list(Colour)),
    tag=st.just(UUID(int=7)),
    place=st.builds(Place, lat=REALS, name=st.none() | WORDS),
    words=st.lists(WORDS, max_size=2),
)
NUMBER = st.sampled_from(["i", "j", "x", "y", "m", "2", "0", "1.5", "-3", "NULL", "place.lat", "abs(i)", "length(s)"])
TEXT = st.sampled_from(["s", "t", "'a'", "lower(s)", "s || t", "hue", "tag", "place.name", "words[1]", "upper(t)"])
TIME = st.sampled_from(["at", "at + INTERVAL '1' DAY", "'2020-01-02T00:00:00Z'", "date_trunc('day', at)"])
SIGN, COMPARE = st.sampled_from(["+", "-", "*", "/", "%"]), st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


@st.composite
def numbers(draw: Any, depth: int = 2) -> str:
    if not depth or draw(st.integers(0, 1)):
        return str(draw(NUMBER))
    return f"({draw(numbers(depth - 1))} {draw(SIGN)} {draw(numbers(depth - 1))})"


@st.composite
def conditions(draw: Any, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["number", "text", "time", "in", "null", "between", "like", "join", "not"]))
    if kind == "join" and depth:
        return f"({draw(conditions(depth - 1))} {draw(st.sampled_from(['AND', 'OR']))} {draw(conditions(depth - 1))})"
    if kind == "not" and depth:
        return f"NOT {draw(conditions(depth - 1))}"
    side = {"text": TEXT, "like": TEXT, "time": TIME, "in": TEXT}.get(kind, numbers(1))
    left = draw(side)
    if kind == "in":
        return f"{left} IN ('a', 'ab', {draw(TEXT)})"
    if kind == "null":
        return f"{left} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
    if kind == "between":
        return f"{left} BETWEEN {draw(side)} AND {draw(side)}"
    if kind == "like":
        return f"{left} LIKE {draw(st.sampled_from(['%a%', 'A_', 'b!%']))!r}"
    return f"{left} {draw(COMPARE)} {draw(side)}"


@settings(max_examples=80, deadline=None)
@given(st.one_of(numbers(), conditions(), TEXT, TIME), st.lists(ROWS, min_size=1, max_size=3))
def test_a_closure_gives_what_the_filter_gives(text: str, rows: list[Row]) -> None:
    note(text)
    try:
        expected = by_filter(text, rows)
    except BadExpression:
        with pytest.raises((Mistake, BadExpression)):
            by_closure(text, rows)
        return
    assert [plain(value) for value in by_closure(text, rows)] == [plain(value) for value in expected]


def test_dates_fields_and_what_has_no_closure() -> None:
    row = Row(
        at=datetime(2020, 1, 2, 12, tzinfo=UTC), day=date(2020, 1, 5), i=7, j=None, x=2.5, y=None, m=Decimal("0.1"),
        s="Ab", t=None, ok=True, hue=Colour.RED, tag=UUID(int=7), place=Place(lat=1.0), words=["a", "b"],
    )  # fmt: skip
    texts = [
        "day - INTERVAL '2' DAY", "hour(at)", "words[2]", "len(words)", "round(x)", "m + 1", "i % -4", "least(i, x)",
        "substr(s, 2)", "contains(words, 'b')", "coalesce(j, i)", "-x", "place.lat * 2",
    ]  # fmt: skip
    for text in texts:
        assert by_closure(text, [row]) == by_filter(text, [row]), text
