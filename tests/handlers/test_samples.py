"""Events generated from their classes: of every type, valid, with few keys, the same for the same seed."""

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

from penstock import App, Context, State
from penstock.core.columns import text_of, to_batch
from penstock.core.schema import value_class
from penstock.handlers.rows import to_events
from penstock.handlers.samples import BEGIN, KEYS, Maker, samples
from tests.every_type import Colour, EveryType, Spot


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Everything(EveryType):
    size: Size
    kind: Literal["a", "b", "c"]
    level: Literal[1, 2]
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
    return [sample.event for sample in samples(app, everything, count, seed) if sample.event is not None]


def test_every_type_is_made_and_goes_through_the_log_unchanged() -> None:
    sample_events = events(300)
    strict = [msgspec.convert(event, value_class(Everything), from_attributes=True) for event in sample_events]
    empty: list[str | None] = [None] * len(strict)
    batch = to_batch(Everything, strict, ids=empty, keys=empty, now=BEGIN)
    back = to_events(Everything, batch)
    assert [event.spot for event in back] == [event.spot for event in sample_events]
    assert [event.price for event in back] == [event.price for event in sample_events]
    assert {event.colour for event in back} == set(Colour)
    assert {event.size for event in back} == set(Size)
    assert {(event.kind, event.level, event.flag) for event in back} == {
        (kind, level, flag) for kind in "abc" for level in (1, 2) for flag in (False, True)
    }


def test_none_and_values_both_come_where_none_may_be() -> None:
    sample_events = events(300)
    for values in (
        [event.maybe for event in sample_events],
        [event.spots for event in sample_events],
        [x for event in sample_events for x in event.holes],
    ):
        assert None in values
        assert any(value is not None for value in values)


def test_keys_are_few_and_ids_are_each_another() -> None:
    sample_events = events(300)
    assert len({event.user for event in sample_events}) <= KEYS
    assert 2 <= len({text_of(event.code) for event in sample_events}) <= KEYS
    assert len({event.name for event in sample_events}) == len(sample_events)


def test_what_stands_in_the_handlers_code_is_among_the_values() -> None:
    sample_events = events(3_000)
    assert "magic word" in {word for event in sample_events for word in event.tags}
    assert 77 in {event.number for event in sample_events}


def test_time_goes_on_and_ticks_come_between() -> None:
    rows = list(samples(app, everything, 500))
    assert [row.time for row in rows] == sorted(row.time for row in rows)
    assert 3 < sum(row.event is None for row in rows) < 50


def test_the_same_seed_makes_the_same_in_any_process() -> None:
    assert events(50) == events(50)
    assert events(50, seed=1) != events(50)
    code = "from tests.handlers.test_samples import events; print(events(50))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


SCALARS = [str, int, float, bool, bytes, datetime, date, Decimal, UUID, Colour, Size, Literal["a", "b"], Spot]


def hints(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return lists and dicts of a type, and the same with None."""
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
    values = Maker(seed).value(list[hint], BEGIN)
    assert msgspec.convert(values, list[hint], from_attributes=True) == values
