"""A handler whose class and code change: it answers every reading with one event, with the sum so far."""

from __future__ import annotations

from collections.abc import Iterator

from penstock import App, Context, Event, State


class Reading(Event, id="reading"):
    reading: str
    meter: str
    watts: int


class Sum(Event):
    reading: str
    meter: str
    watts: int
    code: int


class Meter(State):
    count: int = 0
    total: int = 0


FACTOR, CODE = 1, 1
app = App("meters")
readings = app.stream("readings", Reading, key="meter")


@app.handler("sums", reads=readings, key="meter", state=Meter, emits=Sum)
def sums(meter: Meter, reading: Reading, ctx: Context) -> Iterator[Sum]:
    meter.count += 1
    meter.total += reading.watts * FACTOR
    yield Sum(reading=reading.reading, meter=reading.meter, watts=meter.total, code=CODE)
