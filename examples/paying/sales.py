"""Generates endless sales as a pure function of a seed and a start time, without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

AUTHORS = ("A. Bellamy", "C. Dorn", "E. Fjord", "G. Hale", "I. Juna", "K. Lindqvist", "M. Nuru", "O. Prescott")
FIRST = ("The Quiet", "A Distant", "The Last", "Seven", "The Glass", "Beyond the")
SECOND = ("Harbour", "Winter", "Orchard", "Letters", "River", "Tide")
PRICES_CENTS = (799, 999, 1_299, 1_499, 2_199)
SENT_TWICE = 0.02


@dataclass(frozen=True)
class Message:
    """A sale and the time to send it."""

    at: datetime
    sale: dict[str, Any]


def sell(seed: int, start: datetime, rate: float) -> Iterator[Message]:
    """Yield sales forever, about `rate` per second. A few are sent twice, unchanged."""
    random = Random(seed)
    number = int(start.timestamp() * 1_000_000)  # a shop that is started later must not reuse an id
    at = start
    while True:
        number += 1
        at += timedelta(seconds=random.expovariate(rate))
        author = random.choices(AUTHORS, range(len(AUTHORS), 0, -1))[0]
        book = f"{random.choice(FIRST)} {random.choice(SECOND)}"
        sale = {"sale_id": str(number), "author": author, "book": book, "cents": random.choice(PRICES_CENTS)}
        yield Message(at, sale)
        if random.random() < SENT_TWICE:
            yield Message(at, sale)
