"""Vehicle positions: a stream, a view of each vehicle's latest position, and feeds that have separate grants."""

from datetime import datetime

from penstock import App, Event, Record


class Place(Record):
    lat: float
    lon: float


class Fix(Event, id="fix_id", time="at"):
    fix_id: str
    at: datetime
    vehicle: str
    place: Place
    speed: float


app = App("fleet-feeds")
fixes = app.stream("fixes", Fix, key="vehicle")
latest = app.sql(
    "latest", "SELECT vehicle, max(at) AS at, max_by(speed, at) AS speed FROM fixes GROUP BY vehicle", key="vehicle"
)

near_depot = app.feed(
    "near-depot",
    of=fixes,
    where="distance(place.lat, place.lon, 41.88, -87.63) < 1000",
    select=["vehicle", "at", "round(speed * 3.6) AS kmh"],
)
fast = app.feed("fast", of=latest, where="speed > 30")
