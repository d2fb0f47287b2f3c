"""Changes of a state class: the fields carried over, the conversion, and refused changes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest

from penstock import Event, Record, State
from penstock.cep.memory import memory_class
from penstock.core.errors import DeclarationError
from penstock.core.schema import state_problem
from penstock.core.shapes import shape_of
from penstock.handlers.evolution import Carrier, misfit
from penstock.handlers.shard import Codec, KeyState, Shard, ShardChanges
from penstock.joins.asof import AsOfState


def test_stored_types_keep_the_names_they_had_when_data_was_first_stored() -> None:
    """Data whose types had other names would be refused as that of an earlier class."""
    patterns = shape_of(memory_class("Memory", [])).fields
    assert [patterns[name] for name in ("runs", "complete", "pending")] == [
        "list<run>",
        "list<complete>",
        "list<pending>",
    ]
    tables = shape_of(AsOfState).fields
    assert (tables["versions"], tables["waiting"]) == ("list<version>", "list<waiting>")


class Place(Record):
    lat: float


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    RED = "red"
    BLUE = "blue"


class Old(State):
    count: int = 0
    name: str = ""
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    where: Place | None = None


def shard_of(state: type[State], *entries: tuple[str, KeyState[Any]]) -> Shard:
    shard, codec = Shard(), Codec(state)
    records = {key: codec.seal(key, entry, None) for key, entry in entries}
    due = {key: at for key, entry in entries if (at := entry.next_due()) is not None}
    shard.apply(ShardChanges(records, due, 7))
    return shard


def same(one: Shard, other: Shard) -> bool:
    return (one.records, one.due, one.digest, one.time) == (other.records, other.due, other.digest, other.time)


def test_a_class_that_says_what_became_of_its_fields_takes_the_state_over() -> None:
    class New(State, renamed={"name": "label"}, dropped=["where", "colour", "kind"]):
        count: int = 0
        label: str = ""
        extra: float = 1.5

    old = shard_of(Old, ("k", KeyState(Old(count=3, name="x"), {"t": 5})), ("l", KeyState(Old(count=1))))
    assert misfit(shape_of(Old), New) is None
    shard = Carrier(New, shape_of(Old)).shard(old)
    expected = shard_of(New, ("k", KeyState(New(count=3, label="x"), {"t": 5})), ("l", KeyState(New(count=1))))
    assert same(shard, expected)


def test_what_only_grows_needs_no_word() -> None:
    class New(State):
        count: int | None = 0
        name: str = ""
        kind: Literal["a", "b", "c"] = "a"
        colour: Colours = Colours.RED
        where: Place | None = None
        more: list[int] = []  # noqa: RUF012  # msgspec gives each instance its own

    assert misfit(shape_of(Old), New) is None
    old = shard_of(Old, ("k", KeyState(Old(where=Place(lat=1.0)))))
    expected = shard_of(New, ("k", KeyState(New(where=Place(lat=1.0)))))
    assert same(Carrier(New, shape_of(Old)).shard(old), expected)


def test_bytes_that_are_changed_in_place_are_bytes_at_rest() -> None:
    class Before(State):
        panes: bytes = b""

    class After(State):
        panes: bytearray = bytearray()  # msgspec gives each instance its own

    assert misfit(shape_of(Before), After) is None
    assert misfit(shape_of(After), Before) is None
    old = shard_of(Before, ("k", KeyState(Before(panes=b"abc"))))
    assert same(Carrier(After, shape_of(Before)).shard(old), old)


def test_migrate_goes_from_version_to_version() -> None:
    class New(State, version=3, renamed={"sum": "total"}):
        total: Decimal = Decimal(0)
        names: list[str] = []  # noqa: RUF012  # msgspec gives each instance its own
        at: datetime | None = None

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            if version == 1:
                return {"total": fields["count"] * 10, "names": fields["name"], "at": datetime(2024, 1, 1, tzinfo=UTC)}
            return {"sum": str(fields["total"] + version), "names": [fields["names"]], "at": fields["at"]}

    assert misfit(shape_of(Old), New) is None
    shard = Carrier(New, shape_of(Old)).shard(shard_of(Old, ("k", KeyState(Old(count=3, name="x")))))
    wanted = New(total=Decimal(32), names=["x"], at=datetime(2024, 1, 1, tzinfo=UTC))
    assert same(shard, shard_of(New, ("k", KeyState(wanted))))


def test_a_key_that_is_as_new_after_the_change_is_no_longer_kept() -> None:
    class New(State, dropped=["name", "kind", "colour", "where"]):
        count: int = 0

    assert Carrier(New, shape_of(Old)).shard(shard_of(Old, ("k", KeyState(Old(name="x"))))).records == {}


class Shorter(State):
    count: int = 0


class Other(State):
    count: str = ""
    name: str = ""
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    where: Place | None = None


class Narrower(State):
    count: int = 0
    name: str = ""
    kind: Literal["a"] = "a"
    colour: Colour = Colour.RED
    where: Place | None = None


class Strict(State):
    count: int = 0
    name: str = ""
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    where: Place = Place(lat=0.0)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (Shorter, "its state has a field 'name', but Shorter does not: rename or drop it"),
        (Other, "Other.count was int and is str: raise the version (version=2 in the statement `class Other(...)`)"),
        (Narrower, "Narrower.kind was 'a' | 'b' and is 'a'"),
        (Strict, "Strict.where was struct<lat: float> | null and is struct<lat: float>"),
    ],
)
def test_a_change_that_would_lose_something_is_refused_with_what_to_do(state: type[State], reason: str) -> None:
    problem = misfit(shape_of(Old), state)
    assert problem is not None
    assert reason in problem


def test_an_older_class_does_not_take_newer_state() -> None:
    class Newer(State, version=2):
        count: int = 0

    assert misfit(shape_of(Newer), Shorter) == (
        "its state has version 2, but Shorter has version 1: run the newer code"
    )


@pytest.mark.parametrize("migrated", [{"count": "many"}, {"count": 1, "odd": 2}, None])
def test_a_migration_that_fails_names_the_key(migrated: Any) -> None:
    class New(State, version=2):
        count: int = 0

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            result: dict[str, Any] = migrated
            return result

    with pytest.raises(DeclarationError, match=r"the state of 'k' cannot be migrated from version 1 to New"):
        Carrier(New, shape_of(Old)).shard(shard_of(Old, ("k", KeyState(Old(count=3)))))


def test_what_a_class_says_of_its_past_must_make_sense() -> None:
    class Zero(State, version=0):
        count: int = 0

    class Gone(State, dropped=["count"]):
        count: int = 0

    class Nowhere(State, renamed={"total": "sum"}):
        count: int = 0

    assert state_problem(Zero) == "the version of Zero is 0; use 1, 2, 3, ..."
    assert state_problem(Gone) == "Gone.count is declared as dropped or renamed, but the class still has it"
    assert state_problem(Nowhere) == "Nowhere says that a field was renamed to sum, but has no field of that name"
    assert state_problem(Old) is None


def test_events_that_a_pattern_holds_are_not_taken_for_those_of_a_new_version() -> None:
    """A version may change the meaning of a field, and nothing else."""

    class Payment(Event):
        card: str
        amount: int

    class Changed(Event, version=2):
        card: str
        amount: int

        @staticmethod
        def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
            return {**fields, "amount": fields["amount"] * 100}

    one, two = (memory_class("Memory", [event_class]) for event_class in (Payment, Changed))
    assert misfit(shape_of(one), one) is None
    assert misfit(shape_of(one), two) == (
        "its state holds events of the earlier class, which cannot be carried over: keep the class"
    )


def test_state_with_two_fields_that_would_become_one_is_refused() -> None:
    class Before(State):
        amount: int = 0
        total: int = 0

    class After(State, renamed={"amount": "total"}):
        total: int = 0

    reason = misfit(shape_of(Before), After)
    assert reason == "its state has both 'amount' and 'total', but After.total can only be one of them"
