"""Queries about one bid at a time: a feed, and stateless handlers. q0, q1, q2, q10, q13, q14, q21, q22."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

from examples.nexmark_queries.events import Bid, Nothing, Streams
from penstock import App, Context, Event

EUROS = Decimal("0.908")
SIDE_ROWS = 10_000
SIDE_INPUT = {key: f"side-{key}" for key in range(0, SIDE_ROWS, 2)}
"""The table that q13 joins with the bids. Half of the numbers are missing from it, to show what happens to those
bids."""
CHANNEL_ID = re.compile(r"(?:&|^)channel_id=([^&]*)")
KNOWN_CHANNELS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}


class Passed(Event, time="dateTime"):
    auction: int
    bidder: int
    price: int
    dateTime: datetime
    extra: str


def q0(app: App, streams: Streams) -> None:
    """Pass through: every bid, unchanged."""

    @app.handler("q0", reads=streams.bid, key="auction", state=Nothing, emits=Passed)
    def q0(_: Nothing, bid: Bid, ctx: Context) -> Iterator[Passed]:
        yield Passed(auction=bid.auction, bidder=bid.bidder, price=bid.price, dateTime=bid.dateTime, extra=bid.extra)


class InEuros(Event, time="dateTime"):
    auction: int
    bidder: int
    price: Decimal
    dateTime: datetime
    extra: str


def q1(app: App, streams: Streams) -> None:
    """Currency conversion: every bid in euros."""

    @app.handler("q1", reads=streams.bid, key="auction", state=Nothing, emits=InEuros)
    def q1(_: Nothing, bid: Bid, ctx: Context) -> Iterator[InEuros]:
        yield InEuros(
            auction=bid.auction, bidder=bid.bidder, price=EUROS * bid.price, dateTime=bid.dateTime, extra=bid.extra
        )


def q2(app: App, streams: Streams) -> None:
    """Selection: the bids for every 123rd auction. It is computed only when a client reads it."""
    app.feed("q2", of=streams.bid, where="auction % 123 = 0", select=["auction", "price"])


class Logged(Event, time="dateTime"):
    auction: int
    bidder: int
    price: int
    dateTime: datetime
    extra: str
    dt: str
    hm: str


def q10(app: App, streams: Streams) -> None:
    """Log to files: every bid, with the day and minute of the file that it belongs to. A separate program, `files.py`,
    writes the files."""

    @app.handler("q10", reads=streams.bid, key="auction", state=Nothing, emits=Logged)
    def q10(_: Nothing, bid: Bid, ctx: Context) -> Iterator[Logged]:
        yield Logged(
            auction=bid.auction,
            bidder=bid.bidder,
            price=bid.price,
            dateTime=bid.dateTime,
            extra=bid.extra,
            dt=f"{bid.dateTime:%Y-%m-%d}",
            hm=f"{bid.dateTime:%H:%M}",
        )


class Enriched(Event, time="dateTime"):
    auction: int
    bidder: int
    price: int
    dateTime: datetime
    value: str


def q13(app: App, streams: Streams) -> None:
    """Join with a bounded side input: a table that does not change is a constant of the program."""

    @app.handler("q13", reads=streams.bid, key="auction", state=Nothing, emits=Enriched)
    def q13(_: Nothing, bid: Bid, ctx: Context) -> Iterator[Enriched]:
        value = SIDE_INPUT.get(bid.auction % SIDE_ROWS)
        if value is not None:
            yield Enriched(auction=bid.auction, bidder=bid.bidder, price=bid.price, dateTime=bid.dateTime, value=value)


class Calculated(Event, time="dateTime"):
    auction: int
    bidder: int
    price: Decimal
    bidTimeType: str
    dateTime: datetime
    extra: str
    c_counts: int


def q14(app: App, streams: Streams) -> None:
    """Calculation: bids in a price range, with the time of day and the number of times a letter occurs."""

    @app.handler("q14", reads=streams.bid, key="auction", state=Nothing, emits=Calculated)
    def q14(_: Nothing, bid: Bid, ctx: Context) -> Iterator[Calculated]:
        price = EUROS * bid.price
        if 1_000_000 < price < 50_000_000:
            yield Calculated(
                auction=bid.auction,
                bidder=bid.bidder,
                price=price,
                bidTimeType=time_of_day(bid.dateTime.hour),
                dateTime=bid.dateTime,
                extra=bid.extra,
                c_counts=bid.extra.count("c"),
            )


def time_of_day(hour: int) -> str:
    if 8 <= hour <= 18:
        return "dayTime"
    return "nightTime" if hour <= 6 or hour >= 20 else "otherTime"


class Channelled(Event):
    auction: int
    bidder: int
    price: int
    channel: str
    channel_id: str


def q21(app: App, streams: Streams) -> None:
    """Channel ids: looked up for known channels, and taken from the URL for all others."""

    @app.handler("q21", reads=streams.bid, key="auction", state=Nothing, emits=Channelled)
    def q21(_: Nothing, bid: Bid, ctx: Context) -> Iterator[Channelled]:
        known = KNOWN_CHANNELS.get(bid.channel.lower())
        match = CHANNEL_ID.search(bid.url) if known is None else None
        channel_id = match[1] if match else known
        if channel_id is not None:
            yield Channelled(
                auction=bid.auction, bidder=bid.bidder, price=bid.price, channel=bid.channel, channel_id=channel_id
            )


class Split(Event):
    auction: int
    bidder: int
    price: int
    channel: str
    dir1: str | None
    dir2: str | None
    dir3: str | None


def q22(app: App, streams: Streams) -> None:
    """Directories: the first three directories in the path of a bid's URL."""

    @app.handler("q22", reads=streams.bid, key="auction", state=Nothing, emits=Split)
    def q22(_: Nothing, bid: Bid, ctx: Context) -> Iterator[Split]:
        dir1, dir2, dir3 = [*bid.url.split("/")[3:6], None, None, None][:3]
        yield Split(
            auction=bid.auction, bidder=bid.bidder, price=bid.price, channel=bid.channel,
            dir1=dir1, dir2=dir2, dir3=dir3,
        )  # fmt: skip
