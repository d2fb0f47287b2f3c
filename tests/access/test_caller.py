"""Grants, limits and expiry of a caller."""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access import ANYONE, CALLER, Caller, Grants, caller_of
from penstock.core.access.caller import BURST_S, SCOPED_BYTES_MAX, Bucket
from penstock.core.access.grants import ALL, grants
from penstock.core.errors import Forbidden, RateLimited, Unauthorized
from tests.clocks import until
from tests.collect.support import in_loop

RATES = st.floats(0.01, 1e6)
STEPS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5_000)), max_size=60)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@given(RATES, STEPS)
def test_nobody_takes_more_than_rate_and_burst_and_one_request(rate: float, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock)
    taken, last, start = 0, 0, clock.now
    for pause_s, count in steps:
        clock.now += pause_s
        if bucket.wait_s() == 0:
            last = max(1, count)
            bucket.take(count)
            taken += last
            allowed = rate * (clock.now - start) + max(1.0, rate * BURST_S) + last
            assert taken <= allowed * (1 + 1e-9) + 1e-6


@given(RATES, STEPS)
def test_who_waits_as_long_as_told_is_let_in(rate: float, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock)
    for pause_s, count in steps:
        clock.now += pause_s
        wait_s = bucket.wait_s()
        if wait_s:
            assert 0 < wait_s < math.inf
            assert bucket.wait_s() == wait_s, "asking costs nothing"
            clock.now += math.ceil(wait_s)
            assert bucket.wait_s() == 0
        bucket.take(count)


@given(RATES, st.integers(1, 100_000))
def test_a_request_larger_than_the_rate_is_let_in_once_and_paid_for(rate: float, count: int) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock)
    assert bucket.wait_s() == 0
    bucket.take(count)
    debt = count - max(1.0, rate * BURST_S)
    if debt > 0:
        assert bucket.wait_s() == pytest.approx((1 + debt) / rate)


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    clock = Clock()
    bucket = Bucket(10, clock)
    clock.now += 1e9
    for _ in range(20):
        assert bucket.wait_s() == 0
        bucket.take(1)
    assert bucket.wait_s() == pytest.approx(0.1)


def test_a_request_that_has_no_event_counts_as_one() -> None:
    bucket = Bucket(0.5, Clock())
    bucket.take(0)
    assert bucket.wait_s() == 2.0


def test_a_caller_over_its_rate_is_told_for_how_long() -> None:
    clock = Clock()
    caller = Caller("key:bob", Grants(), Bucket(2, clock))
    for _ in range(4):
        caller.require_room()
        caller.spend(1)
    with pytest.raises(RateLimited, match="key:bob has exceeded its rate of 2 events or requests a second") as refused:
        caller.require_room()
    assert refused.value.retry_after_s == 1
    clock.now += refused.value.retry_after_s
    caller.require_room()
    caller.spend(7)
    with pytest.raises(RateLimited) as refused:
        caller.require_room()
    clock.now += refused.value.retry_after_s - 1
    with pytest.raises(RateLimited):
        caller.require_room()
    clock.now += 1
    caller.require_room()


def test_a_caller_without_a_rate_never_waits() -> None:
    caller = Caller("key:bob", Grants())
    caller.spend(10**12)
    caller.require_room()
    assert caller.wait_s() == 0


def test_what_is_not_granted_is_refused_with_the_grant_that_it_takes() -> None:
    caller = Caller("key:bob", grants(["produce:a"]))
    caller.require("produce", "a")
    with pytest.raises(Forbidden, match="key:bob is not allowed to consume 'a'; it needs the grant consume:a"):
        caller.require("consume", "a")
    with pytest.raises(Forbidden, match="is not allowed to consume everything"):
        caller.require("consume", "*")
    with pytest.raises(Forbidden) as refused:
        caller.require("produce", "x" * 100_000)
    assert len(refused.value.message) < 300


