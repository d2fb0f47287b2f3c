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
    """Track the stock of a product, and the demand that could not be met."""
    product.pieces += movement.pieces
    if product.pieces < 0:
        product.missing -= product.pieces
        product.pieces = 0
        ctx.timer("report", ctx.now + timedelta(seconds=10))


@shortages.timer("report")
def report(product: Product, ctx: Context) -> Iterator[Shortage]:
    """Report the missing quantity ten seconds after the last shortage."""
    yield Shortage(product=ctx.key, missing=product.missing, at=ctx.now)
    product.missing = 0
