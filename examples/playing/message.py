"""The messages that a play generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any


@dataclass(frozen=True)
class Message:
    """An event and the time to send it."""

    at: datetime
    event: dict[str, Any]


Play = Callable[[int, datetime, float], Iterator[Message]]
"""A function of a seed, a start time and a rate per second. It yields an endless sequence of messages in the order in
which they are sent."""


def moments(random: Random, start: datetime, rate: float) -> Iterator[tuple[int, datetime]]:
    """Yield about `rate` times per second, each with a number that is not used by plays with a different start time."""
    at = start
    number = int(start.timestamp() * 1_000_000)
    while True:
        number += 1
        at += timedelta(seconds=random.uniform(0.5, 1.5) / rate)
        yield number, at


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")
