"""Sales that are easy to write down: `("10:00:05", 3.0)` came when it happened, `("10:00:05", 3.0, "10:30:00")` came
later. All on the first day of 2024, or `02 10:00:05` on its second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import App, Event, windows
from penstock.declared import Rollup, Stream
from penstock.testing import BEGIN, STEP, Result, run, tick

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
    """An input list in which each sale comes at its log time, or right after the one before. None is a tick."""
    made: list[Any] = []
    time = BEGIN
    for came, sale in sales:
        step = STEP if sale is not None else timedelta(0)
        made += [tick(came - time - step)] if came > time + step else []
        made += [] if sale is None else [sale]
        time = max(came, time + step)
    return made


def sold(*given: Given, until: str | None = None) -> list[Any]:
    """Sales of the shop `a`, in the order in which they come, and what time it is after that."""
    sales: list[tuple[datetime, Sale | None]] = [
        (moment(each[2] if len(each) == 3 else each[0]), Sale(at=moment(each[0]), shop="a", amount=each[1]))
        for each in given
    ]
    return logged(sales if until is None else [*sales, (moment(until), None)])


def shown(result: Result, per: str | None = None) -> dict[str, tuple[int, float]]:
    """The rows, as `hour 10:00:00`, with what they count and sum up."""
    rows = [row for row in result.rows("sales") if per in (None, row.per)]
    return {f"{row.per} {_text(row.start)}": (row.orders, row.total) for row in rows}


def _text(start: datetime) -> str:
    return start.strftime("%H:%M:%S" if start.date() == BEGIN.date() else "%m-%d %H:%M:%S")


def ran(items: Sequence[Any], by: Sequence[str], keep: Mapping[str, timedelta], **cut: Any) -> Result:
    app, sales, _ = shop(by, keep)
    return run(app, {sales: items}, **cut)
