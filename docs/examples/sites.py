from datetime import datetime, timedelta

from penstock import App, Event, windows


class Reading(Event, id="reading_id", time="at"):
    reading_id: str
    at: datetime
    site: str
    meter: int
    watts: float
    test: bool = False


class Alarm(Event, id="alarm_id", time="at"):
    alarm_id: str
    at: datetime
    site: str
    device: int
    severity: int


class Alarmed(Event):
    site: str
    meter: int
    watts: float | None


app = App("sites")
readings = app.stream("readings", Reading, key="site", late_after=timedelta(seconds=30))
alarms = app.stream("alarms", Alarm, key="site", late_after=timedelta(seconds=30))

load = app.window(
    "load",
    reads=readings,
    key=["site", "meter"],
    where="NOT test",
    over=windows.tumbling(timedelta(minutes=1)),
    aggregate={"readings": windows.count(), "watts": windows.mean("watts")},
    trigger=windows.on_close,
    keep=timedelta(hours=1),
)

energy = app.rollup(
    "energy",
    reads=readings,
    key=["site", "meter"],
    where="NOT test AND watts > 0",
    by=["minute", "hour"],
    aggregate={"readings": windows.count(), "watts": windows.sum("watts")},
)


@app.join(
    "alarmed",
    left=alarms,
    right=readings,
    key=(["site", "device"], ["site", "meter"]),
    where=("severity >= 3", "NOT test"),
    within=timedelta(seconds=10),
    how="left",
    emits=Alarmed,
)
def alarmed(alarm: Alarm, reading: Reading | None) -> Alarmed:
    """A severe alarm, with each reading of its device around that time."""
    return Alarmed(site=alarm.site, meter=alarm.device, watts=None if reading is None else reading.watts)
