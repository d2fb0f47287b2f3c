"""A handler that uses everything: state, emitted events of two classes, timers, log time, random numbers, failures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from penstock import App, Context, Event, State

SILENT_AFTER = timedelta(seconds=5)


class Fix(Event, id="fix"):
    fix: str
    vehicle: str
    x: float
    trouble: str | None = None


class Crossing(Event):
    vehicle: str
    inside: bool
    at: datetime
    path: list[float]


class Silence(Event):
    vehicle: str
    since: datetime
    fixes: int


class Vehicle(State):
    inside: bool | None = None
    fixes: int = 0
    path: list[float] = []  # noqa: RUF012  # msgspec gives each instance its own
    luck: float = 0.0
    last: datetime | None = None


app = App("fleet")
fixes = app.stream("fixes", Fix, key="vehicle")


@app.handler("geofence", reads=fixes, key="vehicle", state=Vehicle, emits=[Crossing, Silence])
def geofence(vehicle: Vehicle, fix: Fix, ctx: Context) -> Iterator[Crossing]:
    vehicle.fixes += 1
    vehicle.luck += ctx.random.random()
    vehicle.last = ctx.now
    vehicle.path.append(fix.x)
    del vehicle.path[:-3]
    if fix.trouble != "quiet":  # the timer is not moved
        ctx.timer("silent", ctx.now + SILENT_AFTER)
    inside = abs(fix.x) < 1
    if vehicle.inside is not None and inside != vehicle.inside:
        yield Crossing(vehicle=fix.vehicle, inside=inside, at=ctx.now, path=vehicle.path)
    vehicle.inside = inside
    if fix.trouble == "raise":
        raise RuntimeError(f"no good: {fix.fix}")
    if fix.trouble == "state":
        vehicle.fixes = "many"  # type: ignore[assignment]
    if fix.trouble == "class":
        yield fix  # type: ignore[misc]
    if fix.trouble == "value":
        yield Crossing(vehicle=fix.vehicle, inside="yes", at=ctx.now, path=[])  # type: ignore[arg-type]
    if fix.trouble == "forget":
        vehicle.inside, vehicle.fixes, vehicle.path, vehicle.luck, vehicle.last = None, 0, [], 0.0, None
        ctx.timer("silent", None)


@geofence.timer("silent")
def silent(vehicle: Vehicle, ctx: Context) -> Iterator[Silence]:
    assert vehicle.last is not None
    yield Silence(vehicle=ctx.key, since=vehicle.last, fixes=vehicle.fixes)
    ctx.timer("silent", ctx.now + SILENT_AFTER)


class Tally(State):
    crossings: int = 0


@app.handler("tally", reads="geofence.Crossing", key="vehicle", state=Tally)
def tally(tally: Tally, crossing: Crossing, ctx: Context) -> None:
    tally.crossings += 1


app.sql("crossings", "SELECT vehicle, count(*) AS n FROM `geofence.Crossing` GROUP BY vehicle", key="vehicle")
