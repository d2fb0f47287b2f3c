"""Rows of a query's result, in the form of the reference: tuples of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

Row = tuple[Any, ...]
STATISTICS = tuple(
    f"{rank}_{what}" for what in ("bids", "bidders", "auctions") for rank in ("total", "rank1", "rank2", "rank3")
)
TIMES = {"window", "dateTime", "expires", "starttime", "endtime", "bid_dateTime", "auction_dateTime"}
COLUMNS: dict[str, tuple[str, ...]] = {
    "q0": ("auction", "bidder", "price", "dateTime", "extra"),
    "q1": ("auction", "bidder", "price", "dateTime", "extra"),
    "q2": ("auction", "price"),
    "q3": ("name", "city", "state", "id"),
    "q4": ("id", "final"),
    "q5": ("window", "num", "auctions"),
    "q6": ("seller", "avg_price"),
    "q7": ("auction", "bidder", "price", "dateTime", "extra"),
    "q8": ("id", "name", "starttime"),
    "q9": (
        "id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category", "extra",
        "auction", "bidder", "price", "bid_dateTime", "bid_extra",
    ),
    "q10": ("auction", "bidder", "price", "dateTime", "extra", "dt", "hm"),
    "q11": ("bidder", "bid_count", "starttime", "endtime"),
    "q12": ("bidder", "bid_count", "starttime", "endtime"),
    "q13": ("auction", "bidder", "price", "dateTime", "value"),
    "q14": ("auction", "bidder", "price", "bidTimeType", "dateTime", "extra", "c_counts"),
    "q15": ("day", *STATISTICS),
    "q16": ("channel", "day", "minute", *STATISTICS),
    "q17": (
        "auction", "day", "total_bids", "rank1_bids", "rank2_bids", "rank3_bids", "min_price", "max_price",
        "avg_price", "sum_price",
    ),
    "q18": ("auction", "bidder", "price", "channel", "url", "dateTime", "extra"),
    "q19": ("auction", "bidder", "price", "channel", "url", "dateTime", "extra", "rank_number"),
    "q20": (
        "auction", "bidder", "price", "channel", "url", "bid_dateTime", "bid_extra", "itemName", "description",
        "initialBid", "reserve", "auction_dateTime", "expires", "seller", "category", "auction_extra",
    ),
    "q21": ("auction", "bidder", "price", "channel", "channel_id"),
    "q22": ("auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"),
}  # fmt: skip


def rows_of(name: str, rows: Iterable[Any]) -> list[Row]:
    """Return the rows of a query, given as JSON objects or as events."""
    dicts = [row if isinstance(row, Mapping) else msgspec.structs.asdict(row) for row in rows]
    return [tuple(_value(name, column, row[column]) for column in COLUMNS[name]) for row in dicts]


def _value(name: str, column: str, value: Any) -> Any:
    if column == "window":
        value = value["start"]
    if column in TIMES and isinstance(value, str):
        return datetime.fromisoformat(value)
    if column == "price" and name in ("q1", "q14"):
        return Decimal(value)
    return value


def difference(rows: Iterable[Row], expected: Iterable[Row]) -> str:
    """Return a short text of missing and surplus rows; empty if there are none."""
    have, want = Counter(map(_hashable, rows)), Counter(map(_hashable, expected))
    missing, surplus = want - have, have - want
    if not missing and not surplus:
        return ""
    return (
        f"{missing.total()} of {want.total()} rows are missing, {surplus.total()} too many: "
        f"missing {list(missing)[:3]}, too many {list(surplus)[:3]}"
    )


def _hashable(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)
