"""A handler whose results are a view: the usage of each meter in each hour, until the hour is struck out."""

from __future__ import annotations

from collections.abc import Iterator

from penstock import App, Context, Event, State, gone


class Reading(Event):
    meter: str
    hour: int
    watts: int
    struck: bool = False


class Used(Event):
    meter: str
    hour: int
    watts: int
    parts: list[int]


class Hours(State):
    watts: dict[str, int] = {}  # noqa: RUF012  # msgspec gives each instance its own


app = App("standing")
readings = app.stream("readings", Reading, key="meter")


@app.handler("used", reads=readings, key="meter", state=Hours, emits=Used, view=["meter", "hour"])
def used(hours: Hours, reading: Reading, ctx: Context) -> Iterator[Event]:
    name = str(reading.hour)
    if reading.watts < 0:
        raise ValueError("a meter does not run backwards")
    if reading.struck:
        hours.watts.pop(name, None)
        yield gone(Used, meter=reading.meter, hour=reading.hour)
        return
    hours.watts[name] = hours.watts.get(name, 0) + reading.watts
    parts = [*hours.watts.values()]
    yield Used(meter=reading.meter, hour=reading.hour, watts=hours.watts[name], parts=parts)


app.sql("most", "SELECT meter, max(watts) AS watts FROM used GROUP BY meter", key="meter")
