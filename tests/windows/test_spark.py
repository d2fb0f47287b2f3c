"""Windows on Spark: the same state and rows as in plain Python, also after a restart."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import windows
from penstock.declared import Keeper
from penstock.runtime.loading import load
from penstock.runtime.views import open_kept
from penstock.testing import BEGIN, run
from tests.handlers.pipe import HandlerPipe, later
from tests.windows import sites
from tests.windows.meters import END, reading, rows_of, seconds
from tests.windows.test_files import TARGET, items


def watts(pipe: HandlerPipe, keeper: Keeper) -> list[float]:
    """What the rows of the view tell, by key."""
    table = open_kept(keeper, pipe.directory, pipe.settings)
    found = [msgspec.json.decode(data) for (data,) in table._connection.execute("SELECT data FROM rows ORDER BY key")]
    table.close()
    return [each["watts"] for each in found]


@pytest.mark.spark
def test_windows_are_cut_as_spark_cuts_them(spark: SparkSession) -> None:
    """By time and sessions, which it has too. Readings are of whole seconds: many are just on an edge."""
    random = Random(5)
    events = [reading(random.randrange(300), random.randrange(9), random.choice("abc")) for _ in range(90)]
    rows = [(each.at, each.meter, each.watts) for each in events]
    frame = spark.createDataFrame(rows, "at timestamp, meter string, watts int")
    pairs = [
        (windows.tumbling(seconds(10)), F.window("at", "10 seconds")),
        (windows.sliding(seconds(30), every=seconds(10)), F.window("at", "30 seconds", "10 seconds")),
        (windows.session(seconds(7)), F.session_window("at", "7 seconds")),
    ]
    begin = int(reading(0).at.timestamp())
    for ours, theirs in pairs:
        counted = frame.groupBy("meter", theirs.alias("cut")).agg(F.count("*"), F.sum("watts"))
        found = counted.selectExpr("meter", "unix_seconds(cut.start)", "unix_seconds(cut.end)", "*").collect()
        expected = [(row[0], (row[1] - begin, row[2] - begin), True, row[5], row[6]) for row in found]
        told = rows_of(ours, [*events, *END], seconds(300), trigger=windows.on_close)
        assert sorted(told) == sorted(expected), ours


@pytest.mark.spark
def test_windows_on_spark_come_to_the_same_as_in_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    app = load(str(TARGET)).app
    (keeper,) = [each for each in app.keepers if each.name == "load"]
    given = items(app.streams[0].event, seed=11)
    expected = run(app, {"readings": given}, shards=2)
    pipe = HandlerPipe(spark, tmp_path / "data", app, TARGET, handler_events_max=100)
    pipe.append("readings", given[:150])
    pipe.run(keeper)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", app, TARGET, handler_events_max=100)
    moved.append("readings", given[150:], first=BEGIN + later(given[:150]))
    assert moved.run(keeper)["digest"] == expected.digest("load")
    assert watts(moved, keeper) == [each.watts for each in expected.rows("load")]
    assert len(moved.events("load.late")) == len(expected.emitted("load.late"))
    assert moved.events("load.failed") == []
    moved.close()


@pytest.mark.spark
@pytest.mark.parametrize("name", ["load", "energy"])
def test_keys_of_two_fields_and_a_condition_on_spark_come_to_the_same_as_in_plain_python(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Windows, and a rollup. The stream is partitioned by one of the two fields."""
    app = load(str(sites.TARGET)).app
    (keeper,) = [each for each in app.keepers if each.name == name]
    given = sites.items(app, seed=5)["readings"]
    expected = run(app, {"readings": given}, shards=2)
    pipe = HandlerPipe(spark, tmp_path / "data", app, sites.TARGET, handler_events_max=60)
    pipe.append("readings", given[:100])
    pipe.run(keeper)
    pipe.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")  # where no worker has anything in memory
    moved = HandlerPipe(spark, tmp_path / "moved", app, sites.TARGET, handler_events_max=60)
    moved.append("readings", given[100:], first=BEGIN + later(given[:100]))
    assert moved.run(keeper)["digest"] == expected.digest(name)
    table = open_kept(keeper, moved.directory, moved.settings)
    stored = [msgspec.json.decode(data) for (data,) in table._connection.execute("SELECT data FROM rows")]
    table.close()
    told = [(each.site, each.meter, each.readings, each.watts) for each in expected.rows(name)]
    assert sorted((each["site"], each["meter"], each["readings"], each["watts"]) for each in stored) == sorted(told)
    assert len({each[:2] for each in told}) == 9
    beside = f"{name}.{keeper.beside[0]}"
    assert len(moved.events(beside)) == len(expected.emitted(beside))
    assert bool(expected.emitted("load.late"))
    assert moved.events(f"{name}.failed") == []
    moved.close()
