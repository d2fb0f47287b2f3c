"""Queries that count and rank: q15, q16, q17, q18, q19.

Spark Structured Streaming has no `count(DISTINCT ...)`. q16 uses sets in Spark's state instead, which takes little code
and works well while the sets are small. In q15, handlers detect the first occurrence of each bidder and each auction,
and SQL counts these, so the whole set never has to be in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from msgspec import convert
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.nexmark_queries.events import Bid, Streams
from penstock import App, Context, Event, Record, State

LOW, HIGH = 10_000, 1_000_000
TOP = 10


def rank(price: int) -> int:
    return 1 if price < LOW else 2 if price < HIGH else 3


class Seen(State):
    """The price ranks in which a bidder or auction was seen, by day. 0 means any rank."""

    ranks: dict[str, list[int]] = {}  # noqa: RUF012  # msgspec gives each instance its own


class Sighting(Event):
    """The first occurrence of a bidder or auction in a rank on one day."""

    day: str
    rank: int


def q15(app: App, streams: Streams) -> None:
    """Bidding statistics: the number of bids, distinct bidders and distinct auctions per day, by price rank."""

    def sightings(seen: Seen, bid: Bid) -> Iterator[Sighting]:
        day = f"{bid.dateTime:%Y-%m-%d}"
        ranks = seen.ranks.setdefault(day, [])
        for number in (0, rank(bid.price)):
            if number not in ranks:
                ranks.append(number)
                yield Sighting(day=day, rank=number)

    @app.handler("q15-bidders", reads=streams.bid, key="bidder", state=Seen, emits=Sighting)
    def bidders(seen: Seen, bid: Bid, ctx: Context) -> Iterator[Sighting]:
        yield from sightings(seen, bid)

    @app.handler("q15-auctions", reads=streams.bid, key="auction", state=Seen, emits=Sighting)
    def auctions(seen: Seen, bid: Bid, ctx: Context) -> Iterator[Sighting]:
        yield from sightings(seen, bid)

    app.sql(
        "q15",
        f"""
        SELECT day,
               count_if(what = 'bid') AS total_bids,
               count_if(what = 'bid' AND rank = 1) AS rank1_bids,
               count_if(what = 'bid' AND rank = 2) AS rank2_bids,
               count_if(what = 'bid' AND rank = 3) AS rank3_bids,
               count_if(what = 'bidder' AND rank = 0) AS total_bidders,
               count_if(what = 'bidder' AND rank = 1) AS rank1_bidders,
               count_if(what = 'bidder' AND rank = 2) AS rank2_bidders,
               count_if(what = 'bidder' AND rank = 3) AS rank3_bidders,
               count_if(what = 'auction' AND rank = 0) AS total_auctions,
               count_if(what = 'auction' AND rank = 1) AS rank1_auctions,
               count_if(what = 'auction' AND rank = 2) AS rank2_auctions,
               count_if(what = 'auction' AND rank = 3) AS rank3_auctions
        FROM (
            SELECT date_format(dateTime, 'yyyy-MM-dd') AS day, 'bid' AS what,
                   CASE WHEN price < {LOW} THEN 1 WHEN price < {HIGH} THEN 2 ELSE 3 END AS rank
            FROM bid
            UNION ALL SELECT day, 'bidder' AS what, rank FROM `q15-bidders`
            UNION ALL SELECT day, 'auction' AS what, rank FROM `q15-auctions`
        )
        GROUP BY day
        """,
        key="day",
    )


def q16(app: App, streams: Streams) -> None:
    """Channel statistics: the figures of q15 per channel, with the last minute in which the channel was used."""
    low, middle, high = f"price < {LOW}", f"price >= {LOW} AND price < {HIGH}", f"price >= {HIGH}"
    app.sql(
        "q16",
        f"""
        SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day,
               max(date_format(dateTime, 'HH:mm')) AS minute,
               count(*) AS total_bids,
               count_if({low}) AS rank1_bids,
               count_if({middle}) AS rank2_bids,
               count_if({high}) AS rank3_bids,
               size(collect_set(bidder)) AS total_bidders,
               size(collect_set(bidder) FILTER (WHERE {low})) AS rank1_bidders,
               size(collect_set(bidder) FILTER (WHERE {middle})) AS rank2_bidders,
               size(collect_set(bidder) FILTER (WHERE {high})) AS rank3_bidders,
               size(collect_set(auction)) AS total_auctions,
               size(collect_set(auction) FILTER (WHERE {low})) AS rank1_auctions,
               size(collect_set(auction) FILTER (WHERE {middle})) AS rank2_auctions,
               size(collect_set(auction) FILTER (WHERE {high})) AS rank3_auctions
        FROM bid
        GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd')
        """,
        key=["channel", "day"],
    )


def q17(app: App, streams: Streams) -> None:
    """Auction statistics: the number of bids and their prices, per auction and day."""
    app.sql(
        "q17",
        f"""
        SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day,
               count(*) AS total_bids,
               count_if(price < {LOW}) AS rank1_bids,
               count_if(price >= {LOW} AND price < {HIGH}) AS rank2_bids,
               count_if(price >= {HIGH}) AS rank3_bids,
               min(price) AS min_price,
               max(price) AS max_price,
               sum(price) DIV count(*) AS avg_price,
               sum(price) AS sum_price
        FROM bid
        GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')
        """,
        key=["auction", "day"],
    )


def q18(app: App, streams: Streams) -> None:
    """Last bid: the latest bid of each bidder in each auction, or the highest if several have the same time."""

    @app.view("q18", reads=streams.bid, key=["bidder", "auction"])
    def q18(bid: DataFrame) -> DataFrame:
        last = F.max(F.struct("dateTime", "price", "channel", "url", "extra")).alias("last")
        return bid.groupBy("bidder", "auction").agg(last).select("bidder", "auction", "last.*")


class Offer(Record):
    price: int
    dateTime: datetime
    bidder: int
    channel: str
    url: str
    extra: str


class Best(State):
    offers: list[Offer] = []  # noqa: RUF012


class Ranked(Event):
    auction: int
    rank_number: int
    bidder: int
    price: int
    channel: str
    url: str
    dateTime: datetime
    extra: str


def q19(app: App, streams: Streams) -> None:
    """Top ten: the highest bids in each auction, with their ranks. If prices are equal, the earlier bid ranks higher.
    For each rank whose bid has changed, the handler emits a new row for the view."""

    def higher(offer: Offer) -> tuple[int, datetime, int, str]:
        return -offer.price, offer.dateTime, offer.bidder, offer.extra

    @app.handler("q19", reads=streams.bid, key="auction", state=Best, emits=Ranked, view=["auction", "rank_number"])
    def q19(best: Best, bid: Bid, ctx: Context) -> Iterator[Ranked]:
        if len(best.offers) == TOP and bid.price < best.offers[-1].price:
            return
        before, offer = best.offers, convert(bid, Offer, from_attributes=True)
        best.offers = sorted([*before, offer], key=higher)[:TOP]
        for place, listed in enumerate(best.offers):
            if place >= len(before) or before[place] is not listed:
                yield Ranked(
                    auction=bid.auction, rank_number=place + 1, bidder=listed.bidder, price=listed.price,
                    channel=listed.channel, url=listed.url, dateTime=listed.dateTime, extra=listed.extra,
                )  # fmt: skip
