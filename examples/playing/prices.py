"""Trades in simulated stocks. Prices depend only on the seed and the time, so after a restart the play continues at the
price that it would have reached, and the restart does not look like a fall."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from examples.playing.message import Message, moments, stamp

SYMBOLS = ("ALDER", "ASPEN", "BEECH", "BIRCH", "CEDAR", "ELM", "HAZEL", "LARCH", "MAPLE", "OAK", "ROWAN", "YEW")
NOISE = 0.0005
RUBBISH = 0.002
DELAYED = 0.01
SENT_TWICE = 0.005


@dataclass(frozen=True)
class Stock:
    """A price that swings slowly and slumps once per cycle. The fall takes a tenth of the cycle, and the recovery a
    fifth."""

    symbol: str
    base: float
    swings: tuple[tuple[float, float, float], ...]
    cycle_s: float
    phase: float
    depth: float

    def price(self, at: datetime) -> float:
        seconds = at.timestamp()
        swing = sum(
            size * math.sin(2 * math.pi * (seconds / period_s + phase)) for size, period_s, phase in self.swings
        )
        return self.base * math.exp(swing - self.depth * slump((seconds / self.cycle_s + self.phase) % 1))


def slump(part: float) -> float:
    """Return the depth of the slump, from 0 to 1, at a given fraction of the cycle."""
    if part < 0.7:
        return 0.0
    return (part - 0.7) / 0.1 if part < 0.8 else (1 - part) / 0.2


def stocks(random: Random) -> list[Stock]:
    return [
        Stock(
            symbol,
            base=random.uniform(10, 400),
            swings=tuple((random.uniform(0.002, 0.01), random.uniform(40, 600), random.random()) for _ in range(3)),
            cycle_s=random.uniform(100, 300),
            phase=random.random(),
            depth=random.choice((0.02, 0.05, 0.09, 0.14, 0.2, 0.3)),
        )
        for symbol in SYMBOLS
    ]


def play(seed: int, start: datetime, rate: float) -> Iterator[Message]:
    """Yield trades. Some arrive a second late, some arrive twice, and some have no price."""
    random = Random(seed)
    listed = stocks(random)
    for number, at in moments(random, start, rate):
        stock = random.choice(listed)
        traded = at - timedelta(seconds=1) if random.random() < DELAYED else at
        price = round(stock.price(traded) * math.exp(random.gauss(0, NOISE)), 2)
        if random.random() < RUBBISH:
            price = 0.0
        message = Message(at, {"trade_id": str(number), "at": stamp(traded), "symbol": stock.symbol, "price": price})
        yield message
        if random.random() < SENT_TWICE:
            yield message
