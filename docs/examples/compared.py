from datetime import datetime, timedelta

from penstock import App, Event, windows


class Sale(Event, id="sale_id", time="at"):
    sale_id: str
    at: datetime
    shop: str
    amount: float


class Hour(Event):
    per: str
    start: datetime
    shop: str
    largest: float


class Record(Event, id="sale_id", time="at"):
    sale_id: str
    at: datetime
    shop: str
    amount: float
    before: float


app = App("records")
sales = app.stream("sold", Sale, key="shop")

by_hour = app.rollup(
    "sales",
    reads=sales,
    key="shop",
    by=["hour", "day"],
    aggregate={"largest": windows.max("amount")},
)


@app.enrich(
    "records",
    reads=sales,
    table=by_hour,
    row=Hour,
    key="shop",
    per="hour",
    within=timedelta(hours=24),
    how="inner",
    emits=Record,
)
def records(sale: Sale, hours: list[Hour]) -> Record | None:
    """Emit a sale that is at least twice as large as the largest sale in the last 24 hours."""
    before = max(hour.largest for hour in hours)
    if sale.amount < 2 * before:
        return None
    return Record(sale_id=sale.sale_id, at=sale.at, shop=sale.shop, amount=sale.amount, before=before)
