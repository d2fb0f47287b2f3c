from collections.abc import Iterator
from datetime import datetime, timedelta

from penstock import App, Context, Event, State


class Movement(Event, id="movement_id"):
    movement_id: str
    product: str
    pieces: int


class Shortage(Event):
    product: str
    missing: int
    at: datetime


class Product(State):
    pieces: int = 0
    missing: int = 0


app = App("stock")
movements = app.stream("movements", Movement, key="product")


@app.handler("shortages", reads=movements, key="product", state=Product, emits=Shortage)
def shortages(product: Product, movement: Movement, ctx: Context) -> None:
    """Count what is in stock; remember what was asked for in vain."""
    product.pieces += movement.pieces
    if product.pieces < 0:
        product.missing -= product.pieces
        product.pieces = 0
        ctx.timer("report", ctx.now + timedelta(seconds=10))


@shortages.timer("report")
def report(product: Product, ctx: Context) -> Iterator[Shortage]:
    """Ten seconds after the last shortage, tell how much was missing."""
    yield Shortage(product=ctx.key, missing=product.missing, at=ctx.now)
    product.missing = 0
