"""Windows on Spark: the same state and rows as in plain Python, also after a restart."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import windows
from penstock.app.declared import ViewHandler
from penstock.app.loading import load
from penstock.handlers.samples import BEGIN
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_reader
from penstock.testing import run
from tests.handlers.pipe import HandlerPipe, later
from tests.windows import sites
from tests.windows.meters import END, reading, rows_of, seconds
from tests.windows.test_files import TARGET, items


def watts(pipe: HandlerPipe, view_handler: ViewHandler) -> list[float]:
    """Return the watts in the rows of the view, by key."""
    return [row["watts"] for row in stored_rows(pipe, view_handler)]


def stored_rows(pipe: HandlerPipe, view_handler: ViewHandler) -> list[dict[str, Any]]:
    """The rows of the view, in the order of their keys."""
    reader = open_reader(view_handler.view, EmbeddedStorage(pipe.directory), pipe.settings)
    assert reader is not None
    served = reader.table()
    reader.close()
    assert served is not None
    rows: list[dict[str, Any]] = served.table.to_pylist()
    return rows


@pytest.mark.spark
def test_windows_are_cut_as_spark_cuts_them(spark: SparkSession) -> None:
    """Windows by time and sessions are compared, which Spark has too. Readings are of whole seconds: many are on an
    edge."""
    random = Random(5)
    events = [reading(random.randrange(300), random.randrange(9), random.choice("abc")) for _ in range(90)]
    rows = [(event.at, event.meter, event.watts) for event in events]
    frame = spark.createDataFrame(rows, "at timestamp, meter string, watts int")
    pairs = [
        (windows.tumbling(seconds(10)), F.window("at", "10 seconds")),
        (windows.sliding(seconds(30), every=seconds(10)), F.window("at", "30 seconds", "10 seconds")),
        (windows.session(seconds(7)), F.session_window("at", "7 seconds")),
    ]
    begin = int(reading(0).at.timestamp())
    for ours, theirs in pairs:
        counted = frame.groupBy("meter", theirs.alias("cut")).agg(F.count("*"), F.sum("watts"))
        cut_rows = counted.selectExpr("meter", "unix_seconds(cut.start)", "unix_seconds(cut.end)", "*").collect()
        expected = [(row[0], (row[1] - begin, row[2] - begin), True, row[5], row[6]) for row in cut_rows]
        own_rows = rows_of(ours, [*events, *END], seconds(300), trigger=windows.on_close)
        assert sorted(own_rows) == sorted(expected), ours


@pytest.mark.spark
def test_windows_on_spark_come_to_the_same_as_in_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    app = load(str(TARGET)).app
    (view_handler,) = [handler for handler in app.view_handlers if handler.name == "load"]
    given = items(app.streams[0].event, seed=11)
    expected = run(app, {"readings": given}, shards=2)
    pipe = HandlerPipe(spark, tmp_path / "data", app, TARGET, handler_events_max=100)
    pipe.append("readings", given[:150])
    pipe.run(view_handler)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", app, TARGET, handler_events_max=100)
    moved.append("readings", given[150:], first=BEGIN + later(given[:150]))
    assert moved.run(view_handler).digest == expected.digest("load")
    assert watts(moved, view_handler) == [row.watts for row in expected.rows("load")]
    assert len(moved.events("load.late")) == len(expected.emitted("load.late"))
    assert moved.events("load.failed") == []
    moved.close()


@pytest.mark.spark
@pytest.mark.parametrize("name", ["load", "energy"])
def test_keys_of_two_fields_and_a_condition_on_spark_come_to_the_same_as_in_plain_python(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Windows and a rollup are compared. The stream is partitioned by one of the two fields."""
    app = load(str(sites.TARGET)).app
    (view_handler,) = [handler for handler in app.view_handlers if handler.name == name]
    given = sites.items(app, seed=5)["readings"]
    expected = run(app, {"readings": given}, shards=2)
    pipe = HandlerPipe(spark, tmp_path / "data", app, sites.TARGET, handler_events_max=60)
    pipe.append("readings", given[:100])
    pipe.run(view_handler)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", app, sites.TARGET, handler_events_max=60)
    moved.append("readings", given[100:], first=BEGIN + later(given[:100]))
    assert moved.run(view_handler).digest == expected.digest(name)
    stored = stored_rows(moved, view_handler)
    rows = [(row.site, row.meter, row.readings, row.watts) for row in expected.rows(name)]
    assert sorted((row["site"], row["meter"], row["readings"], row["watts"]) for row in stored) == sorted(rows)
    assert len({row[:2] for row in rows}) == 9
    beside = f"{name}.{view_handler.beside[0]}"
    assert len(moved.events(beside)) == len(expected.emitted(beside))
    assert bool(expected.emitted("load.late"))
    assert moved.events(f"{name}.failed") == []
    moved.close()
