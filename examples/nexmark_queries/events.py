"""The three streams of Nexmark, with the field names of the benchmark: people, what they sell, and what is bid."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from penstock import App, Event, State
from penstock.declared import Stream

LATE_AFTER = timedelta(seconds=4)


class Person(Event, id="id", time="dateTime"):
    """Somebody who sells or bids."""

    id: int
    name: str
    emailAddress: str
    creditCard: str
    city: str
    state: str
    dateTime: datetime
    extra: str


class Auction(Event, id="id", time="dateTime"):
    """Something that is for sale, from `dateTime` until it `expires`."""

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


class Bid(Event, time="dateTime"):
    """A price that somebody offers. The benchmark gives a bid no id of its own."""

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
    """The state of a handler that needs none: nothing is kept for a key."""


def streams(app: App) -> Streams:
    """Declare the three streams. Bids are partitioned by what they are for, as most queries want them."""
    return Streams(
        app.stream("person", Person, key="id", late_after=LATE_AFTER),
        app.stream("auction", Auction, key="id", late_after=LATE_AFTER),
        app.stream("bid", Bid, key="auction", late_after=LATE_AFTER),
    )
