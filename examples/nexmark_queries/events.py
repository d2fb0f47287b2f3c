"""Nexmark's three streams, people, auctions and bids, with the benchmark's field names."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from penstock import App, Event, State
from penstock.app.declared import Stream

LATE_AFTER = timedelta(seconds=4)


class Person(Event, id="id", time="dateTime"):
    """A person who sells or bids."""

    id: int
    name: str
    emailAddress: str
    creditCard: str
    city: str
    state: str
    dateTime: datetime
    extra: str


class ForSale(Event):
    """The fields of an item for sale, from `dateTime` until it `expires`."""

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


class Auction(ForSale, id="id", time="dateTime"):
    """An item that is put up for sale."""


class Bid(Event, time="dateTime"):
    """A price offered in an auction. In the benchmark, bids have no id."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    dateTime: datetime
    extra: str


class Streams(NamedTuple):
    person: Stream
    auction: Stream
    bid: Stream


class Nothing(State):
    """The state of a stateless handler: it stores nothing for any key."""


def streams(app: App) -> Streams:
    """Declare the three streams. Bids are partitioned by auction, because that suits most queries."""
    return Streams(
        app.stream("person", Person, key="id", late_after=LATE_AFTER),
        app.stream("auction", Auction, key="id", late_after=LATE_AFTER),
        app.stream("bid", Bid, key="auction", late_after=LATE_AFTER),
    )
