"""The app that `bench layers` measures: a view of a stream, and derived views above it. `BENCH_SHAPE` selects the
number of derived views in a chain, or `diamond`."""

from __future__ import annotations

import os

from penstock import App, Event


class Update(Event):
    item: str
    number: int


SHAPE = os.environ.get("BENCH_SHAPE", "0")
CHAIN = (
    "SELECT item, number, updates FROM items WHERE updates > 0",
    "SELECT substr(item, 1, 4) AS item, max(number) AS number, sum(updates) AS updates FROM layer1 "
    "GROUP BY substr(item, 1, 4)",
    "SELECT item, number, updates * 2 AS updates FROM layer2",
    "SELECT 'all' AS item, max(number) AS number, sum(updates) AS updates FROM layer3",
)
"""A filter, an aggregation by groups of a hundred, a projection, a total."""

app = App("layered")
updates = app.stream("updates", Update, key="item")
app.sql("items", "SELECT item, max(number) AS number, count(*) AS updates FROM updates GROUP BY item", key="item")
if SHAPE == "diamond":
    app.sql("left", CHAIN[0], key="item")
    app.sql("right", "SELECT max(updates) AS most, 'all' AS side FROM items", key="side")
    app.sql("top", "SELECT item, number, updates, most FROM left CROSS JOIN right", key="item")
else:
    for depth in range(1, int(SHAPE) + 1):
        app.sql(f"layer{depth}", CHAIN[depth - 1], key="item")
TOP = "top" if SHAPE == "diamond" else f"layer{SHAPE}" if int(SHAPE) else "items"
