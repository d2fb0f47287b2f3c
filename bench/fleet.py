"""The handler that is measured: a geofence. Vehicles report their positions, and crossing a depot's fence raises an
alert."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from penstock import App, Context, Event, State


class Fix(Event, id="fix", time="at"):
    fix: str
    at: datetime
    vehicle: str
    lat: float
    lon: float
    speed: float


class Crossing(Event):
    vehicle: str
    entered: bool
    at: datetime
    speed: float


class Vehicle(State):
    inside: bool | None = None
    fixes: int = 0
    fastest: float = 0.0
    distance: float = 0.0
    lat: float = 0.0
    lon: float = 0.0


app = App("fleet")
fixes = app.stream("fixes", Fix, key="vehicle")


@app.handler("geofence", reads=fixes, key="vehicle", state=Vehicle, emits=Crossing)
def geofence(vehicle: Vehicle, fix: Fix, ctx: Context) -> Iterator[Crossing]:
    vehicle.fixes += 1
    if fix.speed > vehicle.fastest:
        vehicle.fastest = fix.speed
    inside = (fix.lat - 52.0) ** 2 + (fix.lon - 13.0) ** 2 < 0.01
    if vehicle.inside is not None:
        vehicle.distance += abs(fix.lat - vehicle.lat) + abs(fix.lon - vehicle.lon)
        if inside != vehicle.inside:
            yield Crossing(vehicle=fix.vehicle, entered=inside, at=fix.at, speed=fix.speed)
    vehicle.inside, vehicle.lat, vehicle.lon = inside, fix.lat, fix.lon
