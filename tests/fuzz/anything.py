"""An app with every kind of route and every type of field, so that every request has a target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Literal
from uuid import UUID

from penstock import App, Context, EpochMillis, Event, Record, State, collect
from penstock.collect import Metric


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(Record):
    lat: float
    name: str | None = None
    opened: datetime | None = None


class Order(Event, id="order"):
    order: str
    buyer: str
    pieces: int = 1


class Thing(Event, time="at"):
    """A field of every type."""

    at: datetime
    text: str = ""
    whole: int = 0
    number: float = 0.0
    flag: bool = False
    data: bytes = b""
    day: date | None = None
    price: Decimal | None = None
    uuid: UUID | None = None
    colour: Colour | None = None
    size: Literal["small", "large"] | None = None
    seen: EpochMillis | None = None
    place: Place | None = None
    places: list[Place] | None = None
    names: list[str | None] | None = None
    prices: dict[str, Decimal] | None = None
    matrix: list[list[float]] | None = None
    tags: dict[str, list[int]] | None = None


class Seen(State):
    orders: int = 0


app = App("anything")
orders = app.stream("orders", Order, key="buyer")
things = app.stream("things", Thing)
raw = app.stream("raw")
metrics = app.stream("metrics", Metric, key="name")
datagrams = app.stream("datagrams", Order)
app.sql("buyers", "SELECT buyer, sum(pieces) AS pieces FROM orders GROUP BY buyer", key="buyer")


@app.handler("seen", reads=orders, key="buyer", state=Seen, emits=Order)
def seen(state: Seen, order: Order, ctx: Context) -> Iterator[Order]:
    state.orders += 1
    yield order


if "FUZZ_PORTS" in os.environ:
    udp, statsd, graphite = map(int, os.environ["FUZZ_PORTS"].split(","))
    app.source("udp", collect.udp("127.0.0.1", udp), into=datagrams)
    app.source("statsd", collect.statsd("127.0.0.1", statsd), into=metrics)
    app.source("graphite", collect.graphite("127.0.0.1", graphite), into=metrics)
