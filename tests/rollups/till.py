"""The sales at each till: minutes for an hour, days for long."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock import App, Event, windows


class Sale(Event, id="number", time="at"):
    number: int
    at: datetime
    till: str
    cents: int


app = App("till")
sold = app.stream("sold", Sale, key="till")
sales = app.rollup(
    "sales",
    reads=sold,
    key="till",
    by=["minute", "day"],
    aggregate={"orders": windows.count(), "cents": windows.sum("cents")},
    keep={"minute": timedelta(hours=1), "day": timedelta(days=30)},
)
