"""`penstock new`: a small working app with a test."""

from __future__ import annotations

from pathlib import Path

from penstock.app.check import NAME, NAME_RULE
from penstock.core.errors import DeclarationError

_APP = '''"""Orders in, sales by product out.

    penstock run {name}/app.py
    curl -d '{{"order": "1", "product": "tea", "price": 3.5}}' http://127.0.0.1:8080/v1/streams/orders
    curl http://127.0.0.1:8080/v1/views/sales
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Order(Event, id="order"):
    order: str
    product: str
    price: float


app = App("{name}")
orders = app.stream("orders", Order, key="product")


@app.view("sales", reads=orders, key="product", top=10, by="total")
def sales(orders: DataFrame) -> DataFrame:
    return orders.groupBy("product").agg(F.count("*").alias("orders"), F.sum("price").alias("total"))
'''

_TEST = '''"""The view on a plain list of events: no server, no data directory."""

from app import Order, app, sales


def test_sales_add_up_by_product() -> None:
    orders = [
        Order(order="1", product="tea", price=3.5),
        Order(order="2", product="tea", price=4.0),
        Order(order="3", product="jam", price=5.0),
    ]
    rows = {{row["product"]: row["total"] for row in app.preview(sales, orders).collect()}}
    assert rows == {{"tea": 7.5, "jam": 5.0}}
'''


def make(name: str, folder: Path) -> list[Path]:
    """Write the files of a new app and return their paths. Refuses a folder that already exists."""
    if not NAME.fullmatch(name):
        raise DeclarationError(f"the name {name!r} is invalid: {NAME_RULE}")
    home = folder / name
    try:
        home.mkdir()
    except FileExistsError:
        raise DeclarationError(f"{name!r} already exists here") from None
    except OSError as error:
        raise DeclarationError(f"cannot create the folder {name!r} here: {error.strerror}") from None
    files = {home / "app.py": _APP, home / "test_app.py": _TEST}
    for path, text in files.items():
        path.write_text(text.format(name=name))
    return [path.relative_to(folder) for path in files]
