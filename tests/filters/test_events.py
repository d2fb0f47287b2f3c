"""Filters on decoded events: each type of a field is compared by its meaning."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest

from penstock.core.columns import some_columns
from penstock.core.errors import BadExpression
from penstock.core.filters import compiled
from penstock.core.schema import EpochMillis, Event, Record, event_schema, wire_class


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Grade(enum.Enum):
    LOW = 1
    HIGH = 2


class Place(Record):
    lat: float
    name: str | None = None


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
    stops: list[Place] | None = None
    tags: list[str] | None = None
    attrs: dict[str, int] | None = None
    raw: bytes = b""


NUMBER = "6f1c5e0e-6d3c-4c57-9d0e-0d4a3c1b2a39"
SCHEMA = event_schema(Reading)
WIRE: Any = wire_class(Reading)


def reading(**more: Any) -> Any:
    return WIRE(number=UUID(NUMBER), at=1_714_564_800_000, **more)  # noon of 2024-05-01


def place(lat: float, name: str | None = None) -> Any:
    return wire_class(Place)(lat=lat, name=name)


def holds(where: str, *events: Any) -> list[bool]:
    chosen = compiled(SCHEMA, where, None)
    return list(chosen.mask(some_columns(Reading, events, chosen.asked)).to_pylist())


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"number = '{NUMBER}'", {}),
        (f"number IN ('{NUMBER}')", {}),
        ("at = '2024-05-01T12:00:00Z'", {}),
        ("at BETWEEN '2024-05-01T13:59:59+02:00' AND '2024-05-01T14:00:00.001+02:00'", {}),
        ("'2024-05-01T11:00:00Z' < at", {}),
        ("at > seen", {"seen": datetime(2024, 1, 1, tzinfo=UTC)}),
        ("at - seen < INTERVAL '1 day'", {"seen": datetime(2024, 5, 1, tzinfo=UTC)}),
        ("day >= '2024-05-01'", {"day": date(2024, 5, 1)}),
        ("price = 0.1", {"price": Decimal("0.1")}),
        ("ratio = 0.1", {"ratio": 0.1}),
        ("price = ratio", {"price": Decimal("0.1"), "ratio": 0.1}),
        ("price > -1.5e3", {"price": Decimal(-1499)}),
        ("price + price = 0.2", {"price": Decimal("0.1")}),
        (
            "price = -12345678901234567890.123456789012345678",
            {"price": Decimal("-12345678901234567890.123456789012345678")},
        ),
        ("price < 1e30", {"price": Decimal(10) ** 19}),
        ("price < 1e20 AND price > -1e20 AND price <> 1e20", {"price": Decimal(10) ** 19}),
        ("level < 1.5", {"level": 1}),
        ("colour = 'red'", {"colour": Colour.RED}),
        ("grade >= 2", {"grade": Grade.HIGH}),
        ("unit = 's' AND level = 2", {"unit": "s", "level": 2}),
        ("colour IS NULL", {}),
        ("place.lat > 41 AND lower(place.name) = 'loop'", {"place": place(41.5, "Loop")}),
        ("stops[-1].name = 'b' AND len(stops) = 2", {"stops": [place(1, "a"), place(2, "b")]}),
        ("contains(tags, 'b')", {"tags": ["a", "b"]}),
        ("attrs['k'] = 7", {"attrs": {"k": 7}}),
    ],
)
def test_a_field_of_an_event_is_compared_by_its_type(text: str, more: dict[str, Any]) -> None:
    assert holds(text, reading(**more), reading(**more)) == [True, True]
    assert holds(f"NOT ({text})", reading(**more)) == [False]


@pytest.mark.parametrize("text", ["TRUE", "1 = 1", "NULL", "'a' = 'b'"])
def test_a_condition_that_looks_at_no_field_has_an_answer_for_each_event(text: str) -> None:
    assert holds(text, reading(), reading()) == [text in ("TRUE", "1 = 1")] * 2


@pytest.mark.parametrize(
    ("text", "says", "position"),
    [
        ("at = '2024-05-01'", "'2024-05-01' is not a time; write '2024-05-01T12:00:00Z'", 5),
        ("at = '2024-05-01T12:00:00'", "is not a time", 5),
        ("day = 'May'", "'May' is not a date; write '2024-05-01'", 6),
        ("unit = 1", "unit (text) cannot be compared with 1 (a number)", 7),
        ("price > unit", "price (a number) cannot be compared with unit (text)", 8),
        ("unit < price", "unit (text) cannot be compared with price (a number)", 7),
        ("place = 1", "place (a struct) cannot be compared", 0),
        ("tags = 'a'", "tags (a list) cannot be compared", 0),
        ("raw = 'a'", "raw (bytes) cannot be compared with 'a' (text)", 6),
        ('unit = "s"', "text is written in 'single quotes'", 7),
        ("level", "level is not a condition: compare it with a value", 0),
        ("place.lt = 1", "there is no field 'lt'; did you mean lat?", 6),
        ("unit + 1 = 2", "unit (text) cannot be used with +", 0),
        ("at + 1 > at", "at (a time) cannot be used with +", 0),
        ("lower(level) = 'a'", "lower does not take level (a number)", 6),
        ("lowr(unit) = 'a'", "there is no function 'lowr'; did you mean lower?", 0),
        ("substr(unit) = 'a'", "substr takes 2 to 3 values, not 1", 0),
        ("abs() = 1", "abs takes 1 value, not 0", 0),
        ("date_trunc('fortnight', at) = at", "date_trunc takes one of 'second'", 11),
        ("date_trunc('hour', day) = day", "date_trunc takes one of 'day'", 11),
        ("at > day", "at (a time) cannot be compared with day (a date)", 5),
        ("day + INTERVAL '1 hour' > day", "only whole days can be added to or subtracted from a date", 15),
        ("round(ratio, 99) = 1", "round takes the number of digits to keep, from 0 to 15", 13),
        ("at < INTERVAL 'soon'", "'soon' is not an interval: write a number and a unit, such as '90 minutes'", 14),
        ("contains(tags, level)", "contains takes a literal value here", 15),
    ],
)
def test_a_mistake_is_told_in_words_with_its_place(text: str, says: str, position: int) -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, text, None)
    assert says in refusal.value.message
    assert refusal.value.position == position


def test_the_message_shows_what_stands_at_the_position() -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, "level = 1 AND colr = 'red' AND unit = 's'", None)
    assert refusal.value.message.endswith("(character 15: \"colr = 'red' AND unit = \")")
    assert refusal.value.position == 14
