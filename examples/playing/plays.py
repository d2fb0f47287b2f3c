"""The plays for the demos."""

from __future__ import annotations

from dataclasses import dataclass

from examples.playing import parcels, prices, roads, visitors
from examples.playing.message import Play


@dataclass(frozen=True)
class Feed:
    """A play, the stream that it is sent to, and its default rate in events a second."""

    stream: str
    play: Play
    rate: float


FEEDS = {
    "drawdown": Feed("trades", prices.play, 30.0),
    "traffic": Feed("reports", roads.play, 40.0),
    "logins": Feed("attempts", visitors.play, 10.0),
    "learning": Feed("deliveries", parcels.play, 30.0),
}
"""The play for each demo, by name."""
