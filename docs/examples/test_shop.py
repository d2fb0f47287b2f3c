from shop import app, sales


def test_sales_adds_up_the_pieces_of_each_product() -> None:
    orders = [
        {"order_id": "1", "at": "2024-05-01T12:00:00Z", "product": "tea", "pieces": 2},
        {"order_id": "2", "at": "2024-05-01T12:00:01Z", "product": "tea", "pieces": 1},
    ]
    [row] = app.preview(sales, orders).collect()
    assert (row.product, row.orders, row.pieces) == ("tea", 2, 3)
