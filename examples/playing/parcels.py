"""Deliveries of three invented depots, and whether they were late. What makes them late is another thing every few
minutes, at each depot at another time: that is the drift."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random

from examples.playing.message import Message, moments, stamp

DEPOTS = ("harbour", "station", "orchard")
REGIME_S = 120.0
CHANCE = 0.04
"""How often nothing explains it."""


def regime(depot: str, start: datetime, at: datetime) -> int:
    """Which of the two worlds a depot is in: 0 or 1. The depots change one after the other."""
    shift_s = REGIME_S * DEPOTS.index(depot) / len(DEPOTS)
    return int(((at - start).total_seconds() + shift_s) / REGIME_S) % 2


def is_late(world: int, distance_km: float, parcels: int, rain: float) -> bool:
    """In the one world it is the distance and the rain; in the other the vans are full before they are far."""
    if world == 0:
        return (distance_km - 8) / 4 + 2 * (rain - 0.5) > 0
    return (parcels - 25) / 10 - (distance_km - 8) / 4 > 0


def play(seed: int, start: datetime, rate: float) -> Iterator[Message]:
    """Deliveries, each told when it is done."""
    random = Random(seed)
    for number, at in moments(random, start, rate):
        depot = random.choice(DEPOTS)
        distance_km = round(min(30.0, max(0.2, random.gauss(8, 4))), 1)
        parcels = max(1, round(random.gauss(25, 10)))
        rain = round(random.random(), 2)
        late = is_late(regime(depot, start, at), distance_km, parcels, rain)
        delivery = {
            "delivery_id": str(number),
            "at": stamp(at - timedelta(seconds=random.uniform(0, 0.5))),
            "depot": depot,
            "distance_km": distance_km,
            "parcels": parcels,
            "rain": rain,
            "hour": round((at.timestamp() / 3600) % 24, 2),
            "late": late if random.random() >= CHANCE else not late,
        }
        yield Message(at, delivery)
