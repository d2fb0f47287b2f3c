from datetime import datetime, timedelta

from penstock import App, Event, windows


class Sale(Event, id="sale_id", time="at"):
    sale_id: str
    at: datetime
    shop: str
    amount: float


app = App("sales-by-time")
sales = app.stream("sold", Sale, key="shop")

by_time = app.rollup(
    "sales",
    reads=sales,
    key="shop",
    by=["second", "minute", "hour", "day", "month", "year"],
    aggregate={"orders": windows.count(), "total": windows.sum("amount"), "largest": windows.max("amount")},
    keep={"second": timedelta(hours=1), "minute": timedelta(days=1)},
)
