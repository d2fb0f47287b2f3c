"""Deliveries from three simulated depots, and whether each was late. The cause of delays changes every few minutes, at
a different time for each depot. This change is the drift that the demo detects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random

from examples.playing.message import Message, moments, stamp

DEPOTS = ("harbour", "station", "orchard")
REGIME_S = 120.0
CHANCE = 0.04
"""The probability of a delay that has no cause."""


def regime(depot: str, start: datetime, at: datetime) -> int:
    """Return the current regime of a depot, 0 or 1. The depots change regimes one after another."""
    shift_s = REGIME_S * DEPOTS.index(depot) / len(DEPOTS)
    return int(((at - start).total_seconds() + shift_s) / REGIME_S) % 2


def is_late(world: int, distance_km: float, parcels: int, rain: float) -> bool:
    """Return whether a delivery is late. In one regime, distance and rain cause delays; in the other, full vans cause
    delays."""
    if world == 0:
        return (distance_km - 8) / 4 + 2 * (rain - 0.5) > 0
    return (parcels - 25) / 10 - (distance_km - 8) / 4 > 0


def play(seed: int, start: datetime, rate: float) -> Iterator[Message]:
    """Yield deliveries. Each is sent when it is completed."""
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
