"""Handlers whose streams are partitioned differently: one of two streams, one of a stream partitioned by another
field."""

from __future__ import annotations

from penstock import App, Context, Event, State


class Price(Event):
    item: str
    price: float


class Sale(Event, id="sale"):
    sale: str
    item: str
    shop: str


class Till(State):
    price: float = 0.0
    total: float = 0.0
    sales: str = ""


class Shop(State):
    sales: str = ""


app = App("shops")
prices = app.stream("prices", Price, key="item")
sales = app.stream("sales", Sale, key="shop")


@app.handler("till", reads=[prices, sales], key="item", state=Till)
def till(till: Till, event: Price | Sale, ctx: Context) -> None:
    if isinstance(event, Price):
        till.price = event.price
    else:
        till.total += till.price
        till.sales = f"{till.sales[-40:]} {event.sale}"


@app.handler("by-item", reads=sales, key="item", state=Shop)
def by_item(shop: Shop, sale: Sale, ctx: Context) -> None:
    shop.sales = f"{shop.sales[-40:]} {sale.sale}"
