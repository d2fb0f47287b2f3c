"""Events a second, a core, through a pattern of three steps: cards that are tried with small sums, then used for large
ones. One event in ten fits a step; the others are looked at and passed over.

It is the machine that is measured, as it runs in a worker: typed events in memory, their keys' state decoded at the
start of a batch and sealed at its end. Time is that of the processor, so that what runs beside it does not count.
Baseline, in the same run: a bare loop that looks each event's key up in a dict and asks the first step's predicate,
which is the least that anyone must do.

Another figure is what an event costs when thousands of partial matches of its key are open, all waiting for the same.
Its baseline is half as many: the same rate means that the cost of an event does not depend on how many there are. The
time that all of the events take is printed beside it, as a multiple of the time that half of them take: 2 is ideal.
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
from penstock.declared import Matcher
from penstock.machine import Machine
from penstock.rows import Inputs, Place, to_micros
from penstock.shard import Shard

KEYS = 10_000
EVENTS = 200_000
WARM, TURNS = 3, 7
"""Batches; the clock starts after some, when there are as many partial matches as there will be: some two a key."""
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
"""So some six events of each card wait for their turn, in order of their times."""


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
    """Events a second of a key whose events each begin a match that nothing ends."""
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


def made(random: Random, first: int) -> list[Payment]:
    """Payments a millisecond apart, so that a card has one in ten seconds; one in ten fits a step."""
    events = []
    for number in range(EVENTS):
        at = BEGIN + timedelta(milliseconds=first + number)
        amount = random.choice((0.5, 1.5, 900.0)) if random.random() < SELECTED else random.uniform(2, 500)
        card = f"card-{random.randrange(KEYS)}"
        events.append(Payment(at=at, card=card, amount=amount, country=random.choice(("DE", "FR"))))
    return events


def measure(late_after: timedelta | None) -> tuple[float, float]:
    """Both on the same events, a batch at a time; the typical batch counts."""
    random = Random(1)
    machine, shard, known = Machine(card_testing(late_after)), Shard(), dict[str, int]()
    loops, steps, matches = [], [], 0
    gc.disable()
    for turn in range(TURNS):
        events = made(random, turn * EVENTS)
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
        lambda row: Place("payments", 0, 0, row),
    )
