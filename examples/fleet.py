"""Fleet tracking: alerts for vehicles that leave their route, drive too fast, or have no route.

Administrators send a route for each vehicle, vehicles send their positions, and a handler checks the positions against
the routes. When run as a script, this file simulates a fleet, and the dashboard shows it on a map:

    python examples/fleet.py --vehicles 40 --rate 40 --seed 1
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, Record, State

EARTH_M = 6_371_009.0
LATE_AFTER = timedelta(seconds=30)


class Point(Record):
    lat: float
    lon: float


class Route(Event, id="route_id"):
    """The area where a vehicle is allowed to drive: everything within half of `width_m` of the line through the points.
    A newer route for the same vehicle replaces it."""

    route_id: str
    vehicle: str
    corridor: list[Point]
    width_m: float
    limit_kmh: float = 80.0


class Fix(Event, id="fix_id", time="at"):
    """A position reported by a vehicle, with the speed in km/h."""

    fix_id: str
    at: datetime
    vehicle: str
    lat: float
    lon: float
    speed: float


class Position(Event):
    """A vehicle's position and status after its nth valid fix. The status is `on route`, `off route`, `speeding` or `no
    route`."""

    vehicle: str
    number: int
    at: datetime
    lat: float
    lon: float
    speed: float
    standing: str


class Violation(Event):
    """The first fix that is off the route or above the speed limit, or the first fix from a vehicle without a route."""

    fix_id: str
    vehicle: str
    at: datetime
    kind: str
    lat: float
    lon: float
    detail: str


class Return(Event):
    """The first fix after a vehicle has returned to its route."""

    fix_id: str
    vehicle: str
    at: datetime
    lat: float
    lon: float
    away_s: float


class Refused(Event):
    """A fix without a usable position."""

    fix_id: str
    vehicle: str
    at: datetime
    reason: str


class Vehicle(State):
    """The state of a vehicle: its route, its last position, and counters."""

    corridor: list[Point] = []  # noqa: RUF012  # msgspec gives each instance its own
    width_m: float = 0.0
    limit_kmh: float = 0.0
    at: datetime | None = None
    lat: float = 0.0
    lon: float = 0.0
    left_at: datetime | None = None
    speeding: bool = False
    fixes: int = 0
    refused: int = 0
    unknown: int = 0


app = App("fleet")
routes = app.stream("routes", Route, key="vehicle")
fixes = app.stream("fixes", Fix, key="vehicle", late_after=LATE_AFTER, keep=timedelta(days=1))


@app.handler(
    "geofence",
    reads=[routes, fixes],
    key="vehicle",
    state=Vehicle,
    emits=[Position, Violation, Return, Refused],
)
def geofence(vehicle: Vehicle, event: Route | Fix, ctx: Context) -> Iterator[Position | Violation | Return | Refused]:
    """Check one vehicle. An alert is emitted when a violation begins, but not for every fix while it continues."""
    if isinstance(event, Route):
        _take_route(vehicle, event)
        return
    reason = _fault(vehicle, event)
    if reason is not None:
        vehicle.refused += 1
        yield Refused(fix_id=event.fix_id, vehicle=event.vehicle, at=event.at, reason=reason)
        return
    vehicle.fixes += 1
    vehicle.at, vehicle.lat, vehicle.lon = event.at, event.lat, event.lon
    if vehicle.corridor:
        yield from _watch_place(vehicle, event)
        yield from _watch_speed(vehicle, event)
    else:
        vehicle.unknown += 1
        if vehicle.unknown == 1:
            yield _violation(event, "no route", "this vehicle has no route")
    yield Position(
        vehicle=event.vehicle,
        number=vehicle.fixes,
        at=event.at,
        lat=event.lat,
        lon=event.lon,
        speed=event.speed,
        standing=_standing(vehicle),
    )


def _take_route(vehicle: Vehicle, route: Route) -> None:
    """Replace the vehicle's route. An invalid route raises `ValueError`, so the event goes to `geofence.failed` and the
    old route stays in effect."""
    if len(route.corridor) < 2 or not all(_on_globe(point.lat, point.lon) for point in route.corridor):
        raise ValueError("a route needs at least two points, all with valid coordinates")
    vehicle.corridor, vehicle.width_m, vehicle.limit_kmh = route.corridor, route.width_m, route.limit_kmh


def _fault(vehicle: Vehicle, fix: Fix) -> str | None:
    """Return why a fix cannot be used, or None if it can."""
    if not _on_globe(fix.lat, fix.lon):
        return "invalid coordinates"
    if not fix.speed >= 0:
        return "negative speed"
    if vehicle.at is not None and fix.at <= vehicle.at:
        return "not newer than the previous fix"
    return None


def _on_globe(lat: float, lon: float) -> bool:
    return -90 <= lat <= 90 and -180 <= lon <= 180


def _watch_place(vehicle: Vehicle, fix: Fix) -> Iterator[Violation | Return]:
    off_m = metres_off(fix.lat, fix.lon, vehicle.corridor) - vehicle.width_m / 2
    if off_m > 0 and vehicle.left_at is None:
        vehicle.left_at = fix.at
        yield _violation(fix, "left the route", f"{off_m:.0f} m off")
    elif off_m <= 0 and vehicle.left_at is not None:
        away_s = (fix.at - vehicle.left_at).total_seconds()
        vehicle.left_at = None
        yield Return(fix_id=fix.fix_id, vehicle=fix.vehicle, at=fix.at, lat=fix.lat, lon=fix.lon, away_s=away_s)


def _watch_speed(vehicle: Vehicle, fix: Fix) -> Iterator[Violation]:
    before, vehicle.speeding = vehicle.speeding, fix.speed > vehicle.limit_kmh
    if vehicle.speeding and not before:
        yield _violation(fix, "speeding", f"{fix.speed:.0f} km/h where the limit is {vehicle.limit_kmh:.0f}")


def _violation(fix: Fix, kind: str, detail: str) -> Violation:
    return Violation(
        fix_id=fix.fix_id, vehicle=fix.vehicle, at=fix.at, kind=kind, lat=fix.lat, lon=fix.lon, detail=detail
    )


def _standing(vehicle: Vehicle) -> str:
    if not vehicle.corridor:
        return "no route"
    if vehicle.left_at is not None:
        return "off route"
    return "speeding" if vehicle.speeding else "on route"


def metres_off(lat: float, lon: float, line: Sequence[Point]) -> float:
    """Return the distance in metres from a position to the line through the given points.

    It is computed on the plane that is tangent to the globe at that position, which is accurate enough for lines of a
    few hundred kilometres and also works across the 180th meridian.
    """
    flat = [_on_plane(lat, lon, point) for point in line]
    return min(_from_origin(start, end) for start, end in pairwise(flat))


def _on_plane(lat: float, lon: float, point: Point) -> tuple[float, float]:
    """Return how many metres east and north of the position the point is."""
    east = (point.lon - lon + 180) % 360 - 180
    return math.radians(east) * math.cos(math.radians(lat)) * EARTH_M, math.radians(point.lat - lat) * EARTH_M


def _from_origin(start: tuple[float, float], end: tuple[float, float]) -> float:
    """Return the distance from (0, 0) to the nearest point on a segment."""
    (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
    length = dx * dx + dy * dy
    along = min(1.0, max(0.0, -(x * dx + y * dy) / length)) if length else 0.0
    return math.hypot(x + along * dx, y + along * dy)


positions = app.sql(
    "positions",
    """
    SELECT vehicle, max_by(standing, number) AS standing, max_by(speed, number) AS speed,
           max_by(lat, number) AS lat, max_by(lon, number) AS lon, max(at) AS at
    FROM `geofence.Position`
    GROUP BY vehicle
    """,
    key="vehicle",
)


alerts = app.sql(
    "alerts",
    "SELECT at, vehicle, kind, detail, lat, lon FROM `geofence.Violation`",
    key=["at", "vehicle", "kind"],
    keep=timedelta(minutes=5),
)


@app.view("speeds", reads=fixes, key=["window", "vehicle"], keep=timedelta(minutes=10))
def speeds(fixes: DataFrame) -> DataFrame:
    """The speed of each vehicle, minute by minute."""
    speed = F.col("speed")
    return (
        fixes.where(speed >= 0)
        .groupBy(F.window("at", "1 minute"), "vehicle")
        .agg(F.round(F.avg(speed), 1).alias("average"), F.max(speed).alias("highest"), F.count("*").alias("fixes"))
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.driving.demo import main

    sys.exit(main(__file__))
