"""Types: their Arrow types, their wire types, and refused types."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import EpochMillis, Event, Record, State
from penstock.core.columns import event_rows, partition_of, text_of, to_batch
from penstock.core.schema import (
    UnmappedType,
    arrow_type,
    decimal_fits,
    event_schema,
    fields,
    to_millis,
    type_name,
    wire_class,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Place(Record):
    lat: float
    lon: float
    seen: datetime | None = None


class Everything(Event, id="name", time="at"):
    name: str
    at: datetime
    sent: EpochMillis
    day: date
    count: int
    ratio: float
    good: bool
    blob: bytes
    price: Decimal
    ident: UUID
    colour: Colour
    size: Size
    answer: Literal["yes", "no"]
    place: Place
    maybe: str | None = None
    numbers: list[int] = []  # noqa: RUF012  # msgspec copies it
    places: dict[str, Place] = {}  # noqa: RUF012


EXAMPLE = {
    "name": "a",
    "at": "2026-01-02T03:04:05.000006Z",
    "sent": 1_700_000_000_123,
    "day": "2026-01-02",
    "count": 2**63 - 1,
    "ratio": 0.5,
    "good": True,
    "blob": "AAE=",
    "price": "12.50",
    "ident": "12345678-1234-5678-1234-567812345678",
    "colour": "red",
    "size": 2,
    "answer": "yes",
    "place": {"lat": 1.5, "lon": 2.5, "seen": "2026-01-02T03:04:05+02:00"},
    "numbers": [1, 2],
    "places": {"x": {"lat": 0.0, "lon": 0.0}},
}


def decode(value: dict[str, Any], cls: type[Event] = Everything) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=wire_class(cls))


def test_every_type_survives_from_the_wire_through_arrow_to_json() -> None:
    batch = to_batch(Everything, [decode(EXAMPLE)], ids=["a"], keys=["k"], now=datetime(2026, 1, 1, tzinfo=UTC))
    assert batch.schema == event_schema(Everything)
    (row,) = map(msgspec.json.decode, event_rows(batch))
    expected = EXAMPLE | {
        "sent": "2023-11-14T22:13:20.123000Z",
        "price": "12.5",
        "maybe": None,
        "place": {"lat": 1.5, "lon": 2.5, "seen": "2026-01-02T01:04:05Z"},
        "places": {"x": {"lat": 0.0, "lon": 0.0, "seen": None}},
    }
    assert row == expected


def test_an_instance_and_its_wire_twin_make_the_same_batch() -> None:
    class Ping(Event):
        at: EpochMillis
        note: str | None = None

    now = datetime(2026, 1, 1, tzinfo=UTC)
    own = to_batch(Ping, [Ping(at=datetime(2026, 5, 1, tzinfo=UTC))], ids=[None], keys=[None], now=now)
    sent = to_batch(Ping, [decode({"at": 1_777_593_600_000}, Ping)], ids=[None], keys=[None], now=now)
    assert own == sent


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"at": "2026-01-02T03:04:05"}, "$.at"),
        ({"count": 2**63}, "$.count"),
        ({"count": "7"}, "$.count"),
        ({"sent": 10**18}, "$.sent"),
        ({"place": {"lat": "x", "lon": 0}}, "$.place.lat"),
        ({"numbers": [1, "2"]}, "$.numbers[1]"),
        ({"answer": "perhaps"}, "$.answer"),
        ({"colour": "green"}, "$.colour"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        decode(EXAMPLE | change)
    assert f"`{path}`" in str(caught.value)


def test_a_type_has_a_name_that_a_producer_understands() -> None:
    names = {field.name: type_name(field.hint) for field in fields(Everything)}
    assert names["sent"] == "epoch"
    assert names["answer"] == "'yes' | 'no'"
    assert names["size"] == "1 | 2"
    assert names["maybe"] == "str | null"
    assert names["places"] == "map<str, struct<lat: float, lon: float, seen: datetime | null>>"


class Loop(Record):
    next: Loop | None = None


@pytest.mark.parametrize(
    "hint", [object, set[int], tuple[int, str], dict[int, str], complex, Loop, list[Any], int | str]
)
def test_a_type_without_a_mapping_is_named(hint: Any) -> None:
    with pytest.raises(UnmappedType):
        arrow_type(hint, "$.field")


def test_a_nested_epoch_is_refused() -> None:
    with pytest.raises(UnmappedType, match="EpochMillis"):
        arrow_type(list[EpochMillis])


def test_events_are_frozen_and_states_are_not() -> None:
    class Point(Event):
        x: int

    class Count(State):
        n: int = 0

    with pytest.raises(AttributeError):
        Point(x=1).x = 2  # type: ignore[misc]
    count = Count()
    count.n += 1
    assert count.n == 1


SHORT = st.builds(
    lambda digits, places: Decimal(digits).scaleb(-places), st.integers(-(10**38), 10**38), st.integers(0, 38)
)
ZEROS = st.builds(
    lambda value, zeros: Decimal(f"{value}.{'0' * zeros}"), st.integers(-(10**21), 10**21), st.integers(1, 60)
)


@given(st.decimals(allow_nan=True, allow_infinity=True) | SHORT | ZEROS)
def test_a_decimal_fits_exactly_when_arrow_keeps_it(value: Decimal) -> None:
    """A value with more than 38 digits is refused, although Arrow accepts some of those."""
    try:
        kept = pa.array([value], pa.decimal128(38, 18))[0].as_py() == value
    except (pa.ArrowInvalid, ValueError):
        kept = False
    _, digits, exponent = value.as_tuple()
    written = max(len(digits), -exponent) if isinstance(exponent, int) else 0
    assert decimal_fits(value) == (kept and written <= 38)


def test_places_are_part_of_the_format_and_do_not_move() -> None:
    assert [partition_of(key, 8) for key in ("a", "vehicle-1", "ü", "", None)] == [3, 6, 5, 0, 0]


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (5, "5"), (True, "true"), (Colour.RED, "red"), (None, None), (UUID(int=1), str(UUID(int=1)))],
)
def test_keys_have_one_text(value: Any, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("year", [1, 1969, 1970, 2026, 3000, 6326, 9999])
def test_milliseconds_are_exact_in_every_year(year: int) -> None:
    for millis in (0, 1, 3, 999):
        value = datetime(year, 7, 1, 12, 30, 1, millis * 1000, tzinfo=UTC)
        assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=to_millis(value)) == value


def test_a_class_statement_that_cannot_be_meant_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"dropped must be a list of names: dropped=\['note'\]"):

        class Dropped(Event, dropped="note"):
            body: str

    with pytest.raises(TypeError, match="Place cannot have its own versions"):

        class Place(Record, version=2):  # type: ignore[call-arg]
            city: str


def test_a_class_says_what_became_of_earlier_versions() -> None:
    class Order(Event, version=3, renamed={"text": "body"}, dropped=["note"]):
        body: str

    class Same(Order):
        more: int = 0

    for event_class in (Order, Same):
        assert (event_class.__event_version__, event_class.__renamed__, event_class.__dropped__) == (
            3,
            {"text": "body"},
            ("note",),
        )
    assert (Event.__event_version__, Event.__renamed__, Event.__dropped__) == (1, {}, ())
