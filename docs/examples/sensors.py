"""Sensor readings. Under overload, all urgent readings are kept, and one in ten of the others."""

from datetime import datetime

from penstock import App, Event, Shed


class Reading(Event, id="reading_id", time="at"):
    reading_id: str
    sensor: str
    at: datetime
    kind: str
    severity: int = 0
    weight: float = 1.0


app = App("sensors")
readings = app.stream(
    "readings",
    Reading,
    key="sensor",
    shed=Shed(keep=0.1, unless="severity >= 3 OR kind = 'alarm'", weight="weight"),
)
by_kind = app.sql("by-kind", "SELECT kind, sum(weight) AS readings FROM readings GROUP BY kind", key="kind")
