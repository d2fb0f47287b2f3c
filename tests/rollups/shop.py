"""Sales in a short notation: `("10:00:05", 3.0)` came when it happened, `("10:00:05", 3.0, "10:30:00")` came
later. All are on the first day of 2024, or for `02 10:00:05` on the second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import App, Event, windows
from penstock.app.declared import Rollup, Stream
from penstock.handlers.samples import BEGIN
from penstock.testing import STEP, Result, run, tick

Given = tuple[str, float] | tuple[str, float, str]
AGGREGATES = {"orders": windows.count(), "total": windows.sum("amount")}


class Sale(Event, time="at"):
    at: datetime
    shop: str
    amount: float | None


def moment(text: str) -> datetime:
    day, _, clock = text.rpartition(" ")
    return datetime.fromisoformat(f"2024-01-{day or '01'}T{clock}").replace(tzinfo=UTC)


def shop(by: Sequence[str], keep: Mapping[str, timedelta], **options: Any) -> tuple[App, Stream, Rollup]:
    app = App("shop")
    sales = app.stream("sold", Sale, key="shop")
    options = {"aggregate": AGGREGATES, "key": "shop"} | options
    return app, sales, app.rollup("sales", reads=sales, by=by, keep=keep, **options)


def logged(sales: Iterable[tuple[datetime, Sale | None]]) -> list[Any]:
    """Return an input list in which each sale comes at its log time, or right after the one before. None is a tick."""
    items: list[Any] = []
    time = BEGIN
    for came, sale in sales:
        step = STEP if sale is not None else timedelta(0)
        items += [tick(came - time - step)] if came > time + step else []
        items += [] if sale is None else [sale]
        time = max(came, time + step)
    return items


def sold(*given: Given, until: str | None = None) -> list[Any]:
    """Return sales of the shop `a`, in the order in which they come, and a tick at the time after that."""
    sales: list[tuple[datetime, Sale | None]] = [
        (moment(sale[2] if len(sale) == 3 else sale[0]), Sale(at=moment(sale[0]), shop="a", amount=sale[1]))
        for sale in given
    ]
    return logged(sales if until is None else [*sales, (moment(until), None)])


def shown(result: Result, per: str | None = None) -> dict[str, tuple[int, float]]:
    """Return the rows, as `hour 10:00:00`, with their counts and sums."""
    rows = [row for row in result.rows("sales") if per in (None, row.per)]
    return {f"{row.per} {_text(row.start)}": (row.orders, row.total) for row in rows}


def _text(start: datetime) -> str:
    return start.strftime("%H:%M:%S" if start.date() == BEGIN.date() else "%m-%d %H:%M:%S")


def ran(items: Sequence[Any], by: Sequence[str], keep: Mapping[str, timedelta], **cut: Any) -> Result:
    app, sales, _ = shop(by, keep)
    return run(app, {sales: items}, **cut)
