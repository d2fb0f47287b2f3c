"""Joins of events in any order, compared with two loops over lists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.testing import tick
from tests.joins.ads import Left, Right, S, join_app, lookup_app, result_of, second, texts
from tests.joins.naive import as_of, in_time, key_of, nested_loop

SETTINGS = settings(max_examples=60, deadline=None)
TIMES = st.integers(0, 40)
KEYS = st.sampled_from("ab")
END = [tick(timedelta(days=2)), tick(timedelta(0))]


@st.composite
def event_lists(draw: st.DrawFn) -> list[Any]:
    """Return events of both sides in the order of the log, each with a unique number."""
    drawn = draw(st.lists(st.tuples(st.booleans(), TIMES, KEYS), max_size=25))
    return [
        Left(at=second(at), number=number, key=key) if left else Right(at=second(at), number=number, name=key)
        for number, (left, at, key) in enumerate(drawn)
    ]


def sides(events: list[Any]) -> tuple[list[Left], list[Right]]:
    return [event for event in events if isinstance(event, Left)], [
        event for event in events if isinstance(event, Right)
    ]


WITHIN = st.sampled_from([(5, 5), (0, 7), (7, 0), (-2, 6), (0, 0)]).map(lambda bounds: (bounds[0] * S, bounds[1] * S))
HOW = st.sampled_from(["inner", "left", "right", "full"])
LATE = st.tuples(st.sampled_from([1, 3, 50]), st.sampled_from([1, 3, 50]))


@SETTINGS
@given(event_lists(), WITHIN, HOW, LATE)
def test_a_join_finds_what_two_loops_find_among_the_events_in_time(
    events: list[Any], within: tuple[timedelta, timedelta], how: str, late: tuple[int, int]
) -> None:
    app, both = join_app(within=within, how=how, late=late)
    result = result_of(app, [*events, *END])
    lefts, rights = (in_time(sides(events)[number], delay * S) for number, delay in enumerate(late))
    assert sorted(texts(result)) == nested_loop(lefts, rights, within, how)
    missed = [miss.event for miss in result.emitted("both.missed")]
    assert len(missed) == len(events) - len(lefts) - len(rights)
    assert result.failed(both) == []
    assert result.states(both) == {}


@SETTINGS
@given(st.lists(st.tuples(event_lists(), st.integers(0, 12)), max_size=5), WITHIN, HOW, LATE)
def test_as_time_passes_every_event_is_joined_or_told_once(
    parts: list[tuple[list[Any], int]], within: tuple[timedelta, timedelta], how: str, late: tuple[int, int]
) -> None:
    app, _ = join_app(within=within, how=how, late=late)
    items: list[Any] = []
    for events, pause in parts:
        first = len(items)
        items += [type(event)(**{**_fields(event), "number": first + event.number}) for event in events]
        items.append(tick(pause * S))
    result = result_of(app, [*items, *END])
    gone = {(miss.stream, miss.event) for miss in result.emitted("both.missed")}
    assert all(miss.reason == "late" for miss in result.emitted("both.missed"))
    numbers = {int(event.split('"number":')[1].split(",")[0]) for _, event in gone}
    kept = [event for event in items if isinstance(event, Left | Right) and event.number not in numbers]
    assert sorted(texts(result)) == nested_loop(*sides(kept), within, how)


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


@SETTINGS
@given(event_lists(), HOW, LATE)
def test_a_restart_between_any_two_events_changes_nothing(events: list[Any], how: str, late: tuple[int, int]) -> None:
    app, both = join_app(how=how, late=late)
    items = [*events, tick(8 * S), *events]
    whole, broken = result_of(app, items), result_of(app, items, crashes=True)
    for stream in ("both", "both.missed"):
        assert broken.emitted(stream) == whole.emitted(stream)
    assert broken.digest(both) == whole.digest(both)


@SETTINGS
@given(event_lists(), st.sampled_from(["left", "inner"]))
def test_a_lookup_finds_the_row_of_the_events_time_whatever_the_order(events: list[Any], how: str) -> None:
    app, looked = lookup_app(how=how, late=(0, 60))
    result = result_of(app, [*events, *END])
    lefts, rights = sides(events)
    assert sorted(texts(result)) == as_of(lefts, rights, how)
    assert (result.emitted("both.missed"), result.failed(looked)) == ([], [])


@SETTINGS
@given(event_lists(), st.sampled_from([0, 3, 10]))
def test_events_that_no_row_missed_have_the_row_of_their_time(events: list[Any], late: int) -> None:
    app, _ = lookup_app(late=(0, late))
    result = result_of(app, [*events, *END])
    lefts, rights = sides(events)
    missed = [(miss.key, miss.at) for miss in result.emitted("both.missed")]
    spared = [left for left in lefts if not any(key == left.key and at <= left.at for key, at in missed)]
    mine = {f"L{left.number}" for left in spared}
    assert sorted(text for text in texts(result) if text.split()[0] in mine) == as_of(spared, rights, "left")
    assert len(texts(result)) == len(lefts)


@SETTINGS
@given(event_lists(), st.sampled_from([0, 3, 60]))
def test_a_restart_of_a_lookup_changes_nothing(events: list[Any], late: int) -> None:
    app, looked = lookup_app(late=(0, late))
    items = [*events, tick(5 * S), *events]
    whole, broken = result_of(app, items), result_of(app, items, crashes=True)
    for stream in ("both", "both.missed"):
        assert broken.emitted(stream) == whole.emitted(stream)
    assert broken.digest(looked) == whole.digest(looked)


def test_the_loops_know_keys_apart() -> None:
    assert key_of(Left(at=second(0), number=1, key="a")) == key_of(Right(at=second(0), number=1, name="a")) == "a"
