"""Generates endless routes and fixes as pure functions of a seed and a start time, without a clock or a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from random import Random
from typing import Any

CENTRE = (50.11, 8.68)
DEGREE_M = 111_195.0
REACH_M = 4_000.0
STRETCHES = (5, 9)
STRETCH_M = (600.0, 1_800.0)
WIDTH_M = 120.0
LIMIT_KMH = 70.0
CRUISE_KMH = (35.0, 62.0)
RUSH_KMH = 90.0
STRAY_M = (150.0, 400.0)
EPISODE_S = (12.0, 40.0)
STRAYS = 0.002
RUSHES = 0.002
RUBBISH = 0.01
SENT_TWICE = 0.005
UNKNOWN_EVERY = 10
"""One in this many vehicles has no route in the app, even though its driver follows one."""

Place = tuple[float, float]


@dataclass(frozen=True)
class Message:
    """A fix and the time to send it."""

    at: datetime
    fix: dict[str, Any]


@dataclass
class Driver:
    """A driver who goes back and forth along a line and sometimes breaks the rules. Positions are in metres from
    CENTRE."""

    name: str
    line: list[Place]
    cruise_kmh: float
    travelled_m: float
    seen: datetime
    straying: tuple[datetime, float, float] | None = None
    rushing_until: datetime | None = None
    marks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.marks = list(accumulate((math.dist(*segment) for segment in pairwise(self.line)), initial=0.0))

    def drive(self, at: datetime, random: Random) -> tuple[Place, float]:
        """Advance to the given time. Return the position at that time, and the speed since the previous call."""
        speed = RUSH_KMH if self._rushes(at, random) else self.cruise_kmh * random.uniform(0.95, 1.05)
        self.travelled_m += speed / 3.6 * (at - self.seen).total_seconds()
        self.seen = at
        (x, y), (dx, dy) = self._on_line()
        aside = self._aside(at, random)
        return (x - dy * aside, y + dx * aside), speed

    def _on_line(self) -> tuple[Place, Place]:
        """Return the position on the line, which the driver follows back and forth forever, and the line's direction at
        that point."""
        there = self.travelled_m % (2 * self.marks[-1])
        along = min(there, 2 * self.marks[-1] - there)
        number = next(n for n in range(1, len(self.marks)) if along <= self.marks[n] or n == len(self.marks) - 1)
        (x, y), end = self.line[number - 1], self.line[number]
        length = self.marks[number] - self.marks[number - 1]
        dx, dy = (end[0] - x) / length, (end[1] - y) / length
        rest = along - self.marks[number - 1]
        return (x + dx * rest, y + dy * rest), (dx, dy)

    def _aside(self, at: datetime, random: Random) -> float:
        """Return the distance from the line. It is within a lane's width, except while the driver strays far from the
        line and comes back."""
        if self.straying is None and random.random() < STRAYS:
            self.straying = (at, random.uniform(*EPISODE_S), random.uniform(*STRAY_M) * random.choice((-1, 1)))
        if self.straying is None:
            return random.uniform(-3, 3)
        begin, length_s, far = self.straying
        part = (at - begin).total_seconds() / length_s
        if part >= 1:
            self.straying = None
        return far * math.sin(math.pi * min(part, 1.0))

    def _rushes(self, at: datetime, random: Random) -> bool:
        if self.rushing_until is None and random.random() < RUSHES:
            self.rushing_until = at + timedelta(seconds=random.uniform(*EPISODE_S))
        if self.rushing_until is not None and at > self.rushing_until:
            self.rushing_until = None
        return self.rushing_until is not None


def routes(seed: int, vehicles: int) -> list[dict[str, Any]]:
    """Return the routes that administrators would send, one for each vehicle that has a route."""
    drivers = _drivers(Random(seed), vehicles, datetime.min)
    return [
        {
            "route_id": f"{seed}/{driver.name}",
            "vehicle": driver.name,
            "corridor": [dict(zip(("lat", "lon"), _degrees(place), strict=True)) for place in driver.line],
            "width_m": WIDTH_M,
            "limit_kmh": LIMIT_KMH,
        }
        for number, driver in enumerate(drivers, start=1)
        if number % UNKNOWN_EVERY
    ]


def drive(seed: int, start: datetime, vehicles: int, rate: float) -> Iterator[Message]:
    """Yield fixes forever, about `rate` per second, in the order in which they are sent.

    The vehicles take turns. Some fixes are invalid, and some are sent twice.
    """
    random = Random(seed)
    drivers = _drivers(random, vehicles, start)
    number = int(start.timestamp() * 1_000_000)  # a fleet that is started later must not reuse an id
    at = start
    while True:
        for driver in drivers:
            number += 1
            at += timedelta(seconds=random.uniform(0.5, 1.5) / rate)
            place, speed = driver.drive(at, random)
            fix = _fix(str(number), at, driver.name, place, speed)
            message = Message(at, _rubbish(fix, random) if random.random() < RUBBISH else fix)
            yield message
            if random.random() < SENT_TWICE:
                yield message


def _drivers(random: Random, vehicles: int, start: datetime) -> list[Driver]:
    return [
        Driver(
            f"{random.choice('ABCDEFGHKLMN')}-{number:03d}",
            line := _line(random),
            random.uniform(*CRUISE_KMH),
            random.uniform(0, 2 * sum(math.dist(*segment) for segment in pairwise(line))),
            start,
        )
        for number in range(1, vehicles + 1)
    ]


def _line(random: Random) -> list[Place]:
    """Return a line that has bends but never turns back on itself."""
    place = (random.uniform(-REACH_M, REACH_M), random.uniform(-REACH_M, REACH_M))
    heading = random.uniform(0, 2 * math.pi)
    line = [place]
    for _ in range(random.randint(*STRETCHES)):
        heading += random.uniform(-0.7, 0.7)
        length = random.uniform(*STRETCH_M)
        place = (place[0] + length * math.cos(heading), place[1] + length * math.sin(heading))
        line.append(place)
    return line


def _degrees(place: Place) -> tuple[float, float]:
    """Return the latitude and longitude of a position, accurate to 10 cm."""
    lat, lon = CENTRE
    return (
        round(lat + place[1] / DEGREE_M, 6),
        round(lon + place[0] / (DEGREE_M * math.cos(math.radians(lat))), 6),
    )


def _fix(fix_id: str, at: datetime, vehicle: str, place: Place, speed: float) -> dict[str, Any]:
    lat, lon = _degrees(place)
    stamp = at.isoformat(timespec="microseconds")
    return {"fix_id": fix_id, "at": stamp, "vehicle": vehicle, "lat": lat, "lon": lon, "speed": round(speed, 1)}


def _rubbish(fix: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return an invalid fix, like the ones that a GPS receiver sends when it has no reception."""
    match random.randrange(3):
        case 0:
            return fix | {"lat": 95.0}
        case 1:
            return fix | {"lon": -190.0}
        case _:
            return fix | {"speed": -1.0}
