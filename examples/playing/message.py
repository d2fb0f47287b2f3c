"""What a play is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any


@dataclass(frozen=True)
class Message:
    """An event as it is sent, and the moment at which it is."""

    at: datetime
    event: dict[str, Any]


Play = Callable[[int, datetime, float], Iterator[Message]]
"""Messages without end, in the order in which they are sent: of a seed, a start, and how many a second."""


def moments(random: Random, start: datetime, rate: float) -> Iterator[tuple[int, datetime]]:
    """About `rate` moments a second, each with a number that no play with another start uses."""
    at = start
    number = int(start.timestamp() * 1_000_000)
    while True:
        number += 1
        at += timedelta(seconds=random.uniform(0.5, 1.5) / rate)
        yield number, at


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")
