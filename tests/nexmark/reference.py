"""The expected result of each query of Nexmark: plain loops over a list of all events, from the benchmark's text alone.

A result is a list of rows, as tuples of the columns in `rows.COLUMNS`. Windows are included if they are over when the
last event has come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from examples.nexmark_queries.events import LATE_AFTER, Auction, Bid, Person
from examples.nexmark_queries.single import SIDE_INPUT

Rows = list[tuple[Any, ...]]
SECOND = timedelta(seconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class World:
    """All events, grouped by kind."""

    def __init__(self, events: Iterable[Any]) -> None:
        every = sorted(events, key=lambda event: event.dateTime)
        self.people = [event for event in every if isinstance(event, Person)]
        self.auctions = [event for event in every if isinstance(event, Auction)]
        self.bids = [event for event in every if isinstance(event, Bid)]

    def over(self, *kinds: Sequence[Any]) -> datetime:
        """Return the time up to which windows are over: the progress of the slowest of these kinds."""
        newest: list[datetime] = [kind[-1].dateTime for kind in kinds]
        return min(newest) - LATE_AFTER

    def valid(self) -> dict[int, list[Bid]]:
        """Return the bids of each auction that came while it was open."""
        lots = {auction.id: auction for auction in self.auctions}
        bids = defaultdict(list)
        for bid in self.bids:
            lot = lots.get(bid.auction)
            if lot is not None and lot.dateTime <= bid.dateTime <= lot.expires:
                bids[bid.auction].append(bid)
        return bids

    def winners(self) -> dict[int, Bid]:
        return {auction: sorted(bids, key=best_first)[0] for auction, bids in self.valid().items()}


def best_first(bid: Bid) -> tuple[Any, ...]:
    return -bid.price, bid.dateTime, bid.bidder, bid.extra


def floor(time: datetime, step: timedelta) -> datetime:
    return EPOCH + (time - EPOCH) // step * step


def q0(world: World) -> Rows:
    return [(bid.auction, bid.bidder, bid.price, bid.dateTime, bid.extra) for bid in world.bids]


def q1(world: World) -> Rows:
    return [(a, b, Decimal(908 * price).scaleb(-3), at, extra) for a, b, price, at, extra in q0(world)]


def q2(world: World) -> Rows:
    return [(bid.auction, bid.price) for bid in world.bids if not bid.auction % 123]


def q3(world: World) -> Rows:
    people = {person.id: person for person in world.people if person.state in {"OR", "ID", "CA"}}
    return [
        (people[auction.seller].name, people[auction.seller].city, people[auction.seller].state, auction.id)
        for auction in world.auctions
        if auction.category == 10 and auction.seller in people
    ]


def q4(world: World) -> Rows:
    category = {auction.id: auction.category for auction in world.auctions}
    finals = defaultdict(list)
    for auction, bid in world.winners().items():
        finals[category[auction]].append(bid.price)
    return [(category_id, sum(prices) // len(prices)) for category_id, prices in finals.items()]


def q5(world: World) -> Rows:
    windows: dict[datetime, Counter[int]] = defaultdict(Counter)
    for bid in world.bids:
        last = floor(bid.dateTime, 2 * SECOND)
        for step in range(5):
            windows[last - step * 2 * SECOND][bid.auction] += 1
    rows: Rows = []
    for start, counts in windows.items():
        if start + 10 * SECOND <= world.over(world.bids):
            most = max(counts.values())
            rows.append((start, most, sorted(auction for auction, count in counts.items() if count == most)))
    return rows


def q6(world: World) -> Rows:
    sold = defaultdict(list)
    winners = world.winners()
    for auction in world.auctions:
        if auction.id in winners:
            sold[auction.seller].append((auction.expires, auction.id, winners[auction.id].price))
    rows: Rows = []
    for seller, every in sold.items():
        last = [price for _, _, price in sorted(every)[-10:]]
        rows.append((seller, sum(last) // len(last)))
    return rows


def q7(world: World) -> Rows:
    windows = defaultdict(list)
    for bid in world.bids:
        windows[floor(bid.dateTime, 10 * SECOND)].append(bid)
    return [
        (bid.auction, bid.bidder, bid.price, bid.dateTime, bid.extra)
        for start, bids in windows.items()
        for bid in bids
        if start + 10 * SECOND <= world.over(world.bids) and bid.price == max(other.price for other in bids)
    ]


def q8(world: World) -> Rows:
    sold = {(auction.seller, floor(auction.dateTime, 10 * SECOND)) for auction in world.auctions}
    came = [(person.id, person.name, floor(person.dateTime, 10 * SECOND)) for person in world.people]
    return [(id, name, start) for id, name, start in came if (id, start) in sold]


def q9(world: World) -> Rows:
    winners = world.winners()
    return [
        (
            lot.id, lot.itemName, lot.description, lot.initialBid, lot.reserve, lot.dateTime, lot.expires,
            lot.seller, lot.category, lot.extra, lot.id, winners[lot.id].bidder, winners[lot.id].price,
            winners[lot.id].dateTime, winners[lot.id].extra,
        )
        for lot in world.auctions
        if lot.id in winners
    ]  # fmt: skip


def q10(world: World) -> Rows:
    return [(*row, row[3].date().isoformat(), row[3].time().isoformat()[:5]) for row in q0(world)]


def q11(world: World) -> Rows:
    times = defaultdict(list)
    for bid in world.bids:
        times[bid.bidder].append(bid.dateTime)
    rows: Rows = []
    for bidder, every in times.items():
        breaks = [0, *(i for i in range(1, len(every)) if every[i] - every[i - 1] > 10 * SECOND), len(every)]
        for begin, end in pairwise(breaks):
            ended = every[end - 1] + 10 * SECOND
            if ended <= world.over(world.bids):
                rows.append((bidder, end - begin, every[begin], ended))
    return rows


def q12(arrived: Iterable[tuple[int, datetime]]) -> Rows:
    """Return the result for the arrivals, each a bidder and a time."""
    counts = Counter((bidder, floor(time, 10 * SECOND)) for bidder, time in arrived)
    return [(bidder, count, start, start + 10 * SECOND) for (bidder, start), count in counts.items()]


def q13(world: World) -> Rows:
    return [
        (bid.auction, bid.bidder, bid.price, bid.dateTime, SIDE_INPUT[bid.auction % 10_000])
        for bid in world.bids
        if bid.auction % 10_000 in SIDE_INPUT
    ]


def q14(world: World) -> Rows:
    times = ["nightTime"] * 7 + ["otherTime"] + ["dayTime"] * 11 + ["otherTime"] + ["nightTime"] * 4
    return [
        (a, b, price, times[at.hour], at, extra, sum(letter == "c" for letter in extra))
        for a, b, price, at, extra in q1(world)
        if 10**6 < price < 5 * 10**7
    ]


def _statistics(bids: Sequence[Bid]) -> tuple[int, ...]:
    parts = [
        bids,
        [bid for bid in bids if bid.price < 10_000],
        [bid for bid in bids if 10_000 <= bid.price < 1_000_000],
        [bid for bid in bids if bid.price >= 1_000_000],
    ]
    counts = [len(part) for part in parts]
    bidders = [len({bid.bidder for bid in part}) for part in parts]
    return (*counts, *bidders, *(len({bid.auction for bid in part}) for part in parts))


def _grouped(bids: Iterable[Bid], key: Callable[[Bid], Any]) -> dict[Any, list[Bid]]:
    groups = defaultdict(list)
    for bid in bids:
        groups[key(bid)].append(bid)
    return groups


def q15(world: World) -> Rows:
    return [(day, *_statistics(bids)) for day, bids in _grouped(world.bids, _day).items()]


def q16(world: World) -> Rows:
    groups = _grouped(world.bids, lambda bid: (bid.channel, _day(bid)))
    minute = {key: max(bid.dateTime.time().isoformat()[:5] for bid in bids) for key, bids in groups.items()}
    return [(*key, minute[key], *_statistics(bids)) for key, bids in groups.items()]


def q17(world: World) -> Rows:
    rows: Rows = []
    for key, bids in _grouped(world.bids, lambda bid: (bid.auction, _day(bid))).items():
        prices = [bid.price for bid in bids]
        figures = (min(prices), max(prices), sum(prices) // len(prices), sum(prices))
        rows.append((*key, *_statistics(bids)[:4], *figures))
    return rows


def q18(world: World) -> Rows:
    groups = _grouped(world.bids, lambda bid: (bid.auction, bid.bidder))
    last = [max(bids, key=lambda bid: (bid.dateTime, bid.price, bid.channel)) for bids in groups.values()]
    return [(bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.dateTime, bid.extra) for bid in last]


def q19(world: World) -> Rows:
    return [
        (bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.dateTime, bid.extra, rank)
        for bids in _grouped(world.bids, lambda bid: bid.auction).values()
        for rank, bid in enumerate(sorted(bids, key=best_first)[:10], 1)
    ]


def q20(world: World) -> Rows:
    lots = {auction.id: auction for auction in world.auctions if auction.category == 10}
    return [
        (
            bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.dateTime, bid.extra, lot.itemName,
            lot.description, lot.initialBid, lot.reserve, lot.dateTime, lot.expires, lot.seller, lot.category,
            lot.extra,
        )
        for bid in world.bids
        for lot in [lots.get(bid.auction)]
        if lot is not None
    ]  # fmt: skip


def q21(world: World) -> Rows:
    rows: Rows = []
    for bid in world.bids:
        number = ["apple", "google", "facebook", "baidu"].index(bid.channel.lower()) if "-" not in bid.channel else None
        channel_ids = [part[11:] for part in bid.url.split("&") if part.startswith("channel_id=")]
        if number is not None or channel_ids:
            rows.append(
                (bid.auction, bid.bidder, bid.price, bid.channel, channel_ids[0] if number is None else str(number))
            )
    return rows


def q22(world: World) -> Rows:
    return [
        (bid.auction, bid.bidder, bid.price, bid.channel, *bid.url.removeprefix("https://").split("/")[1:4])
        for bid in world.bids
    ]


def _day(bid: Bid) -> str:
    return bid.dateTime.date().isoformat()


EXPECTED: dict[str, Callable[[World], Rows]] = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5, "q6": q6, "q7": q7, "q8": q8, "q9": q9, "q10": q10,
    "q11": q11, "q13": q13, "q14": q14, "q15": q15, "q16": q16, "q17": q17, "q18": q18, "q19": q19, "q20": q20,
    "q21": q21, "q22": q22,
}  # fmt: skip
"""All except q12, which depends on when bids arrive."""
