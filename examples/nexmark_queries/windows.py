"""Queries about periods of time: q5, q7, q8, q11, q12. They use Spark's windows, except q12, which uses log time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.nexmark_queries.events import Bid, Streams
from penstock import App, Context, Event, State

KEPT = timedelta(hours=1)
PERIOD = timedelta(seconds=10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def q5(app: App, streams: Streams) -> None:
    """Hot items: every two seconds, the auctions with the most bids in the last ten seconds. A second query reads the
    changes of the first one, and picks the highest counts once, when a window is over. (Rows that expire after an hour
    also appear as changes, but are ignored.)"""

    @app.view("q5-counts", reads=streams.bid, key=["window", "auction"], emit="close", keep=KEPT)
    def counts(bid: DataFrame) -> DataFrame:
        return bid.groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("num"))

    @app.view("q5", reads=counts.changes, key="window", keep=KEPT)
    def q5(changes: DataFrame) -> DataFrame:
        counted = changes.where("_change <> 'delete'").withColumn("ended", F.col("window.end"))
        ended = counted.withWatermark("ended", "1 hour")  # then Spark deletes it
        every = F.collect_list(F.struct("num", "auction")).alias("every")
        maxima = ended.groupBy("window", "ended").agg(F.max("num").alias("num"), every)
        most = F.filter("every", lambda entry: entry["num"] == F.col("num"))
        return maxima.select("window", "num", F.array_sort(most["auction"]).alias("auctions"))


def q7(app: App, streams: Streams) -> None:
    """Highest bid: all bids at the highest price in each ten-second period. When the window is over and the price is
    known, it is joined with the bids, which Spark keeps until then."""

    @app.view("q7-prices", reads=streams.bid, key="window", emit="close", keep=KEPT)
    def prices(bid: DataFrame) -> DataFrame:
        return bid.groupBy(F.window("dateTime", "10 seconds")).agg(F.max("price").alias("maxprice"))

    key = ["auction", "bidder", "price", "dateTime"]

    @app.view("q7", reads=[streams.bid, prices.changes], key=key, emit="close", keep=KEPT)
    def q7(bid: DataFrame, changes: DataFrame) -> DataFrame:
        prices = changes.where("_change <> 'delete'").selectExpr("maxprice", "window.end AS ended")
        over = prices.withWatermark("ended", "0 seconds")
        highest = F.expr("price = maxprice AND dateTime >= ended - INTERVAL 10 SECONDS AND dateTime < ended")
        return bid.join(over, highest).select("auction", "bidder", "price", "dateTime", "extra")


def q8(app: App, streams: Streams) -> None:
    """New users: people who registered and started an auction in the same ten-second period."""

    @app.view("q8", reads=[streams.person, streams.auction], key=["id", "starttime"], emit="close", keep=KEPT)
    def q8(person: DataFrame, auction: DataFrame) -> DataFrame:
        came = person.select("id", "name", F.window("dateTime", "10 seconds").alias("came"))
        sold = auction.select("seller", F.window("dateTime", "10 seconds").alias("sold"))
        both = came.join(sold, F.expr("id = seller AND came = sold"))
        return both.selectExpr("id", "name", "came.start AS starttime")


def q11(app: App, streams: Streams) -> None:
    """Sessions: how many bids a person made without a pause of more than ten seconds."""

    @app.view("q11", reads=streams.bid, key=["bidder", "starttime"], emit="close", keep=KEPT)
    def q11(bid: DataFrame) -> DataFrame:
        session = F.session_window("dateTime", "10 seconds").alias("session")
        counted = bid.groupBy(session, "bidder").agg(F.count("*").alias("bid_count"))
        return counted.selectExpr("bidder", "bid_count", "session.start AS starttime", "session.end AS endtime")


class Counting(State):
    bids: int = 0
    until: datetime | None = None


class Counted(Event):
    bidder: int
    bid_count: int
    starttime: datetime
    endtime: datetime


def q12(app: App, streams: Streams) -> None:
    """Processing time: how many bids from each person arrived in each ten-second period, regardless of event time.
    Arrival is measured in log time, which is stored with each bid, so the same bids give the same counts in every
    run."""

    @app.handler("q12", reads=streams.bid, key="bidder", state=Counting, emits=Counted)
    def q12(counting: Counting, bid: Bid, ctx: Context) -> None:
        if counting.until is None:
            counting.until = ctx.now - (ctx.now - EPOCH) % PERIOD + PERIOD
            ctx.timer("over", counting.until)
        counting.bids += 1

    @q12.timer("over")
    def over(counting: Counting, ctx: Context) -> Iterator[Counted]:
        assert counting.until is not None
        yield Counted(
            bidder=int(ctx.key), bid_count=counting.bids, starttime=counting.until - PERIOD, endtime=counting.until
        )
        counting.bids, counting.until = 0, None
