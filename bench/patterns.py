"""Events a second per core through a pattern of three steps: cards that are tested with small sums, then used for large
ones. One event in ten matches a step; the others are only checked.

The benchmark measures the pattern handler as it runs in a worker: typed events are in memory, and the state of their
keys is decoded at the start of each batch and encoded at its end. The time is processor time, so other load does not
matter. The baseline, in the same run, is a plain loop that looks up each event's key in a dict and calls the first
step's predicate, which is the least that has to be done.

Another figure is the cost of an event when its key has thousands of open partial matches that are all waiting for the
same step. The baseline has half as many partial matches. If the rates are equal, the cost of an event does not depend
on their number. The time for all events is also shown as a multiple of the time for half of them; 2 is ideal.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import median
from typing import Any

from bench.report import Figure
from penstock import App, Event, cep
from penstock.app.declared import Matcher
from penstock.core.times import to_micros
from penstock.handlers.machine import Machine
from penstock.handlers.rows import Inputs, LogPosition
from penstock.handlers.shard import Shard

KEYS = 10_000
EVENTS = 200_000
WARM, TURNS = 3, 7
"""The number of batches. The clock starts after the first few, when the number of partial matches is stable at about
two per key."""
SELECTED = 0.1
OPEN = 8_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Payment(Event, time="at"):
    at: datetime
    card: str
    amount: float
    country: str


class CardTest(Event):
    card: str
    amount: float


probe = cep.on("probe", Payment, lambda p, m: p.amount < 1)
again = cep.on("again", Payment, lambda p, m: p.amount < 2 and p.country == m["probe"].country)
spend = cep.on("spend", Payment, lambda p, m: p.amount > 500 and p.country != m["probe"].country)

LATE_AFTER = timedelta(minutes=1)
"""With this value, about six events of each card are held back, so that they can be processed in order of event
time."""


def card_testing(late_after: timedelta | None) -> Matcher:
    app = App("cards")
    payments = app.stream("payments", Payment, key="card", late_after=late_after)

    @app.match(
        "card-testing",
        reads=payments,
        key="card",
        pattern=probe.then(again).then(spend),
        within=timedelta(minutes=10),
        emits=CardTest,
    )
    def tested(match: cep.Match) -> CardTest:
        return CardTest(card=match.key, amount=match["spend"].amount)

    return tested


def run() -> Iterator[Figure]:
    loop, ours = measure(None)
    yield Figure("patterns: three steps, 10,000 keys, a core", ours, "events/s", loop, "bare Python loop", "100,000")
    loop, ours = measure(LATE_AFTER)
    yield Figure("patterns: the same, events wait for late ones", ours, "events/s", loop, "bare Python loop")
    half, all_of_them = measure_open(OPEN // 2), measure_open(OPEN)
    yield Figure(f"patterns: {OPEN:,} open of one key", all_of_them, "events/s", half, "half as many open", "80%")
    times = (OPEN / all_of_them) / (OPEN / 2 / half)
    yield Figure(f"patterns: time to {OPEN:,} open, over {OPEN // 2:,}", times, "times", bar="2.5 at most")


def measure_open(count: int) -> float:
    """Return events per second for a key if each of its events begins a match that never completes."""
    events = [
        Payment(at=BEGIN + timedelta(seconds=number), card="4711", amount=0.5, country="DE") for number in range(count)
    ]
    times = []
    for _ in range(TURNS):
        began = time.process_time()
        matches = cep.find(probe.then(spend), events)
        times.append(time.process_time() - began)
        assert not matches
    return count / median(times)


def random_events(random: Random, first: int) -> list[Payment]:
    """Generate payments one millisecond apart, so that each card has one every ten seconds. One payment in ten fits a
    step."""
    events = []
    for number in range(EVENTS):
        at = BEGIN + timedelta(milliseconds=first + number)
        amount = random.choice((0.5, 1.5, 900.0)) if random.random() < SELECTED else random.uniform(2, 500)
        card = f"card-{random.randrange(KEYS)}"
        events.append(Payment(at=at, card=card, amount=amount, country=random.choice(("DE", "FR"))))
    return events


def measure(late_after: timedelta | None) -> tuple[float, float]:
    """Measure both on the same events, batch by batch, and use the median batch."""
    random = Random(1)
    machine, shard, known = Machine(card_testing(late_after)), Shard(), dict[str, int]()
    loops, steps, matches = [], [], 0
    gc.disable()
    for turn in range(TURNS):
        events = random_events(random, turn * EVENTS)
        rows = _rows(events)
        began = time.process_time()
        _loop(events, known)
        loops.append(time.process_time() - began)
        began = time.process_time()
        effects = machine.run(shard, rows)
        shard.apply(effects.changes)
        steps.append(time.process_time() - began)
        assert not effects.failures
        matches += len(effects.emitted)
    gc.enable()
    assert matches > 0
    return EVENTS / median(loops[WARM:]), EVENTS / median(steps[WARM:])


def _loop(events: list[Payment], known: dict[str, int]) -> None:
    fits: Any = probe.predicate
    for event in events:
        count = known.get(event.card, 0)
        if fits(event, None):
            known[event.card] = count + 1


def _rows(events: list[Payment]) -> Inputs:
    return Inputs.of(
        [event.card for event in events],
        events,
        [to_micros(event.at) for event in events],
        lambda row: None,
        lambda row: LogPosition("payments", 0, 0, row),
    )
