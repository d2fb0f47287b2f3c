"""Queries that bring auctions, bids and people together: q3, q4, q6, q9, q20.

q3 and q20 are joins of Spark. For q4, q6 and q9 a handler follows each auction and tells whenever another bid is the
winning one, with the price that it takes the place of: so sums and averages further down can be corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import convert
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.nexmark_queries.events import Auction, Bid, Nothing, Streams
from penstock import App, Context, Event, Record, State
from penstock.declared import Handler

KEPT = timedelta(hours=1)
LAST = 10
WAITING_MAX = 1_000
"""Bids that are kept of an auction that has not come. Of more than that the lowest goes."""


class Lot(Record):
    """What an auction says."""

    id: int
    itemName: str
    description: str
    initialBid: int
    reserve: int
    dateTime: datetime
    expires: datetime
    seller: int
    category: int
    extra: str


class Price(Record):
    """What a bid says."""

    bidder: int
    price: int
    dateTime: datetime
    extra: str


class Offer(Event):
    """An auction, or a bid for one: both kinds in one stream."""

    auction: int
    lot: Lot | None = None
    bid: Price | None = None


class Winning(Event):
    """The auction's nth winning bid, and the price of the one before it."""

    number: int
    before: int | None
    id: int
    itemName: str
    description: str
    initialBid: int
    reserve: int
    dateTime: datetime
    expires: datetime
    seller: int
    category: int
    extra: str
    auction: int
    bidder: int
    price: int
    bid_dateTime: datetime
    bid_extra: str


class Sale(State):
    """What is known of an auction. Until it has come itself, all bids for it wait."""

    lot: Lot | None = None
    best: Price | None = None
    number: int = 0
    waiting: list[Price] = []  # noqa: RUF012  # msgspec gives each instance its own


def winning(app: App, streams: Streams) -> Handler:
    """The winning bids, for all queries of an app that ask for them.

    A handler has one key, which an auction calls `id` and a bid `auction`. So a first one, which keeps nothing and so
    may have any key that both have, puts them into one stream.
    """
    for known in app.handlers:
        if known.name == "winning":
            return known

    @app.handler("offers", reads=[streams.auction, streams.bid], key="dateTime", state=Nothing, emits=Offer)
    def offers(_: Nothing, event: Auction | Bid, ctx: Context) -> Iterator[Offer]:
        if isinstance(event, Auction):
            yield Offer(auction=event.id, lot=convert(event, Lot, from_attributes=True))
        else:
            yield Offer(auction=event.auction, bid=convert(event, Price, from_attributes=True))

    @app.handler("winning", reads=offers, key="auction", state=Sale, emits=Winning)
    def winning(sale: Sale, offer: Offer, ctx: Context) -> Iterator[Winning]:
        if offer.lot is not None:
            sale.lot = offer.lot
        if offer.bid is not None:
            sale.waiting.append(offer.bid)
        if sale.lot is None:
            sale.waiting = sorted(sale.waiting, key=_rank)[:WAITING_MAX]
            return
        lot, offered = sale.lot, sale.waiting
        sale.waiting = []
        valid = [bid for bid in offered if lot.dateTime <= bid.dateTime <= lot.expires]
        best = min(valid if sale.best is None else [sale.best, *valid], key=_rank, default=None)
        if best is not None and best is not sale.best:
            sale.number += 1
            yield _told(lot, best, sale.number, None if sale.best is None else sale.best.price)
            sale.best = best

    return winning


def _rank(bid: Price) -> tuple[int, datetime, int, str]:
    """What bids are compared by: the price, and of the same price the time."""
    return -bid.price, bid.dateTime, bid.bidder, bid.extra


def _told(lot: Lot, bid: Price, number: int, before: int | None) -> Winning:
    return Winning(
        number=number, before=before, id=lot.id, itemName=lot.itemName, description=lot.description,
        initialBid=lot.initialBid, reserve=lot.reserve, dateTime=lot.dateTime, expires=lot.expires, seller=lot.seller,
        category=lot.category, extra=lot.extra, auction=lot.id, bidder=bid.bidder, price=bid.price,
        bid_dateTime=bid.dateTime, bid_extra=bid.extra,
    )  # fmt: skip


def q3(app: App, streams: Streams) -> None:
    """Local items: who sells in three states, in category 10. Spark keeps all people and auctions that fit, for the
    benchmark sets no bound on how long after each other they come."""

    @app.view("q3", reads=[streams.auction, streams.person], key="id", emit="close")
    def q3(auction: DataFrame, person: DataFrame) -> DataFrame:
        local = person.where("state IN ('OR', 'ID', 'CA')").selectExpr("id AS person", "name", "city", "state")
        sold = auction.where("category = 10").select("id", "seller")
        return sold.join(local, F.expr("seller = person")).select("name", "city", "state", "id")


def q4(app: App, streams: Streams) -> None:
    """Average price for a category: of the winning bids. A winning bid that takes the place of another adds what it is
    higher by, and counts once with it."""
    winning(app, streams)
    app.sql(
        "q4",
        """
        SELECT category AS id, sum(price - coalesce(before, 0)) DIV count_if(before IS NULL) AS final
        FROM winning
        GROUP BY category
        """,
        key="id",
    )


class Sold(Record):
    expires: datetime
    auction: int
    price: int


class Sales(State):
    last: list[Sold] = []  # noqa: RUF012


class Average(Event):
    seller: int
    avg_price: int


def q6(app: App, streams: Streams) -> None:
    """Average selling price: of a seller's last ten auctions, in order of their end. Every auction counts from its
    first valid bid on. What the handler emits is the seller's row in the view."""

    @app.handler("q6", reads=winning(app, streams), key="seller", state=Sales, emits=Average, view="seller")
    def q6(sales: Sales, won: Winning, ctx: Context) -> Iterator[Average]:
        others = [each for each in sales.last if each.auction != won.auction]
        every = [*others, Sold(expires=won.expires, auction=won.auction, price=won.price)]
        sales.last = sorted(every, key=lambda each: (each.expires, each.auction))[-LAST:]
        average = sum(each.price for each in sales.last) // len(sales.last)
        yield Average(seller=won.seller, avg_price=average)


def q9(app: App, streams: Streams) -> None:
    """Winning bids: each auction with the bid that wins it, so far."""

    @app.view("q9", reads=winning(app, streams), key="id")
    def q9(winning: DataFrame) -> DataFrame:
        told = [name for name in winning.columns if name not in ("id", "number", "before")]
        last = F.max_by(F.struct(*told), "number").alias("last")
        return winning.groupBy("id").agg(last).select("id", "last.*")


def q20(app: App, streams: Streams) -> None:
    """Bids with their auctions, in category 10. As in q3, Spark keeps all that may still be asked for."""
    bid_columns = ["auction", "bidder", "price", "channel", "url", "dateTime AS bid_dateTime", "extra AS bid_extra"]
    auction_columns = [
        "id", "itemName", "description", "initialBid", "reserve", "dateTime AS auction_dateTime", "expires", "seller",
        "category", "extra AS auction_extra",
    ]  # fmt: skip

    @app.view(
        "q20",
        reads=[streams.bid, streams.auction],
        key=["auction", "bidder", "price", "bid_dateTime"],
        emit="close",
        keep=KEPT,
    )
    def q20(bid: DataFrame, auction: DataFrame) -> DataFrame:
        offered = auction.where("category = 10").selectExpr(*auction_columns)
        return bid.selectExpr(*bid_columns).join(offered, F.expr("auction = id")).drop("id")
