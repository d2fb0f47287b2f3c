"""The fleet: the handler's output for a vehicle, whatever happens; and the same for a whole fleet on Spark."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples.client import Client
from examples.driving.play import CENTRE, DEGREE_M, UNKNOWN_EVERY, WIDTH_M, Message, drive, routes
from examples.fleet import Fix, Point, Position, Refused, Return, Route, Vehicle, Violation, app, geofence, metres_off
from penstock.app.check import check
from penstock.testing import CRASH, LATE, TICK, Result, run, tick
from tests.examples.stage import DEADLINE_S, demo
from tests.harness import wait_for

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
EQUATOR = [Point(lat=0.0, lon=0.0), Point(lat=0.0, lon=1.0)]
ROUTE = Route(route_id="r", vehicle="v", corridor=EQUATOR, width_m=1_000, limit_kmh=80)
AFTER_ROUTES = tick(timedelta(seconds=1))
VEHICLES = 20
FIXES = 1_500


def fix(number: int, lat: float = 0.0, lon: float = 0.5, speed: float = 50.0, **more: Any) -> Fix:
    """Return the fix of second `number`; the equator is the route."""
    at = more.pop("at", NOON + timedelta(seconds=number))
    return Fix(fix_id=str(number), at=at, vehicle=more.get("vehicle", "v"), lat=lat, lon=lon, speed=speed)


def watched(*items: Any, given: tuple[Any, ...] = (ROUTE,)) -> Result:
    return run(app, {"routes": [*given], "fixes": [AFTER_ROUTES, *items]})


def emitted(result: Result, cls: type) -> list[Any]:
    return result.emitted(f"geofence.{cls.__name__}")


def alerts(result: Result) -> list[tuple[str, str]]:
    return [(violation.fix_id, violation.kind) for violation in emitted(result, Violation)]


def test_the_app_is_sound() -> None:
    assert check(app) == []


@pytest.mark.parametrize(
    ("lat", "lon", "line", "metres"),
    [
        (0.01, 0.5, [(0, 0), (0, 1)], 1_112),  # beside the line
        (0.0, 1.01, [(0, 0), (0, 1)], 1_112),  # past its end
        (0.005, 0.0, [(0, 0), (0.01, 0), (0.01, 0.01)], 0),  # on one of its stretches
        (60.0, 0.01, [(59, 0), (61, 0)], 556),  # a degree of longitude is half as long there
        (0.0, 179.99, [(-1, -179.99), (1, -179.99)], 2_224),  # over the 180th meridian
        (0.0, 0.01, [(0, 0), (0, 0)], 1_112),  # a line that is a point
    ],
)
def test_the_distance_to_a_line_is_that_to_its_nearest_point(
    lat: float, lon: float, line: list[tuple[float, float]], metres: float
) -> None:
    points = [Point(lat=float(lat), lon=float(lon)) for lat, lon in line]
    assert metres_off(lat, lon, points) == pytest.approx(metres, abs=1)


def test_leaving_the_route_is_told_once_and_so_is_coming_back() -> None:
    result = watched(fix(1), fix(2, lat=0.01), fix(3, lat=0.02), fix(4, lat=0.001), fix(5))
    assert alerts(result) == [("2", "left the route")]
    assert [(event.fix_id, event.away_s) for event in emitted(result, Return)] == [("4", 2.0)]
    assert [position.standing for position in emitted(result, Position)] == [
        "on route", "off route", "off route", "on route", "on route",
    ]  # fmt: skip


def test_speeding_is_told_when_it_begins() -> None:
    result = watched(fix(1, speed=81), fix(2, speed=95), fix(3, speed=80), fix(4, speed=81))
    assert alerts(result) == [("1", "speeding"), ("4", "speeding")]


def test_a_fix_that_cannot_be_is_counted_and_moves_nothing() -> None:
    rubbish = [fix(2, lat=90.1), fix(3, lon=-180.1), fix(4, speed=-1.0), fix(5, lat=float("nan")), fix(6, at=NOON)]
    result = watched(fix(1, lon=0.25), *rubbish)
    assert Counter(refusal.reason for refusal in emitted(result, Refused)) == {
        "invalid coordinates": 3,
        "negative speed": 1,
        "not newer than the previous fix": 1,
    }
    state: Vehicle = result.states(geofence)["v"]
    assert (state.fixes, state.refused, state.lat, state.lon) == (1, 5, 0.0, 0.25)
    assert len(emitted(result, Position)) == 1


def test_a_vehicle_without_a_route_is_told_of_once_and_its_fixes_are_counted() -> None:
    result = watched(fix(1, lat=9.0, speed=200), fix(2), given=())
    assert alerts(result) == [("1", "no route")]
    assert result.states(geofence)["v"].unknown == 2
    assert {position.standing for position in emitted(result, Position)} == {"no route"}


def test_a_new_route_replaces_the_old_one_and_one_that_is_none_does_not() -> None:
    north = Route(route_id="n", vehicle="v", corridor=[Point(lat=0.5, lon=0), Point(lat=0.5, lon=1)], width_m=1_000)
    nowhere = Route(route_id="x", vehicle="v", corridor=[Point(lat=0.0, lon=0.0)], width_m=1_000)
    result = watched(fix(1), given=(ROUTE, north, nowhere))
    assert alerts(result) == [("1", "left the route")]
    assert [failure.error for failure in result.failed(geofence)] == [
        "ValueError: a route needs at least two points, all with valid coordinates"
    ]


def test_a_crash_a_pause_and_a_late_fix_change_no_alert() -> None:
    """Events that run again give the same; a fix that arrives late is valid if it is the newest."""
    calm = watched(fix(1), fix(2, lat=0.01), fix(3, lat=0.02), fix(4, speed=99))
    rough = watched(fix(1), CRASH, fix(2, lat=0.01), CRASH, TICK, fix(3, lat=0.02), LATE, fix(4, speed=99), CRASH)
    for cls in (Position, Violation, Return, Refused):
        assert emitted(rough, cls) == emitted(calm, cls)
    assert rough.digest(geofence) == calm.digest(geofence)


def played(seed: int = 1, start: datetime = NOON, count: int = FIXES, rate: float = 20.0) -> list[Message]:
    """Return the fixes of more than a minute."""
    return list(itertools.islice(drive(seed, start, VEHICLES, rate), count))


def test_the_same_seed_gives_the_same_fleet_and_another_one_another() -> None:
    assert (played(7), routes(7, VEHICLES)) == (played(7), routes(7, VEHICLES))
    assert played(7) != played(8)
    assert routes(7, VEHICLES) != routes(8, VEHICLES)


def test_a_fleet_that_sets_off_later_uses_no_id_again() -> None:
    later = itertools.islice(drive(1, NOON + timedelta(hours=1), VEHICLES, 20.0), FIXES)
    assert {message.fix["fix_id"] for message in played()}.isdisjoint(message.fix["fix_id"] for message in later)


def test_fixes_come_in_order_at_about_the_rate_asked_for() -> None:
    messages = played(count=2_000, rate=100.0)
    assert messages == sorted(messages, key=lambda message: message.at)
    assert 18 < (messages[-1].at - NOON).total_seconds() < 22


def test_most_of_the_fleet_does_as_told() -> None:
    """Nine in ten have a route and keep to it; each kind of violation happens, and is rare."""
    result = fleet_in_python(routes(1, VEHICLES), [message.fix for message in played()])
    standings = Counter(position.standing for position in emitted(result, Position))
    assert standings["on route"] > 0.7 * FIXES
    assert 0 < standings["no route"] <= 1.2 * FIXES / UNKNOWN_EVERY
    assert {kind for _, kind in alerts(result)} == {"left the route", "speeding", "no route"}
    assert 0 < len(emitted(result, Refused)) < 0.03 * FIXES


def test_routes_are_in_one_town() -> None:
    for route in routes(3, 50):
        assert route["width_m"] == WIDTH_M
        for point in route["corridor"]:
            assert abs(point["lat"] - CENTRE[0]) * DEGREE_M < 25_000


def fleet_in_python(given: list[dict[str, Any]], sent: list[dict[str, Any]]) -> Result:
    """Return the handler's result for a fleet in plain Python. A fix that is sent twice counts once."""
    unique = {fix["fix_id"]: msgspec.convert(fix, Fix) for fix in sent}
    known = [msgspec.convert(route, Route) for route in given]
    return run(app, {"routes": known, "fixes": [AFTER_ROUTES, *unique.values()]})


