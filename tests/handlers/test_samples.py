"""Events made up from their classes: of every type, sound, few keys, the same for the same seed."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, Context, EpochMillis, Event, Record, State
from penstock.columns import text_of, to_batch
from penstock.rows import to_events
from penstock.samples import KEYS, Maker, samples
from penstock.schema import value_class
from penstock.testing import BEGIN


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Spot(Record):
    lat: float
    seen: list[datetime] | None = None
    costs: dict[str, Decimal] | None = None


class Everything(Event, id="name", time="at"):
    name: str
    at: datetime
    number: int
    share: float
    flag: bool
    data: bytes
    day: date
    price: Decimal
    code: UUID
    colour: Colour
    size: Size
    kind: Literal["a", "b", "c"]
    level: Literal[1, 2]
    sent: EpochMillis
    spot: Spot
    maybe: Spot | None = None
    tags: list[str] = []  # noqa: RUF012
    holes: list[int | None] = []  # noqa: RUF012
    spots: dict[str, Spot] | None = None
    nested: list[dict[str, list[Colour]]] = []  # noqa: RUF012
    user: str = ""


class Seen(State):
    n: int = 0


app = App("samples")
everything = app.stream("everything", Everything, key="user")


@app.handler("seen", reads=everything, key="code", state=Seen)
def seen(state: Seen, event: Everything, ctx: Context) -> None:
    if event.user == "magic word" and event.number == 77:
        state.n += 1


def events(count: int, seed: int = 0) -> list[Any]:
    return [each.event for each in samples(app, everything, count, seed) if each.event is not None]


def test_every_type_is_made_and_goes_through_the_log_unchanged() -> None:
    made = events(300)
    strict = [msgspec.convert(each, value_class(Everything), from_attributes=True) for each in made]
    empty: list[str | None] = [None] * len(strict)
    batch = to_batch(Everything, strict, ids=empty, keys=empty, now=BEGIN)
    back = to_events(Everything, batch)
    assert [each.spot for each in back] == [each.spot for each in made]
    assert [each.price for each in back] == [each.price for each in made]
    assert {each.colour for each in back} == set(Colour)
    assert {each.size for each in back} == set(Size)
    assert {(each.kind, each.level, each.flag) for each in back} == {
        (kind, level, flag) for kind in "abc" for level in (1, 2) for flag in (False, True)
    }


def test_none_and_values_both_come_where_none_may_be() -> None:
    made = events(300)
    for values in (
        [each.maybe for each in made],
        [each.spots for each in made],
        [x for each in made for x in each.holes],
    ):
        assert None in values
        assert any(value is not None for value in values)


def test_keys_are_few_and_ids_are_each_another() -> None:
    made = events(300)
    assert len({each.user for each in made}) <= KEYS
    assert 2 <= len({text_of(each.code) for each in made}) <= KEYS
    assert len({each.name for each in made}) == len(made)


def test_what_stands_in_the_handlers_code_is_among_the_values() -> None:
    made = events(3_000)
    assert "magic word" in {word for each in made for word in each.tags}
    assert 77 in {each.number for each in made}


def test_time_goes_on_and_ticks_come_between() -> None:
    rows = list(samples(app, everything, 500))
    assert [each.time for each in rows] == sorted(each.time for each in rows)
    assert 3 < sum(each.event is None for each in rows) < 50


def test_the_same_seed_makes_the_same_in_any_process() -> None:
    assert events(50) == events(50)
    assert events(50, seed=1) != events(50)
    code = "from tests.handlers.test_samples import events; print(events(50))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


SCALARS = [str, int, float, bool, bytes, datetime, date, Decimal, UUID, Colour, Size, Literal["a", "b"], Spot]


def hints(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and dicts of a type, and the same with None."""
    return st.builds(lambda make, hint: make(hint), st.sampled_from([_list, _dict, _optional]), inner)


def _list(hint: Any) -> Any:
    return list[hint]


def _dict(hint: Any) -> Any:
    return dict[str, hint]


def _optional(hint: Any) -> Any:
    return hint | None


HINTS = st.recursive(st.sampled_from(SCALARS), hints, max_leaves=4)


@given(hint=HINTS, seed=st.text(max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_value_of_any_type_that_an_event_may_have_is_of_that_type(hint: Any, seed: str) -> None:
    made = Maker(seed).value(list[hint], BEGIN)
    assert msgspec.convert(made, list[hint], from_attributes=True) == made
