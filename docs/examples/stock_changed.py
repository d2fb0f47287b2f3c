from typing import Any

from penstock import App, Context, Event, State


class Movement(Event, id="movement_id"):
    movement_id: str
    product: str
    pieces: int


class Product(State, version=2, renamed={"pieces": "in_stock"}, dropped=["missing"]):
    in_stock: int = 0
    dozens: float = 0.0

    @staticmethod
    def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Convert fields of `version` to fields of the next version."""
        return {**fields, "dozens": fields["pieces"] / 12}


app = App("stock")
movements = app.stream("movements", Movement, key="product")


@app.handler("shortages", reads=movements, key="product", state=Product)
def shortages(product: Product, movement: Movement, ctx: Context) -> None:
    product.in_stock += movement.pieces
    product.dozens = product.in_stock / 12
