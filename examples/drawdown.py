"""Stock drawdowns: how far each symbol is below its peak, and its largest fall so far.

A handler tracks the peak and the largest fall of each symbol, a view ranks the symbols by their largest fall, and a
pattern raises an alert when a symbol falls quickly. When run as a script, this file generates its own trades:

    python examples/drawdown.py --rate 30 --seed 1
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from penstock import App, Context, Event, State, cep

SLIDE_PERCENT = 10.0
SLIDE_WITHIN = timedelta(minutes=5)


class Trade(Event, id="trade_id", time="at"):
    trade_id: str
    at: datetime
    symbol: str
    price: float


class Drawdown(Event, time="at"):
    """A symbol after its nth trade, with its current fall from the peak and its largest fall, in percent.

    The largest fall lasted from `began` to `ended`."""

    symbol: str
    number: int
    at: datetime
    price: float
    peak: float
    fall: float
    largest: float
    began: datetime
    ended: datetime


class Slide(Event, time="at"):
    """A symbol that fell fast."""

    symbol: str
    at: datetime
    peak: float
    price: float
    fall: float
    seconds: float


class Symbol(State):
    """The state of a symbol. `began` and `ended` are the peak and the low of the largest fall."""

    number: int = 0
    at: datetime | None = None
    peak: float = 0.0
    peak_at: datetime | None = None
    largest: float = 0.0
    began: datetime | None = None
    ended: datetime | None = None
    stale: int = 0


app = App("drawdown")
trades = app.stream("trades", Trade, key="symbol", keep=timedelta(days=1))


@app.handler("drawdown", reads=trades, key="symbol", state=Symbol, emits=Drawdown)
def drawdown(symbol: Symbol, trade: Trade, ctx: Context) -> Iterator[Drawdown]:
    """Track one symbol. A trade that is older than the previous one is counted but otherwise ignored."""
    if not 0 < trade.price < math.inf:
        raise ValueError("the price must be above zero, or it would count as a fall of 100 percent")
    if symbol.at is not None and trade.at < symbol.at:
        symbol.stale += 1
        return
    symbol.at = trade.at
    symbol.number += 1
    if trade.price >= symbol.peak or symbol.peak_at is None:
        symbol.peak, symbol.peak_at = trade.price, trade.at
    fall = 100 * (1 - trade.price / symbol.peak)
    if fall > symbol.largest or symbol.began is None:
        symbol.largest, symbol.began, symbol.ended = fall, symbol.peak_at, trade.at
    yield Drawdown(
        symbol=trade.symbol,
        number=symbol.number,
        at=trade.at,
        price=trade.price,
        peak=symbol.peak,
        fall=fall,
        largest=symbol.largest,
        began=symbol.began,
        ended=symbol.ended or trade.at,
    )


ranking = app.sql(
    "ranking",
    """
    SELECT symbol, round(last.largest, 2) AS largest_fall, round(last.fall, 2) AS fall_now,
           last.price AS price, last.peak AS peak, last.began AS began, last.ended AS ended
    FROM (
        SELECT symbol, max_by(struct(largest, fall, price, peak, began, ended), number) AS last
        FROM drawdown GROUP BY symbol
    )
    """,
    key="symbol",
    top=10,
    by="largest_fall",
)

at_peak = cep.on("peak", Drawdown, lambda trade, m: trade.fall == 0)
higher = cep.on("higher", Drawdown, lambda trade, m: trade.fall == 0)
fallen = cep.on("fallen", Drawdown, lambda trade, m: trade.fall >= SLIDE_PERCENT)


@app.match(
    "slides",
    reads=drawdown,
    key="symbol",
    pattern=at_peak.not_then(higher).then(fallen),
    within=SLIDE_WITHIN,
    emits=Slide,
)
def slides(m: cep.Match) -> Slide:
    """Match a peak and the first trade far enough below it, with no higher peak in between. Each peak causes at most
    one alert."""
    peak, low = m["peak"], m["fallen"]
    return Slide(
        symbol=m.key,
        at=low.at,
        peak=peak.price,
        price=low.price,
        fall=low.fall,
        seconds=(low.at - peak.at).total_seconds(),
    )


alerts = app.sql(
    "alerts",
    "SELECT at, symbol, round(fall, 2) AS fall, peak, price, round(seconds, 1) AS seconds FROM slides",
    key=["at", "symbol"],
    keep=timedelta(minutes=10),
)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from examples.playing.demo import main

    sys.exit(main(__file__))
