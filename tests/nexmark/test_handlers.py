"""Every query, or the part of it that is a handler or a feed, without Spark: compared with plain loops over the same
events, shuffled within the allowed lateness, with crashes in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import nexmark
from examples.nexmark import app_for
from examples.nexmark_queries.auctions import WAITING_MAX
from examples.nexmark_queries.events import LATE_AFTER, Bid
from examples.nexmark_queries.generator import Generator, Happening, apart, shuffled
from penstock.core.columns import to_batch
from penstock.core.filters import compiled
from penstock.core.schema import event_schema, shown
from penstock.core.times import from_micros, to_micros
from penstock.handlers.samples import BEGIN
from penstock.testing import CRASH, STEP, Result, run, tick
from tests.nexmark import reference
from tests.nexmark.rows import COLUMNS, STATISTICS, difference, rows_of

SEEDS = st.integers(0, 2**32)


def events_of(seed: int, count: int = 400) -> list[Happening]:
    """Return ten events a second, for a minute, in which some auctions end."""
    return shuffled(Generator(count, seed=seed, per_second=10), LATE_AFTER, seed)


def offer(price: int, bidder: int = 1, at: datetime = BEGIN) -> Bid:
    return Bid(auction=1, bidder=bidder, price=price, channel="Apple", url="", dateTime=at, extra="")


def emitted(name: str, events: list[Happening], handlers: str, *, shards: int = 2) -> Result:
    """Return the results of a query's handlers. Half way, and at an odd offset, the process ends."""
    given: dict[str, list[Any]] = {}
    for stream, group in apart(events).items():
        half = max(len(group) // 2, 7)
        given[stream] = [*group[:7], CRASH, *group[7:half], CRASH, *group[half:]]
    result = run(app_for(name), given, shards=shards, batch_events=50)
    assert result.failed(handlers) == []
    return result


def latest(events: Iterable[Any]) -> list[Any]:
    """Return the last event of each auction, as the view on top of the handler has it."""
    return list({event.id: event for event in sorted(events, key=lambda event: int(event.number))}.values())


@pytest.mark.parametrize("name", ["q0", "q1", "q10", "q13", "q14", "q21", "q22"])
@settings(max_examples=5)
@given(seed=SEEDS)
def test_a_query_about_single_bids_gives_what_the_loop_gives(name: str, seed: int) -> None:
    events = events_of(seed)
    outputs = emitted(name, events, name).emitted(name)
    expected = reference.EXPECTED[name](reference.World(events))
    assert expected
    assert difference(rows_of(name, outputs), expected) == ""


@settings(max_examples=5)
@given(seed=SEEDS)
def test_q2_is_what_its_feed_lets_through(seed: int) -> None:
    events = [event for event in events_of(seed, 2_000) if isinstance(event, Bid)]
    (feed,) = app_for("q2").feeds
    passes = compiled(shown(event_schema(Bid)), feed.condition, feed.select)
    nothing: list[str | None] = [None] * len(events)
    batch = to_batch(Bid, events, ids=nothing, keys=nothing, now=BEGIN)
    rows = passes.project(batch.filter(passes.mask(batch))).to_pylist()
    assert difference(rows_of("q2", rows), reference.q2(reference.World(events))) == ""


@settings(max_examples=5)
@given(seed=SEEDS)
def test_winning_bids_of_q9_and_the_averages_of_q4_and_q6(seed: int) -> None:
    events = events_of(seed, 600)
    world = reference.World(events)
    result = emitted("q6", events, "q6")
    won = result.emitted("winning")
    assert difference(rows_of("q9", latest(won)), reference.q9(world)) == ""
    assert difference(rows_of("q6", result.rows("q6")), reference.q6(world)) == ""
    sums, counts = defaultdict[int, int](int), defaultdict[int, int](int)
    for bid in won:
        sums[bid.category] += bid.price - (bid.before or 0)
        counts[bid.category] += bid.before is None
    assert difference([(category, sums[category] // counts[category]) for category in sums], reference.q4(world)) == ""
    assert world.winners()


def test_bids_that_wait_for_their_auction_are_bounded() -> None:
    many = [offer(price) for price in range(WAITING_MAX + 5)]
    (state,) = run(app_for("q9"), {"bid": many}).states("winning").values()
    assert sorted(bid.price for bid in state.waiting) == list(range(5, WAITING_MAX + 5)), "the lowest go"


@settings(max_examples=5)
@given(seed=SEEDS)
def test_q12_counts_by_when_bids_come(seed: int) -> None:
    bids = [event for event in events_of(seed, 200) if isinstance(event, Bid)]
    pause = tick(timedelta(seconds=4))
    items: list[Any] = []
    for number, bid in enumerate(bids):
        items += [bid] if number % 9 else [pause, bid]
    now, arrived = BEGIN, []
    for item in items:
        now += STEP if isinstance(item, Bid) else item.by
        if isinstance(item, Bid):
            arrived.append((item.bidder, from_micros(to_micros(now))))
    over = [tick(timedelta(minutes=1)), tick(timedelta(seconds=1))]
    result = run(app_for("q12"), {"bid": [*items[:30], CRASH, *items[30:], *over]}, shards=2)
    assert difference(rows_of("q12", result.emitted("q12")), reference.q12(arrived)) == ""


@settings(max_examples=5)
@given(seed=SEEDS)
def test_q15_counts_each_bidder_and_each_auction_once_a_day_and_rank(seed: int) -> None:
    events = events_of(seed)
    result = emitted("q15", events, "q15-bidders")
    (row,) = reference.q15(reference.World(events))
    figures = dict(zip(("day", *STATISTICS), row, strict=True))
    for what in ("bidders", "auctions"):
        seen = [event.rank for event in result.emitted(f"q15-{what}")]
        ranks = [figures[f"{rank}_{what}"] for rank in ("total", "rank1", "rank2", "rank3")]
        assert [seen.count(rank) for rank in range(4)] == ranks


@settings(max_examples=5)
@given(seed=SEEDS)
def test_q19_tells_the_ten_highest_bids_of_each_auction(seed: int) -> None:
    events = events_of(seed, 600)
    rows = emitted("q19", events, "q19").rows("q19")
    assert difference(rows_of("q19", rows), reference.q19(reference.World(events))) == ""


TIES = (
    # the bids for auction 1 (price, second, bidder), and the first and second in rank
    ("the higher first", [(100, 0, 1), (200, 1, 2)], [2, 1]),
    ("of the same price the earlier", [(200, 1, 2), (200, 0, 1)], [1, 2]),
    ("at the same time the lower number", [(200, 0, 2), (200, 0, 1)], [1, 2]),
)


@pytest.mark.parametrize(("what", "bids", "first"), TIES, ids=[tie[0] for tie in TIES])
def test_q19_ranks(what: str, bids: list[tuple[int, int, int]], first: list[int]) -> None:
    events: list[Happening] = [
        offer(price, bidder, BEGIN + timedelta(seconds=second)) for price, second, bidder in bids
    ]
    ranked = emitted("q19", events, "q19").rows("q19")
    assert [row.bidder for row in sorted(ranked, key=lambda row: row.rank_number)] == first


def test_there_are_all_queries_from_0_to_22() -> None:
    names = [f"q{number}" for number in range(23)]
    assert list(nexmark.QUERIES) == names == sorted(COLUMNS, key=lambda name: int(name[1:]))
    assert set(reference.EXPECTED) == set(names) - {"q12"}
    for name in names:
        app = getattr(nexmark, name)
        served: Callable[[str], bool] = {node.name for node in (*app.views, *app.outputs, *app.feeds)}.__contains__
        assert served(name), "the result of a query has its name"
