"""A fictional trading app for the fake API: deterministic, so that every run shows the same figures.

Run it to look at the dashboard: `python -m tests.dashboard.market [PORT]`.
"""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.dashboard.fake_api import FakeApi, Row, serving

SEED = 7
SYMBOLS = ["AAPL", "MSFT", "NVDA", "AMZN", "GOOG", "TSLA", "META", "ASML", "SAP", "SHOP", "TSM", "NFLX"]
WINDOW = "struct<start:timestamp,end:timestamp>"


def stream(name: str, fields: dict[str, str], **given: Any) -> dict[str, Any]:
    """Return a stream of `/v1/app`; by default the figures are those of an empty one."""
    figures = dict.fromkeys(["events", "end", "rate", "bytes", "accepted", "duplicates", "rejected", "refused"], 0)
    described = {"name": name, "declared": "market.py:12", "key": None, "id": None, "time": None, "partitions": 2}
    columns = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {**described, "fields": columns, **figures, "last_event": None, "error": None, **given}


def view(name: str, columns: dict[str, str], key: list[str], reads: list[str], **given: Any) -> dict[str, Any]:
    """Return a view of `/v1/app`; by default the figures are those of one that runs and has nothing to do."""
    described = {"name": name, "declared": "market.py:31", "reads": reads, "key": key, "top": None, "by": None}
    figures = {
        "lag": 0,
        "rate": 0,
        "rows": 0,
        "version": 1,
        "batch_id": 1,
        "batch_ms": 120,
        "watermark": None,
        "late": 0,
    }
    listed = [{"name": column, "type": kind} for column, kind in columns.items()]
    state = {"emit": "change", "kind": "python", "columns": listed, "state": "running", "error": None}
    return {**described, **state, **figures, **given}


def app(
    name: str, streams: list[Any], views: list[Any], sources: list[Any] | None = None, **given: Any
) -> dict[str, Any]:
    processes = {
        "gateway": {"pid": 1, "started": "2024-05-01T08:00:00Z"},
        "engine": {"pid": 2, "state": "running", "restarts": 0},
    }
    head = {"name": name, "version": "0.1.0", "started": "2024-05-01T08:00:00Z", "state": "ready", "connections": 1}
    graph = {"streams": streams, "views": views, "handlers": [], "sources": sources or [], "webhooks": []}
    return {**head, **graph, "processes": processes, **given}


TRADES = stream(
    "trades",
    {"trade_id": "string", "at": "timestamp[us, tz=UTC]", "symbol": "string", "price": "double", "size": "int64"},
    key="symbol", id="trade_id", time="at", events=1_482_113, end=1_482_113, rate=1840.0, bytes=91_400_000,
    accepted=1_482_113, duplicates=212, rejected=3, last_event="2024-05-01T09:59:59Z",
)  # fmt: skip
QUOTES = stream("quotes", {"symbol": "string", "bid": "double", "ask": "double"}, key="symbol", declared="market.py:20")
RANKED = view(
    "busiest", {"window": WINDOW, "symbol": "string", "trades": "bigint"}, ["window", "symbol"], ["trades"],
    top=10, by="trades", rows=10, rate=1840.0, kind="sql", watermark="2024-05-01T09:58:00Z",
)  # fmt: skip
MINUTES = view(
    "price-by-minute",
    {"symbol": "string", "window": WINDOW, "low": "double", "high": "double", "average": "double"},
    ["window", "symbol"], ["trades"], rows=48, rate=1838.0, lag=1200, batch_ms=340, late=4, declared="market.py:40",
)  # fmt: skip
FAILED = view(
    "spread", {}, ["symbol"], ["quotes"], state="failed", declared="market.py:52",
    error="view spread: there is no column 'aks'; did you mean ask, at line 54 of market.py?",
)  # fmt: skip
SWINGS = view(
    "swings", {"symbol": "string", "swing": "double"}, ["symbol"], ["price-by-minute"],
    rows=12, rate=40.0, declared="market.py:61",
)  # fmt: skip
FEED = {
    "name": "exchange", "kind": "websocket", "address": "wss://feed.example/trades?book=all", "into": "trades",
    "state": "connected", "received": 1_482_113, "lost": 0, "rate": 1840.0, "reconnects": 1, "error": None,
}  # fmt: skip


