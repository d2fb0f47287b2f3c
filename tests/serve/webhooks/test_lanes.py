"""Lanes keep the order of each key, let keys pass each other, and let nothing pass a message without a lane."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serve.webhooks.lanes import Lanes
from penstock.serve.webhooks.model import WebhookMessage


def message(number: int, lane: str | None) -> WebhookMessage:
    return WebhookMessage(number, "", 10, lane.encode() if lane is not None else None)


def test_a_lane_goes_in_order_and_lanes_go_side_by_side() -> None:
    lanes = Lanes()
    for number, lane in enumerate("aabc"):
        lanes.add(message(number, lane))
    taken = [lanes.take(0.0) for _ in range(4)]
    assert [entry.number for entry in taken if entry] == [0, 2, 3]
    assert taken[3] is None
    assert taken[0] is not None
    lanes.done(taken[0])
    again = lanes.take(0.0)
    assert again is not None
    assert again.number == 1
    assert (lanes.size, lanes.away, lanes.bytes) == (3, 3, 30)


def test_a_message_that_is_put_back_waits_until_it_is_due_and_its_lane_with_it() -> None:
    lanes = Lanes()
    lanes.add(message(1, "a"))
    lanes.add(message(2, "a"))
    first = lanes.take(0.0)
    assert first is not None
    lanes.back(first, 5.0)
    assert lanes.next_due() == 5.0
    assert lanes.take(4.9) is None
    assert lanes.take(5.0) is first


def test_a_lone_message_waits_for_all_before_it_and_all_after_it_wait_for_it() -> None:
    lanes = Lanes()
    for number, lane in enumerate(["a", "b", None, None, "a"]):
        lanes.add(message(number, lane))
    order = []
    while lanes.size:
        taken = []
        while (entry := lanes.take(0.0)) is not None:
            taken.append(entry)
        order.append([entry.number for entry in taken])
        for entry in taken:
            lanes.done(entry)
    assert order == [[0, 1], [2], [3], [4]]


def test_a_message_is_in_the_lanes_once() -> None:
    lanes = Lanes()
    lanes.add(message(1, "a"))
    lanes.add(message(1, "a"))
    assert lanes.size == 1


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40), st.integers(0, 10**6))
def test_whatever_fails_and_in_which_order_each_lane_and_each_lone_message_is_in_its_place(
    wanted: list[str | None], seed: int
) -> None:
    chance, lanes, now = random.Random(seed), Lanes(), 1.0
    done: list[WebhookMessage] = []
    away: list[WebhookMessage] = []
    adding = [message(number, lane) for number, lane in enumerate(wanted)]
    steps = 0
    while adding or lanes.size:
        steps += 1
        assert steps < 5000
        action = chance.choice(["add", "take", "done", "back", "time"])
        if action == "add" and adding:
            lanes.add(adding.pop(0))
        elif action == "take" and (taken := lanes.take(now)) is not None:
            away.append(taken)
        elif action == "done" and away:
            done.append(away.pop(chance.randrange(len(away))))
            lanes.done(done[-1])
        elif action == "back" and away:
            lanes.back(away.pop(chance.randrange(len(away))), now + chance.random())
        elif action == "time":
            now += 0.5
        assert lanes.away == len(away)
        assert len({entry.lane for entry in away}) == len(away)
        assert len(away) == 1 or all(entry.lane is not None for entry in away)
    assert sorted(entry.number for entry in done) == list(range(len(wanted)))
    for lane in (b"a", b"b", b"c"):
        numbers = [entry.number for entry in done if entry.lane == lane]
        assert numbers == sorted(numbers)
    for place, entry in enumerate(done):
        if entry.lane is None:
            assert all(other.number < entry.number for other in done[:place])
            assert all(other.number > entry.number for other in done[place + 1 :])
    assert (lanes.size, lanes.bytes, lanes.next_due(), lanes.take(now)) == (0, 0, None, None)
