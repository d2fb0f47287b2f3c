"""Vehicles on three simulated roads. Some segments are jammed from time to time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from examples.playing.message import Message, moments, stamp

CENTRE = (50.11, 8.68)
DEGREE_M = 111_195.0
ROADS = {"north": 80.0, "ring": 60.0, "market": 50.0}
"""The roads and their speed limits in km/h."""
SEGMENTS = 6
SEGMENT_M = 500.0
APART_M = 450.0
SLOPE = 0.2
VEHICLES = 60
JAMMED_EVERY_S = (120.0, 240.0)
JAMMED_S = 60.0
CRAWL = 0.15
SLIPS_THROUGH = 0.03
DELAYED = 0.01


@dataclass(frozen=True)
class Segment:
    """A segment of a road, with the position of its midpoint. `cycle_s` is the time between two jams, if the segment
    has jams."""

    name: str
    limit: float
    lat: float
    lon: float
    cycle_s: float | None
    phase: float

    def flow(self, at: datetime) -> float:
        """Return how fast vehicles are going at the given time, as a share of the speed limit. It is close to 1, except
        for one minute of each cycle, when traffic crawls."""
        if self.cycle_s is None:
            return 0.9
        into_s = (at.timestamp() / self.cycle_s + self.phase) % 1 * self.cycle_s
        return CRAWL if into_s < JAMMED_S else 0.9


@dataclass
class Vehicle:
    """A vehicle that drives along a road, and starts over when it reaches the end."""

    name: str
    road: list[Segment]
    travelled_m: float
    seen: datetime

    def drive(self, at: datetime, random: Random) -> tuple[Segment, float]:
        """Advance to the given time. Return the segment that the vehicle has reached, and its speed in km/h."""
        here = self._segment()
        part = 0.9 if random.random() < SLIPS_THROUGH else here.flow(at)
        speed = here.limit * part * random.uniform(0.85, 1.1)
        self.travelled_m += speed / 3.6 * (at - self.seen).total_seconds()
        self.seen = at
        return self._segment(), round(speed, 1)

    def _segment(self) -> Segment:
        return self.road[int(self.travelled_m / SEGMENT_M) % len(self.road)]


def roads(random: Random) -> list[list[Segment]]:
    """Return parallel straight roads where every other segment is jammed from time to time."""
    return [
        [_segment(f"{name}-{place + 1}", limit, row, place, random) for place in range(SEGMENTS)]
        for row, (name, limit) in enumerate(ROADS.items())
    ]


def _segment(name: str, limit: float, row: int, place: int, random: Random) -> Segment:
    east_m = (place - SEGMENTS / 2) * SEGMENT_M
    north_m = (1 - row) * APART_M + SLOPE * east_m
    lat, lon = CENTRE
    return Segment(
        name,
        limit,
        round(lat + north_m / DEGREE_M, 5),
        round(lon + east_m / (DEGREE_M * math.cos(math.radians(lat))), 5),
        random.uniform(*JAMMED_EVERY_S) if place % 2 else None,
        random.random(),
    )


def play(seed: int, start: datetime, rate: float) -> Iterator[Message]:
    """Yield reports. The vehicles take turns, and some reports arrive two seconds late."""
    random = Random(seed)
    laid = roads(random)
    length_m = SEGMENTS * SEGMENT_M
    vehicles = [
        Vehicle(f"car-{number:02d}", laid[number % len(laid)], random.uniform(0, length_m), start)
        for number in range(1, VEHICLES + 1)
    ]
    for number, at in moments(random, start, rate):
        vehicle = vehicles[number % VEHICLES]
        segment, speed = vehicle.drive(at, random)
        seen = at - timedelta(seconds=2) if random.random() < DELAYED else at
        report = {
            "report_id": str(number),
            "at": stamp(seen),
            "vehicle": vehicle.name,
            "segment": segment.name,
            "limit": segment.limit,
            "speed": speed,
            "lat": segment.lat,
            "lon": segment.lon,
        }
        yield Message(at, report)
