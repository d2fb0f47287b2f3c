"""A fictional fleet for the fake API: vehicles on a map, and alerts where they happened.

Run it to look at the map: `python -m tests.dashboard.towns [PORT [VEHICLES]]`.
"""

from __future__ import annotations

import random
import sys
import time

from tests.dashboard.fake_api import FakeApi, Row, serving
from tests.dashboard.market import app, stream, view

SEED = 3
STANDINGS = ("on route", "on route", "on route", "off route", "speeding", "no route")
FIXES = stream(
    "fixes", {"vehicle": "string", "lat": "double", "lon": "double"}, key="vehicle", end=9, events=9, rate=40
)
POSITIONS = view(
    "positions",
    {"vehicle": "string", "standing": "string", "speed": "double", "lat": "double", "lon": "double"},
    ["vehicle"],
    ["fixes"],
)
ALERTS = view(
    "alerts",
    {"alert": "bigint", "vehicle": "string", "kind": "string", "lat": "double", "lon": "double"},
    ["alert"],
    ["fixes"],
)


class Towns:
    """Vehicles that move at random; the order of steps alone determines where they are."""

    def __init__(self, vehicles: int, seed: int = SEED) -> None:
        self.random = random.Random(seed)
        self.places = {f"V-{n:04d}": self._place() for n in range(vehicles)}
        self.alerts = 0

    def _place(self) -> list[float]:
        return [self.random.gauss(50.11, 0.03), self.random.gauss(8.68, 0.05)]

    def row(self, vehicle: str) -> Row:
        lat, lon = self.places[vehicle]
        standing = STANDINGS[int(vehicle[2:]) % len(STANDINGS)]
        return {"vehicle": vehicle, "standing": standing, "speed": 42.5, "lat": round(lat, 6), "lon": round(lon, 6)}

    def rows(self) -> list[Row]:
        return [self.row(vehicle) for vehicle in self.places]

    def alert(self) -> Row:
        self.alerts += 1
        vehicle = self.random.choice(list(self.places))
        lat, lon = self.places[vehicle]
        return {"alert": self.alerts, "vehicle": vehicle, "kind": "speeding", "lat": lat, "lon": lon}

    def api(self) -> FakeApi:
        alerts = [self.alert() for _ in range(5)]
        described = app("fleet", [dict(FIXES)], [dict(POSITIONS), dict(ALERTS)])
        return FakeApi(described, {"positions": self.rows(), "alerts": alerts}, {})

    def step(self, api: FakeApi, count: int) -> None:
        """Move some vehicles a little."""
        moved = self.random.sample(list(self.places), min(count, len(self.places)))
        for vehicle in moved:
            self.places[vehicle] = [degrees + self.random.gauss(0, 0.0005) for degrees in self.places[vehicle]]
        api.change("positions", [self.row(vehicle) for vehicle in moved])


def main(arguments: list[str]) -> None:
    port, vehicles = int(arguments[0]) if arguments else 0, int(arguments[1]) if len(arguments) > 1 else 40
    towns = Towns(vehicles)
    api = towns.api()
    with serving(api, port) as address:
        print(address, flush=True)
        while True:
            towns.step(api, vehicles // 4)
            time.sleep(0.3)


if __name__ == "__main__":
    main(sys.argv[1:])
