"""Generates Nexmark events from a seed. The same seed produces the same events on every machine.

Out of every fifty events, one is a person, three are auctions and forty-six are bids. Half of the bids are for the hot
auction, which is the first in each hundred; the other half are for auctions that are probably open. Three out of four
bids come from the hot bidder, and three out of four auctions belong to the hot seller. Some auctions and people appear
slightly later than the events that refer to them. On average, an auction lasts until another hundred have begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random

from examples.nexmark_queries.events import Auction, Bid, Person

Happening = Person | Auction | Bid

START = datetime(2015, 7, 15, tzinfo=UTC)
PEOPLE, AUCTIONS, BIDS = 1, 3, 46
CYCLE = PEOPLE + AUCTIONS + BIDS
FIRST_PERSON = FIRST_AUCTION = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_GROUP = 100
"""One in this many consecutive auctions or people is hot."""
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS, HOT_CHANNELS = 2, 4, 4, 2
"""All but one in this many choices pick the hot auction, seller, bidder or channel."""
OPEN_AUCTIONS, ACTIVE_PEOPLE, LEAD = 100, 1_000, 10
CHANNELS = 10_000
KNOWN_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
LETTERS = "abcdefghijklmnopqrstuvwxyz "
NOISE_CHARS = 1 << 13
"""Random strings are slices of two long strings, because that takes almost no time."""


class Generator:
    """A finite sequence of events, with `per_second` events in each second of event time. It can be iterated more than
    once."""

    def __init__(self, events: int, *, seed: int = 0, per_second: int = 10_000, start: datetime = START) -> None:
        self.events, self.seed, self.per_second, self.start = events, seed, per_second, start

    def __iter__(self) -> Iterator[Happening]:
        drawn = _Draw(self.seed, self.per_second)
        for number in range(self.events):
            cycle, place = divmod(number, CYCLE)
            at = self.at(number)
            if place < PEOPLE:
                yield drawn.person(cycle, at)
            elif place < PEOPLE + AUCTIONS:
                yield drawn.auction(cycle, cycle * AUCTIONS + place - PEOPLE, at)
            else:
                yield drawn.bid(cycle, cycle * AUCTIONS + AUCTIONS - 1, at)

    def at(self, number: int) -> datetime:
        """Return the event's time, to the millisecond."""
        return self.start + timedelta(milliseconds=number * 1_000 // self.per_second)


class _Draw:
    """Draws random events. Here, people and auctions are numbered from zero."""

    def __init__(self, seed: int, per_second: int) -> None:
        self._chance = Random(seed)
        self._noise = "".join(self._chance.choices(LETTERS, k=NOISE_CHARS))
        self._letters = "".join(self._chance.choices(LETTERS.strip(), k=NOISE_CHARS))
        self._urls = {name: self._url() for name in KNOWN_CHANNELS}
        self._horizon_ms = OPEN_AUCTIONS * CYCLE * 1_000 // AUCTIONS // per_second

    def person(self, number: int, at: datetime) -> Person:
        chance = self._chance
        return Person(
            id=FIRST_PERSON + number,
            name=f"{chance.choice(FIRST_NAMES)} {chance.choice(LAST_NAMES)}",
            emailAddress=f"{self._word(7)}@{self._word(5)}.com",
            creditCard=" ".join(f"{chance.randrange(10_000):04}" for _ in range(4)),
            city=chance.choice(CITIES),
            state=chance.choice(STATES),
            dateTime=at,
            extra=self._text(100),
        )

    def auction(self, people: int, number: int, at: datetime) -> Auction:
        initial = self._price()
        lasts = 1 + int(self._chance.random() * max(2 * self._horizon_ms, 1))
        return Auction(
            id=FIRST_AUCTION + number,
            itemName=self._text(20),
            description=self._text(100),
            initialBid=initial,
            reserve=initial + self._price(),
            dateTime=at,
            expires=at + timedelta(milliseconds=lasts),
            seller=FIRST_PERSON + self._one_of_people(people, HOT_SELLERS, 0),
            category=FIRST_CATEGORY + int(self._chance.random() * CATEGORIES),
            extra=self._text(250),
        )

    def bid(self, people: int, newest: int, at: datetime) -> Bid:
        chance = self._chance
        if chance.random() * HOT_AUCTIONS >= 1:
            auction = newest // HOT_GROUP * HOT_GROUP
        else:
            oldest = max(newest - OPEN_AUCTIONS, 0)
            auction = oldest + int(chance.random() * (newest - oldest + 1 + LEAD))
        bidder = self._one_of_people(people, HOT_BIDDERS, 1)
        channel, url = self._channel()
        return Bid(
            auction=FIRST_AUCTION + auction,
            bidder=FIRST_PERSON + bidder,
            price=self._price(),
            channel=channel,
            url=url,
            dateTime=at,
            extra=self._text(40),
        )

    def _one_of_people(self, newest: int, hot: int, which: int) -> int:
        """Pick either the hot person among the latest hundred, or any person who is active now or will be soon."""
        if self._chance.random() * hot >= 1:
            return newest // HOT_GROUP * HOT_GROUP + which
        active = min(newest + 1, ACTIVE_PEOPLE)
        return newest + 1 - active + int(self._chance.random() * (active + LEAD))

    def _price(self) -> int:
        """Return a price from 100 to 100 million, with each number of digits equally likely."""
        return round(100 * 10 ** (6 * self._chance.random()))

    def _channel(self) -> tuple[str, str]:
        if self._chance.random() * HOT_CHANNELS >= 1:
            name = KNOWN_CHANNELS[int(self._chance.random() * len(KNOWN_CHANNELS))]
            return name, self._urls[name]
        number = int(self._chance.random() * CHANNELS)
        known = f"&channel_id={number}" if self._chance.random() >= 0.1 else ""
        return f"channel-{number}", self._url() + known

    def _url(self) -> str:
        return f"https://www.nexmark.com/{self._word(5)}/{self._word(5)}/{self._word(5)}/item.htm?query=1"

    def _word(self, length: int) -> str:
        begin = int(self._chance.random() * (NOISE_CHARS - length))
        return self._letters[begin : begin + length]

    def _text(self, most: int) -> str:
        """Return between `most` / 2 and `most` random letters and spaces."""
        length = most // 2 + int(self._chance.random() * (most // 2 + 1))
        begin = int(self._chance.random() * (NOISE_CHARS - most))
        return self._noise[begin : begin + length]


def shuffled(events: Iterable[Happening], within: timedelta, seed: int = 0) -> list[Happening]:
    """Return the events in a possible order of arrival. No event comes after an event that is more than `within`
    newer."""
    chance, span = Random(seed), within.total_seconds()

    def arrival(event: Happening) -> float:
        return event.dateTime.timestamp() + chance.random() * span

    return sorted(events, key=arrival)


def apart(events: Iterable[Happening]) -> dict[str, list[Happening]]:
    """Group the events by stream name, keeping their order."""
    streams: dict[str, list[Happening]] = {"person": [], "auction": [], "bid": []}
    for event in events:
        streams[type(event).__name__.lower()].append(event)
    return streams
