"""The app of the tests of rebuilt views. Each line that a test changes is separate."""

from datetime import datetime, timedelta

from penstock import App, Event


class Reading(Event, id="reading", time="at"):
    reading: str
    at: datetime
    meter: str
    watts: int


app = App("meters")
readings = app.stream("readings", Reading, key="meter", late_after=timedelta(minutes=1))
app.sql("peak", "SELECT meter, max(watts) AS watts, count(*) AS n FROM readings GROUP BY meter", key="meter")
app.sql(
    "minutes",
    "SELECT window, count(*) AS n, sum(watts) AS watts FROM readings GROUP BY window(at, '1 minute')",
    key="window",
)
