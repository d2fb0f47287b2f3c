from datetime import datetime, timedelta

from penstock import App, Event, windows


class Reading(Event, id="reading_id", time="at"):
    reading_id: str
    at: datetime
    meter: str
    watts: float


app = App("meters")
readings = app.stream("readings", Reading, key="meter", late_after=timedelta(seconds=30))

app.window(
    "load",
    reads=readings,
    key="meter",
    over=windows.sliding(timedelta(minutes=30), every=timedelta(seconds=5)),
    aggregate={"readings": windows.count(), "watts": windows.mean("watts"), "peak": windows.max("watts")},
    trigger=windows.on_close,
    latest=True,
    keep=timedelta(hours=1),
)

app.window(
    "packets",
    reads=readings,
    key="meter",
    over=windows.hybrid(100, timedelta(seconds=10)),
    aggregate={"watts": windows.collect("watts", most=100), "spread": windows.stddev("watts")},
    trigger=windows.on_close,
    keep=timedelta(minutes=10),
)
