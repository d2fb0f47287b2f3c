"""Login attempts: more than ten in ten minutes, by the time of the attempts, each burst reported once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.logins import KEPT_MAX, LATE_AFTER, REACH, WINDOW, Attempt, app, bursts
from penstock import cep
from penstock.app.check import check
from penstock.testing import CRASH, Result, run, tick
from tests.examples.played import events

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def attempt(second: float, address: str = "192.0.2.1", number: int = 0) -> Attempt:
    at = NOON + timedelta(seconds=second)
    return Attempt(attempt_id=f"{second}/{address}/{number}", at=at, address=address, user="bela", success=False)


def tried(*items: Any) -> Result:
    return run(app, {"attempts": items})


def seconds_of(result: Result) -> list[float]:
    return [(burst.at - NOON).total_seconds() for burst in result.emitted(bursts)]


def test_the_app_is_sound() -> None:
    assert check(app) == []


def every(gap: float, count: int, start: float = 0.0) -> list[float]:
    return [start + gap * number for number in range(count)]


BURSTS: dict[str, tuple[list[float], list[float]]] = {
    "the eleventh attempt": (every(1, 11), [10]),
    "not the tenth": (every(1, 10), []),
    "eleven in just less than ten minutes": (every(59.9, 11), [599]),
    "not eleven in ten minutes": (every(60, 11), []),
    "over the bounds of any fixed ten minutes": (every(1, 11, 595), [605]),
    "told once, however long it goes on": (every(5, 400), [50]),
    "told once, at the edge of what is allowed": (every(59, 40), [590]),
    "told again after it was over": ([*every(1, 15), *every(1, 11, 1_000)], [10, 1_010]),
    "not over while more than ten are in the window": ([*every(1, 15), *every(50, 20, 100)], [10]),
    "over with one attempt that is not too many": ([*every(1, 11), 601, 602, *every(1, 9, 603)], [10, 611]),
}
"""The seconds of attempts, and of those at which a burst is reported."""


@pytest.mark.parametrize(("seconds", "expected"), BURSTS.values(), ids=BURSTS.keys())
def test_a_burst_is(seconds: list[float], expected: list[float]) -> None:
    assert seconds_of(tried(*map(attempt, seconds))) == expected


def test_a_burst_says_since_when_the_attempts_count() -> None:
    [burst] = tried(attempt(0), *map(attempt, every(1, 11, 900))).emitted(bursts)
    assert (burst.since, burst.at) == (NOON + timedelta(seconds=900), NOON + timedelta(seconds=910))


def test_addresses_do_not_touch_each_other() -> None:
    result = tried(*(attempt(second, f"192.0.2.{second % 2}") for second in range(20)))
    assert seconds_of(result) == []


def test_attempts_count_by_when_they_were_made_and_not_by_when_they_came() -> None:
    """The burst is known with the attempt of second 3, which comes last, and begins with the eleventh in order."""
    assert seconds_of(tried(*(attempt(second) for second in (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 3)))) == [10]


def test_an_attempt_that_comes_too_late_is_counted_and_changes_nothing() -> None:
    result = tried(*map(attempt, every(1, 10, 100)), attempt(109 - 31), attempt(109 - 30))
    assert seconds_of(result) == [109]
    assert result.states(bursts)["192.0.2.1"].late == 1


def test_what_is_kept_of_an_address_is_bounded_however_often_it_tries() -> None:
    result = tried(*map(attempt, every(0.01, 2_000)))
    assert seconds_of(result) == [0.1]
    state = result.states(bursts)["192.0.2.1"]
    assert (len(state.times), len(state.reported)) == (KEPT_MAX, 1)


def test_an_address_that_is_quiet_is_forgotten() -> None:
    assert tried(*map(attempt, every(1, 20)), tick(REACH)).states(bursts) == {}


def test_a_pattern_would_tell_one_burst_again_and_again() -> None:
    """As the page says, this is why it is a handler."""
    given = list(map(attempt, every(1, 40)))
    eleven = cep.on("attempt", Attempt).times(11)
    assert len(cep.find(eleven, given, within=WINDOW)) == 30
    assert len(cep.find(eleven, given, within=WINDOW, skip=cep.skip.past_last)) == 3


def too_many(times: list[datetime]) -> list[list[datetime]]:
    """Return the bursts in all attempts so far, by counting in the window of each: runs of attempts above the limit."""
    runs: list[list[datetime]] = []
    before = False
    for place, at in enumerate(times):
        count = sum(at - WINDOW < other for other in times[: place + 1])
        if count > 10:
            if not before:
                runs.append([])
            runs[-1].append(at)
        before = count > 10
    return runs


def naive(arrivals: list[Attempt]) -> list[datetime]:
    """Recompute all bursts after each attempt, without forgetting; return those that contain no reported one."""
    known: list[datetime] = []
    members: set[datetime] = set()
    starts = []
    for arrival in arrivals:
        known = sorted([*known, arrival.at])
        runs = too_many(known)
        starts += [run[0] for run in runs if members.isdisjoint(run)]
        members = {at for run in runs for at in run}
    return starts


gaps = st.lists(st.tuples(st.sampled_from([1, 7, 40, 59, 61, 300]), st.integers(0, 29)), max_size=60)


@settings(max_examples=50)
@given(gaps)
def test_bursts_are_those_that_counting_finds_in_whatever_order_attempts_come(given: list[tuple[int, int]]) -> None:
    """Each is made some time after the one before, and comes up to half a minute late. All times are different: of
    equal ones, either may be above the limit."""
    second, pairs = 0.0, []
    for number, (gap, late) in enumerate(given):
        second += gap + 0.001
        pairs.append((second + late, attempt(second, number=number)))
    arrivals = [arrival for _, arrival in sorted(pairs, key=lambda pair: pair[0])]
    assert timedelta(seconds=29) <= LATE_AFTER
    result = tried(*arrivals)
    assert [burst.at for burst in result.emitted(bursts)] == naive(arrivals)


def test_a_crash_and_the_cut_of_batches_and_shards_change_nothing() -> None:
    given = events("logins", 1_500)
    calm = tried(*given)
    rough = run(
        app, {"attempts": [*given[:400], CRASH, *given[400:900], CRASH, *given[900:]]}, shards=3, batch_events=7
    )
    assert calm.digest(bursts) == rough.digest(bursts)
    assert Counter(map(str, calm.emitted(bursts))) == Counter(map(str, rough.emitted(bursts)))


def test_the_play_has_bursts_of_attackers_and_of_nobody_else() -> None:
    burst_events = tried(*events("logins", 3_000)).emitted(bursts)
    assert len(burst_events) >= 5
    assert all(burst.address.startswith("203.0.113.") for burst in burst_events)
    assert len(burst_events) == len({burst.address for burst in burst_events})