@pytest.mark.spark
def test_the_demo_gives_exactly_the_alerts_and_counts_of_plain_python(tmp_path: Path) -> None:
    """The script runs, as a new user starts it, until it has sent its fixes; then the same events run without Spark."""
    with demo("fleet", tmp_path, "--rate", "400", f"--vehicles={VEHICLES}", f"--fixes={FIXES}") as (process, address):
        client = Client(address, threading.Event())
        wait_for(lambda: sent_to(client) == FIXES, DEADLINE_S, "the last fix")
        expected = fleet_in_python(client.read("routes")[0], client.read("fixes")[0])
        wait_for(lambda: digest_of(client) == expected.digest(geofence), DEADLINE_S, "the same state")
        for cls in (Position, Violation, Return, Refused):
            assert in_order(events_of(client, cls)) == in_order(emitted(expected, cls))
        assert len(emitted(expected, Violation)) >= VEHICLES // UNKNOWN_EVERY
        wait_for(lambda: rows_of(client) == rows_expected(expected), DEADLINE_S, "the same in the views")
    assert process.returncode == 0


def sent_to(client: Client) -> int:
    [fixes] = [stream for stream in client.app()["streams"] if stream["name"] == "fixes"]
    return int(fixes["accepted"] + fixes["duplicates"])


def digest_of(client: Client) -> str:
    return str(client.app()["handlers"][0]["digest"])


def events_of(client: Client, cls: type) -> list[Any]:
    return [msgspec.convert(event, cls) for event in client.read(f"geofence.{cls.__name__}")[0]]


def in_order(events: list[Any]) -> list[Any]:
    """Sort by vehicle; which vehicle is first differs from run to run."""
    return sorted(events, key=lambda event: event.vehicle)


def rows_of(client: Client) -> tuple[Any, ...]:
    """Return the rows of the views: the status of each vehicle, the alerts, and how many fixes have a speed."""
    standings = {row["vehicle"]: row["standing"] for row in client.view("positions")}
    kinds = Counter(row["kind"] for row in client.view("alerts"))
    return standings, kinds, sum(row["fixes"] for row in client.view("speeds"))


def rows_expected(result: Result) -> tuple[Any, ...]:
    standings = {position.vehicle: position.standing for position in emitted(result, Position)}
    kinds = Counter(kind for _, kind in alerts(result))
    lost = sum(refusal.reason != "negative speed" for refusal in emitted(result, Refused))
    return standings, kinds, len(emitted(result, Position)) + lost
