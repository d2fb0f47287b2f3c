"""A pattern in SQL on Spark: the same matches and the same state as in plain Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.app.loading import load
from penstock.testing import run, tick
from tests.handlers.pipe import HandlerPipe

TARGET = Path(__file__).parents[2] / "docs/examples/falls.py"


def ticks(app: Any, count: int) -> list[Any]:
    random, [stream] = Random(3), app.streams
    events = []
    for number in range(count):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=5 * number - random.randrange(10))
        events.append(stream.event(at=at, symbol=random.choice("AB"), price=float(random.randrange(20))))
    return [*events, tick(timedelta(hours=1)), tick(timedelta(seconds=1))]


@pytest.mark.spark
def test_a_text_on_spark_comes_to_the_same_as_in_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    app = load(str(TARGET)).app
    [falls] = app.handlers
    given = ticks(app, 150)
    expected = run(app, {"ticks": given})
    pipe = HandlerPipe(spark, tmp_path / "data", app, TARGET, handler_events_max=60)
    pipe.append("ticks", given)
    assert pipe.run(falls).digest == expected.digest(falls)
    assert len(pipe.events("falls")) == len(expected.emitted("falls")) > 0
    assert pipe.events("falls.failed") == []
    pipe.close()