class Market:
    """The market's data. `step` advances it; the order of steps alone determines it."""

    def __init__(self, seed: int = SEED, now: datetime | None = None) -> None:
        self.random = random.Random(seed)
        self.minute = (now or datetime.now(UTC)).replace(second=0, microsecond=0)
        self.counts = {symbol: self.random.randint(200, 2_000) for symbol in SYMBOLS}
        self.prices = {symbol: self.random.uniform(50, 900) for symbol in SYMBOLS}
        self.trades = 0

    def window(self, ago: int = 0) -> dict[str, str]:
        start = self.minute - timedelta(minutes=ago)
        return {"start": stamp(start), "end": stamp(start + timedelta(minutes=1))}

    def ranked(self) -> list[Row]:
        best = sorted(self.counts, key=lambda symbol: -self.counts[symbol])[:10]
        return [{"window": self.window(), "symbol": symbol, "trades": self.counts[symbol]} for symbol in best]

    def minutes(self, symbols: list[str], ago: int = 0) -> list[Row]:
        def row(symbol: str) -> Row:
            price, half = self.prices[symbol], self.random.uniform(0.1, 2)
            figures = {"low": price - half, "high": price + half, "average": price}
            return {
                "symbol": symbol,
                "window": self.window(ago),
                **{name: round(figure, 4) for name, figure in figures.items()},
            }

        return [row(symbol) for symbol in symbols]

    def trade(self) -> Row:
        self.trades += 1
        symbol = self.random.choice(SYMBOLS)
        at = self.minute + timedelta(milliseconds=40 * self.trades)
        price, size = round(self.prices[symbol], 2), self.random.randint(1, 900)
        return {"trade_id": f"t-{self.trades:07d}", "at": stamp(at), "symbol": symbol, "price": price, "size": size}

    def api(self) -> FakeApi:
        history = [row for ago in range(4) for row in self.minutes(SYMBOLS, ago)]
        swings = [{"symbol": symbol, "swing": round(self.random.gauss(0, 2), 3)} for symbol in SYMBOLS]
        rejected = [{"reason": "Expected `float`, got `str`", "path": "$.price", "raw": "eyJwcmljZSI6ImNoZWFwIn0="}]
        described = app(
            "market",
            [dict(TRADES), dict(QUOTES)],
            [dict(node) for node in (RANKED, MINUTES, FAILED, SWINGS)],
            [dict(FEED)],
        )
        rows = {"busiest": self.ranked(), "price-by-minute": history, "swings": swings}
        return FakeApi(described, rows, {"trades": [self.trade() for _ in range(20)], "trades.rejected": rejected})

    def step(self, api: FakeApi) -> None:
        """Simulate a fraction of a second of trading: some counts and prices change, and trades come in."""
        for symbol in self.random.sample(SYMBOLS, 4):
            self.counts[symbol] += self.random.randint(1, 160)
            self.prices[symbol] *= self.random.uniform(0.999, 1.001)
        before = {row["symbol"] for row in api.views["busiest"].rows.values()}
        ranked = self.ranked()
        gone = before - {row["symbol"] for row in ranked}
        api.change("busiest", ranked, [{"window": self.window(), "symbol": symbol} for symbol in gone])
        api.change("price-by-minute", self.minutes(self.random.sample(SYMBOLS, 3)))
        api.append("trades", self.trade(), self.trade())
        for node in (*api.app["streams"], *api.app["views"], *api.app["sources"]):
            if node["rate"]:
                node["rate"] = max(0.0, self.random.gauss(1800, 180))
        trades = api.app["streams"][0]
        trades["end"] = trades["events"] = trades["end"] + 400


def stamp(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def main() -> None:
    market = Market()
    api = market.api()
    with serving(api, int(sys.argv[1]) if len(sys.argv) > 1 else 0) as address:
        print(address, flush=True)
        while True:
            market.step(api)
            time.sleep(0.4)


if __name__ == "__main__":
    main()