@given(st.tuples(st.text(max_size=8), st.text(max_size=8)), st.tuples(st.text(max_size=8), st.text(max_size=8)))
def test_the_same_word_of_two_callers_is_two_words(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Callers' names may contain a separator, as a subject or a URI may."""
    first, second = (Caller(f"token:{name}", Grants()).scoped(word) for name, word in (one, other))
    assert (first == second) == (one == other)


def test_callers_with_slashes_in_their_names_do_not_meet() -> None:
    assert Caller("token:a", Grants()).scoped("b/c") != Caller("token:a/b", Grants()).scoped("c")
    assert Caller("", Grants()).scoped("k") == "k"


def test_a_long_key_is_hashed_because_the_id_of_each_event_contains_it() -> None:
    nobody, ann, long = Caller("", Grants()), Caller("key:ann", Grants()), "k" * SCOPED_BYTES_MAX
    assert nobody.scoped(long) == long, "a key that fits keeps its form"
    assert nobody.scoped("é" * 32) == "é" * 32
    others = [nobody.scoped(long + "k"), nobody.scoped("é" * 33), ann.scoped(long), ann.scoped(long + "k")]
    assert all(re.fullmatch("hash:[0-9a-f]{32}", key) for key in others)
    assert len(set(others)) == len(others)
    assert ann.scoped(long) == Caller("key:ann", Grants()).scoped(long)
    assert len(Caller("token:" + "x" * 1_000, Grants()).scoped("k")) <= SCOPED_BYTES_MAX


@in_loop
async def test_connections_of_a_caller_end_with_it() -> None:
    caller = Caller("key:bob", Grants())
    waiting = [asyncio.create_task(caller.ended()) for _ in range(3)]
    await asyncio.sleep(0)
    caller.limit(time.time() + 3600)
    await until(lambda: not any(waiter.done() for waiter in caller._waiting))  # each was told, and looked
    assert not any(task.done() for task in waiting), "it may still do something"
    caller.limit(0.0)
    await until(lambda: all(task.done() for task in waiting))
    await asyncio.wait_for(caller.ended(), 60)


@in_loop
async def test_a_caller_ends_by_itself_when_its_time_is_over() -> None:
    caller = Caller("token:bob", Grants(), until=time.time() + 0.05)
    await asyncio.wait_for(caller.ended(), 60)
    assert caller.until <= time.time()


@in_loop
async def test_the_end_of_a_caller_can_be_moved_to_a_time() -> None:
    caller = Caller("key:bob", Grants())
    waiting = asyncio.create_task(caller.ended())
    await asyncio.sleep(0)
    caller.limit(time.time() + 0.05)
    await asyncio.wait_for(waiting, 60)


def test_a_request_without_a_caller_is_a_mistake_and_not_let_in() -> None:
    assert caller_of({CALLER: ANYONE}) is ANYONE
    with pytest.raises(KeyError):
        caller_of({})


def test_work_of_a_caller_goes_on_in_one_loop_after_another_and_ends_with_the_caller() -> None:
    """Nothing of a closed loop stays with the caller."""
    caller = Caller("key:ann", ALL)

    async def one() -> int:
        await asyncio.sleep(0)
        return 1

    for _ in range(2):
        assert asyncio.run(caller.while_valid(one(), "over")) == 1

    async def ended() -> None:
        waiting = asyncio.ensure_future(caller.while_valid(asyncio.Event().wait(), "it is over"))
        await asyncio.sleep(0)
        caller.limit(0.0)
        with pytest.raises(Unauthorized, match="it is over"):
            await waiting

    asyncio.run(ended())


def test_what_was_reserved_and_not_used_is_given_back() -> None:
    caller = Caller("key:bob", Grants(), Bucket(10.0, lambda: 0.0))
    reserved = caller.reserve(1000)
    assert caller.wait_s() > 90
    with pytest.raises(RateLimited):
        caller.reserve(1)
    caller.settle(reserved, 5)
    assert caller.wait_s() == 0
    caller.spend(15)
    assert caller.wait_s() > 0, "20 in all: no more came back than was taken"
