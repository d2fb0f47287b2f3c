"""The events of Nexmark: generated in the proportions and with the skew of the benchmark, the same each time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.nexmark_queries.events import LATE_AFTER, Auction, Bid, Person
from examples.nexmark_queries.generator import Generator, apart, shuffled

EVENTS = 20_000


@pytest.fixture(scope="module")
def events() -> list[Person | Auction | Bid]:
    return list(Generator(EVENTS, seed=1))


def test_a_seed_gives_the_same_events_each_time() -> None:
    once = Generator(500, seed=7)
    assert list(once) == list(once) == list(Generator(500, seed=7))
    assert list(once) != list(Generator(500, seed=8))


def test_longer_is_the_same_and_more() -> None:
    assert list(Generator(500, seed=7))[:200] == list(Generator(200, seed=7))


def test_of_fifty_events_one_is_a_person_and_three_are_auctions(events: list[Person | Auction | Bid]) -> None:
    assert {name: len(group) for name, group in apart(events).items()} == {
        "person": EVENTS // 50,
        "auction": 3 * EVENTS // 50,
        "bid": 46 * EVENTS // 50,
    }
    assert [type(event) for event in events[:6]] == [Person, Auction, Auction, Auction, Bid, Bid]


def test_event_time_passes_evenly(events: list[Person | Auction | Bid]) -> None:
    assert events[-1].dateTime - events[0].dateTime == timedelta(milliseconds=(EVENTS - 1) // 10)
    assert all(one.dateTime <= other.dateTime for one, other in pairwise(events))


def test_half_of_the_bids_are_for_hot_auctions_and_most_from_hot_bidders(
    events: list[Person | Auction | Bid],
) -> None:
    bids = [event for event in events if isinstance(event, Bid)]
    hot = Counter(bid.auction % 100 for bid in bids)[0] / len(bids)
    assert 0.47 < hot < 0.55
    keen = Counter(bid.bidder % 100 for bid in bids)[1] / len(bids)
    assert 0.72 < keen < 0.80
    sellers = Counter(event.seller % 100 for event in events if isinstance(event, Auction))
    assert 0.72 < sellers[0] / sellers.total() < 0.80


def test_people_and_auctions_have_numbers_in_order(events: list[Person | Auction | Bid]) -> None:
    for name, count in (("person", EVENTS // 50), ("auction", 3 * EVENTS // 50)):
        assert [getattr(event, "id", None) for event in apart(events)[name]] == list(range(1_000, 1_000 + count))


def test_some_bids_come_before_their_auction_and_some_after_its_end(events: list[Person | Auction | Bid]) -> None:
    lots = {event.id: event for event in events if isinstance(event, Auction)}
    bids = [event for event in events if isinstance(event, Bid) and event.auction in lots]
    assert any(bid.dateTime < lots[bid.auction].dateTime for bid in bids)
    assert any(bid.dateTime > lots[bid.auction].expires for bid in bids)
    assert any(lots[bid.auction].dateTime <= bid.dateTime <= lots[bid.auction].expires for bid in bids)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), within=st.integers(0, 10_000))
def test_shuffled_events_are_never_later_than_allowed(seed: int, within: int) -> None:
    allowed = timedelta(milliseconds=within)
    events = list(Generator(100, seed=seed, per_second=20))
    arrived = shuffled(events, allowed, seed)
    newest = accumulate((event.dateTime for event in arrived), max)
    assert all(reached - event.dateTime <= allowed for event, reached in zip(arrived, newest, strict=True))
    assert sorted(arrived, key=repr) == sorted(events, key=repr)


def test_shuffling_is_worth_its_name() -> None:
    events = list(Generator(300, seed=3, per_second=20))
    assert [event.dateTime for event in shuffled(events, LATE_AFTER, 3)] != [event.dateTime for event in events]
