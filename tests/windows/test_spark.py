"""Windows on Spark: the same state and rows as in plain Python, also after a restart."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock.declared import Keeper
from penstock.runtime.handlers import open_kept
from penstock.runtime.loading import load
from penstock.testing import BEGIN, run
from tests.handlers.pipe import HandlerPipe, later
from tests.windows.test_files import TARGET, items


def watts(pipe: HandlerPipe, keeper: Keeper) -> list[float]:
    """What the rows of the view tell, by key."""
    table = open_kept(keeper, pipe.directory, pipe.settings, pipe.log, read=False).table
    found = [msgspec.json.decode(data) for (data,) in table._connection.execute("SELECT data FROM rows ORDER BY key")]
    table.close()
    return [each["watts"] for each in found]


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
