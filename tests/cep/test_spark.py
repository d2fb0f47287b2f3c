"""A pattern on Spark: the same matches and the same state as in plain Python, bit for bit, also after a restart."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.app.loading import load
from penstock.handlers.samples import BEGIN
from penstock.testing import run, tick
from tests.handlers.pipe import HandlerPipe, later

TARGET = Path(__file__).parents[2] / "docs/examples/cards.py"


def items(app: Any, seed: int, count: int) -> list[Any]:
    """Return payments of some cards, slightly out of order, with time-outs among them."""
    random, [stream] = Random(seed), app.streams
    events: list[Any] = []
    for number in range(count):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=20 * number - random.randrange(60))
        amount = random.choice((0.5, 0.5, 20.0, 900.0))
        country, card = random.choice(("DE", "FR")), f"card-{random.randrange(5)}"
        events.append(stream.event(payment_id=str(number), at=at, card=card, amount=amount, country=country))
    return [*events, tick(timedelta(hours=1)), tick(timedelta(seconds=1))]


@pytest.mark.spark
def test_a_pattern_on_spark_comes_to_the_same_as_in_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    app = load(str(TARGET)).app
    [matcher] = app.handlers
    given = items(app, seed=5, count=200)
    expected = run(app, {"payments": given})
    pipe = HandlerPipe(spark, tmp_path / "data", app, TARGET, handler_events_max=40)
    pipe.append("payments", given[:100])
    pipe.run(matcher)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", app, TARGET, handler_events_max=40)
    moved.append("payments", given[100:], first=BEGIN + later(given[:100]))
    assert moved.run(matcher).digest == expected.digest(matcher)
    for stream in ("card-testing", "card-testing.timeout"):
        assert len(moved.events(stream)) == len(expected.emitted(stream)) > 0
    assert expected.failed(matcher) == []
    assert moved.events("card-testing.failed") == []
    moved.close()
