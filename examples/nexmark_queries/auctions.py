"""Queries that combine auctions, bids and people: q3, q4, q6, q9, q20.

q3 and q20 are Spark joins. For q4, q6 and q9, a handler follows each auction and emits every new winning bid together
with the previous winning price, so that sums and averages can be corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import convert
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.nexmark_queries.events import Auction, Bid, ForSale, Nothing, Streams
from penstock import App, Context, Event, Record, State
from penstock.app.declared import Handler

KEPT = timedelta(hours=1)
LAST = 10
WAITING_MAX = 1_000
"""The maximum number of bids kept for an auction that has not arrived yet. When there are more, the lowest bid is
dropped."""


class Lot(Record):
    """The fields of `ForSale`, as part of another event."""

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
    """A bid's fields."""

    bidder: int
    price: int
    dateTime: datetime
    extra: str


class Offer(Event):
    """Either an auction or a bid. Both kinds are in one stream."""

    auction: int
    lot: Lot | None = None
    bid: Price | None = None


class Winning(ForSale):
    """An auction's nth winning bid, with the price of the previous winning bid."""

    number: int
    before: int | None
    auction: int
    bidder: int
    price: int
    bid_dateTime: datetime
    bid_extra: str


class Sale(State):
    """The state of an auction. Bids that arrive before the auction are kept until it arrives."""

    lot: Lot | None = None
    best: Price | None = None
    number: int = 0
    waiting: list[Price] = []  # noqa: RUF012  # msgspec gives each instance its own


def winning(app: App, streams: Streams) -> Handler:
    """Return the handler that finds winning bids. All queries in an app that need it share one handler.

    A handler has only one key, but auctions call it `id` and bids call it `auction`. So a stateless handler, whose key
    can be any field that both classes have, first puts auctions and bids into one stream.
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
    """Return a bid's sort key: its price, then its time."""
    return -bid.price, bid.dateTime, bid.bidder, bid.extra


def _told(lot: Lot, bid: Price, number: int, before: int | None) -> Winning:
    return Winning(
        number=number, before=before, id=lot.id, itemName=lot.itemName, description=lot.description,
        initialBid=lot.initialBid, reserve=lot.reserve, dateTime=lot.dateTime, expires=lot.expires, seller=lot.seller,
        category=lot.category, extra=lot.extra, auction=lot.id, bidder=bid.bidder, price=bid.price,
        bid_dateTime=bid.dateTime, bid_extra=bid.extra,
    )  # fmt: skip


def q3(app: App, streams: Streams) -> None:
    """Local items: sellers from three states with auctions in category 10. Spark keeps all matching people and
    auctions, because the benchmark does not limit how far apart they can arrive."""

    @app.view("q3", reads=[streams.auction, streams.person], key="id", emit="close")
    def q3(auction: DataFrame, person: DataFrame) -> DataFrame:
        local = person.where("state IN ('OR', 'ID', 'CA')").selectExpr("id AS person", "name", "city", "state")
        sold = auction.where("category = 10").select("id", "seller")
        return sold.join(local, F.expr("seller = person")).select("name", "city", "state", "id")


def q4(app: App, streams: Streams) -> None:
    """Average price per category: the mean of the winning bids. A winning bid that replaces another one adds only the
    difference, and the two count as one."""
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
    """Average selling price: the mean of the last ten auctions of each seller, ordered by when they end. An auction
    counts as soon as it has a valid bid. The handler emits the seller's row for the view."""

    @app.handler("q6", reads=winning(app, streams), key="seller", state=Sales, emits=Average, view="seller")
    def q6(sales: Sales, won: Winning, ctx: Context) -> Iterator[Average]:
        others = [sale for sale in sales.last if sale.auction != won.auction]
        every = [*others, Sold(expires=won.expires, auction=won.auction, price=won.price)]
        sales.last = sorted(every, key=lambda sale: (sale.expires, sale.auction))[-LAST:]
        average = sum(sale.price for sale in sales.last) // len(sales.last)
        yield Average(seller=won.seller, avg_price=average)


def q9(app: App, streams: Streams) -> None:
    """Winning bids: each auction with its winning bid so far."""

    @app.view("q9", reads=winning(app, streams), key="id")
    def q9(winning: DataFrame) -> DataFrame:
        columns = [name for name in winning.columns if name not in ("id", "number", "before")]
        last = F.max_by(F.struct(*columns), "number").alias("last")
        return winning.groupBy("id").agg(last).select("id", "last.*")


def q20(app: App, streams: Streams) -> None:
    """Bids with their auctions, in category 10. As in q3, Spark keeps every row that could still match."""
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
