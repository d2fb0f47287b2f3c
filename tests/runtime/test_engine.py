"""Whether a view or handler has a batch to run: if it has none, it counts as running."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock import App, Context, Event, State
from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from penstock.runtime.engine import has_nothing_to_run
from tests.memory_log import MemoryLog

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Meal(Event):
    dish: str


class Count(State):
    meals: int = 0


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    for name in ("lunches", "dinners"):
        log.declare(StreamSpec.of(name, event_spec(Meal), 1))
        log.insert(name, 0, to_batch(Meal, [Meal(dish="soup")], ids=["1"], keys=["soup"], now=NOON))
    return log


def test_a_handler_of_two_streams_has_no_batch_while_one_of_them_is_silent(log: MemoryLog) -> None:
    """It would otherwise be `starting` after a restart until an event comes to the silent stream: the gateway appends
    ticks only for handlers that run."""
    app = App("kitchen")
    for name in ("lunches", "dinners"):
        app.stream(name, Meal, key="dish")

    @app.handler("eaten", reads=["lunches", "dinners"], key="dish", state=Count)
    def eaten(count: Count, meal: Meal, ctx: Context) -> None:
        count.meals += 1

    view = app.sql("dishes", "SELECT dish, count(*) AS n FROM lunches GROUP BY dish", key="dish")
    streams, read = ["lunches", "dinners"], {"lunches": {0: 1}, "dinners": {0: 1}}
    assert has_nothing_to_run(log, eaten, streams, read)
    log.insert("lunches", 0, to_batch(Meal, [Meal(dish="rice")], ids=["2"], keys=["rice"], now=NOON))
    assert has_nothing_to_run(log, eaten, streams, read)
    assert not has_nothing_to_run(log, view, ["lunches"], read)
    log.insert("dinners", 0, tick_batch(event_spec(Meal).schema, NOON))
    assert not has_nothing_to_run(log, eaten, streams, read)
