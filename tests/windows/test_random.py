"""Windows over events in any order that lateness allows come to the same as over all of them at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import windows
from penstock.testing import Result, run
from penstock.windows.shapes import Shape
from tests.windows.meters import (
    AGGREGATES,
    COLLECTED,
    END,
    Reading,
    expected,
    naive,
    place,
    reading,
    seconds,
    seconds_to,
    window,
)

LATE_S = 20
SHAPES: list[Shape] = [
    windows.tumbling(seconds(10)),
    windows.sliding(seconds(60), every=seconds(5)),
    windows.tumbling(3),
    windows.sliding(6, every=2),
    windows.session(seconds(8)),
    windows.hybrid(4, seconds(15)),
]
READINGS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, LATE_S), st.none() | st.integers(-50, 50), st.sampled_from("ab")),
    max_size=60,
)
TRIGGERS = st.sampled_from([windows.on_change, windows.on_close, windows.every(seconds(3))])


def came(given: list[tuple[int, int, int | None, str]]) -> list[Reading]:
    """Readings in an order in which none is more than `LATE_S` behind one that came before."""
    ordered = sorted(given, key=lambda each: each[0] + each[1])
    return [reading(second, watts, meter, number) for number, (second, _, watts, meter) in enumerate(ordered)]


def closed(result: Result) -> dict[tuple[str, Any], Any]:
    return {(each.meter, place(each)): each for each in result.rows("used") if getattr(each, "closed", True)}


@pytest.mark.parametrize("aggregate", [AGGREGATES, COLLECTED], ids=["packed", "listed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(deadline=None, max_examples=40)
@given(READINGS, TRIGGERS, st.sampled_from([1, 4, 1_000]), st.integers(1, 2))
def test_closed_windows_are_those_of_a_batch(
    shape: Shape, aggregate: dict[str, Any], given: list[Any], trigger: Any, batch: int, shards: int
) -> None:
    """Cut into batches of any size: between two of them all state is encoded and decoded."""
    events = came(given)
    app, keeper = window(shape, seconds(LATE_S), aggregate=aggregate, trigger=trigger)
    result = run(app, {"readings": [*events, *END]}, shards=shards, batch_events=batch)
    assert result.failed(keeper) == []
    assert result.emitted("used.late") == []
    wanted = {
        (meter, each): naive(inside)
        for meter in "ab"
        for each, inside in expected(shape, [event for event in events if event.meter == meter]).items()
    }
    found = closed(result)
    assert found.keys() == wanted.keys()
    for where, row in found.items():
        assert {name: getattr(row, name) for name in aggregate} == {
            name: pytest.approx(wanted[where][name]) for name in aggregate
        }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(deadline=None, max_examples=25)
@given(READINGS, TRIGGERS)
def test_a_restart_after_every_event_changes_nothing(shape: Shape, given: list[Any], trigger: Any) -> None:
    """What is told, and the state bit for bit, while windows are open."""
    app, keeper = window(shape, seconds(LATE_S), aggregate=COLLECTED, trigger=trigger)
    once, often = (run(app, {"readings": came(given)}, batch_events=size) for size in (1_000, 1))
    assert once.digest(keeper) == often.digest(keeper)
    assert once.emitted(keeper) == often.emitted(keeper)


@pytest.mark.parametrize("aggregate", [AGGREGATES, COLLECTED], ids=["packed", "listed"])
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.none() | st.integers(-50, 50)), max_size=40),
    TRIGGERS,
    st.sampled_from([1, 4, 1_000]),
)
def test_in_any_order_an_event_is_in_the_windows_that_are_open_when_it_comes(
    aggregate: dict[str, Any], given: list[tuple[int, int | None]], trigger: Any, batch: int
) -> None:
    """Without regard to lateness: what misses a window is told, and is in all others."""
    shape = windows.sliding(seconds(60), every=seconds(5))
    events = [reading(second, watts, number=number) for number, (second, watts) in enumerate(given)]
    app, keeper = window(shape, seconds(LATE_S), aggregate=aggregate, trigger=trigger)
    result = run(app, {"readings": [*events, *END]}, batch_events=batch)
    assert result.failed(keeper) == []
    wanted: dict[Any, list[Reading]] = {}
    missed: list[list[Any]] = []
    time = None
    for event in events:
        places = sorted(expected(shape, [event]))
        ended = [each for each in places if time is not None and each[1] <= time]
        missed += [ended] if ended else []
        for each in places[len(ended) :]:
            wanted.setdefault(("a", each), []).append(event)
        time = max(time or 0, seconds_to(event.at) - LATE_S)
    told = [
        [(seconds_to(each.start), seconds_to(each.end)) for each in late.windows]
        for late in result.emitted("used.late")
    ]
    assert told == missed
    found = closed(result)
    assert found.keys() == wanted.keys()
    for where, row in found.items():
        inside = naive(sorted(wanted[where], key=lambda each: each.at))
        assert {name: getattr(row, name) for name in aggregate} == {
            name: pytest.approx(inside[name]) for name in aggregate
        }


@settings(deadline=None, max_examples=50)
@given(READINGS, st.sampled_from([0, 5, 30]))
def test_at_every_change_the_newest_window_is_told_as_it_is(given: list[Any], late_s: int) -> None:
    """Of events in order: the last row is that of all so far, and is told with the event that changes it."""
    shape = windows.sliding(seconds(30), every=seconds(10))
    events = [each for each in sorted(came(given), key=lambda each: each.at) if each.meter == "a"]
    app, keeper = window(shape, seconds(late_s) if late_s else None, aggregate=AGGREGATES, latest=True)
    changes = [each for each in run(app, {"readings": events}).emitted(keeper) if not each.closed]
    assert len(changes) == len(events)
    for number, row in enumerate(changes):
        (inside,) = [found for where, found in expected(shape, events[: number + 1]).items() if where == place(row)]
        assert {name: getattr(row, name) for name in AGGREGATES} == {
            name: pytest.approx(value) for name, value in naive(inside).items() if name in AGGREGATES
        }
        assert row.window.end - timedelta(seconds=10) <= events[number].at < row.window.end
