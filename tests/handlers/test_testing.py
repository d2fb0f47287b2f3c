"""Handlers on plain lists: exactly once through crashes, rolled back when they fail, the same for any batch size."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import DeclarationError
from penstock.testing import CRASH, LATE, TICK, Result, run, tick
from tests.handlers import shop
from tests.handlers.fleet import Fix, app, fixes


def fix(number: int, vehicle: str = "a", x: float = 0.0, trouble: str | None = None) -> Fix:
    return Fix(fix=str(number), vehicle=vehicle, x=x, trouble=trouble)


def outcome(result: Result) -> list[Any]:
    """Everything that can be seen of a result, in an order that does not depend on how it was made."""
    streams = [sorted(map(repr, result.emitted(f"geofence.{name}"))) for name in ("Crossing", "Silence")]
    failed = sorted((failure.event, failure.error) for failure in result.failed("geofence"))
    return [result.digest("geofence"), result.digest("tally"), *streams, failed]


def test_state_lives_from_event_to_event_and_changes_are_emitted() -> None:
    result = run(app, {fixes: [fix(1, x=0), fix(2, x=5), fix(3, x=6), fix(4, x=0), fix(5, "b", x=3)]})
    assert [(crossing.vehicle, crossing.inside) for crossing in result.emitted("geofence.Crossing")] == [
        ("a", False),
        ("a", True),
    ]
    assert {key: state.fixes for key, state in result.states("geofence").items()} == {"a": 4, "b": 1}
    assert result.states("tally")["a"].crossings == 2
    assert result.failed("geofence") == []


def test_what_was_emitted_does_not_change_when_the_state_does() -> None:
    """The emitted list is the state's own, and the handler changes it afterwards."""
    result = run(app, {fixes: [fix(1, x=0), fix(2, x=5), fix(3, x=6)]})
    assert [crossing.path for crossing in result.emitted("geofence.Crossing")] == [[0.0, 5.0]]


@pytest.mark.parametrize("trouble", ["raise", "state", "class", "value"])
def test_an_event_that_fails_has_no_effect_and_is_kept_with_its_error(trouble: str) -> None:
    sound = [fix(1, x=0), fix(2, x=5), fix(4, x=0), fix(5, "b", x=9)]
    poisoned = [*sound[:2], fix(3, x=0, trouble=trouble), *sound[2:]]
    result = run(app, {fixes: poisoned})
    assert {key: (state.fixes, state.path) for key, state in result.states("geofence").items()} == {
        "a": (3, [0.0, 5.0, 0.0]),
        "b": (1, [9.0]),
    }
    assert [crossing.inside for crossing in result.emitted("geofence.Crossing")] == [False, True]
    (failed,) = result.failed("geofence")
    assert (failed.stream, failed.offset, failed.key) == ("fixes", 2, "a")
    assert '"fix":"3"' in failed.event
    assert "fleet.py" in failed.traceback or trouble in ("class", "state", "value")


def test_a_key_as_good_as_new_is_not_kept() -> None:
    assert run(app, {fixes: [fix(1), fix(2, trouble="forget")]}).states("geofence") == {}


def test_late_means_that_time_has_passed() -> None:
    assert len(run(app, {fixes: [fix(1), LATE, fix(2)]}).emitted("geofence.Silence")) == 12


ITEMS = st.lists(
    st.one_of(
        st.builds(
            lambda vehicle, x, trouble: (vehicle, x, trouble),
            st.sampled_from("abcdef"),
            st.sampled_from([0.0, 0.5, 2.0, 3.0]),
            st.sampled_from([None, None, "quiet", "quiet", "raise", "state", "class", "value", "forget"]),
        ),
        st.sampled_from([TICK, tick(timedelta(seconds=4))]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200, print_blob=True)
@given(ITEMS, st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 5, 1000]), st.randoms(use_true_random=False))
def test_how_the_work_is_cut_and_where_it_crashes_changes_nothing(
    items: list[Any], shards: int, batch_events: int, random: random.Random
) -> None:
    """Same state, same output, same failures: with any number of shards, any size of batch, any crash."""
    events = [fix(index, *item) if isinstance(item, tuple) else item for index, item in enumerate(items)]
    events.append(tick(timedelta(hours=1)))
    crashing = list(events)
    for _ in range(random.randrange(3)):
        crashing.insert(random.randrange(len(crashing)), CRASH)
    assert outcome(run(app, {fixes: crashing}, shards=shards, batch_events=batch_events)) == outcome(
        run(app, {fixes: events})
    )


def test_items_of_several_streams_come_in_turn() -> None:
    given: list[Any] = [{"item": "tea", "price": 2.0}, TICK, {"item": "tea", "price": 3.0}]
    sold = [{"sale": number, "item": "tea", "shop": "a"} for number in "12"]
    assert run(shop.app, {shop.prices: given, shop.sales: sold}).states(shop.till)["tea"].total == 4.0


def test_a_stream_that_is_not_there_is_named() -> None:
    with pytest.raises(DeclarationError, match="'fixs' is not a stream of this app; available: fixes"):
        run(app, {"fixs": []})
