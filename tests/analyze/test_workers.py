"""Neighbours of an app's file that are edited while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.analyze.workers import LoadedModules, digest_of
from tests.harness import ROOT

APP = """
import rates
import tolls
from penstock import App, Event, State
from pyspark.sql import functions as F
from pyspark.sql.types import LongType


class Order(Event):
    shop: str
    amount: int


class Spent(State):
    total: int = 0


app = App("shop")
orders = app.stream("orders", Order, key="shop")
taxed = F.udf(lambda amount: rates.of(amount), LongType(), useArrow=False)
tolled = F.udf(lambda amount: amount * tolls.TOLL, LongType(), useArrow=False)


@app.handler("spent", reads=orders, key="shop", state=Spent)
def spent(state, order, ctx):
    state.total += rates.of(order.amount)
"""
RUN = """
import sys
from pathlib import Path

from penstock.analyze.session import carry, start_session
from penstock.runtime.handlers import HandlerLoader
from penstock.runtime.loading import absolute, code_of, load
from penstock.settings import Settings

folder = Path(sys.argv[1])
target = str(folder / "app.py")
loaded = load(target)
carry(loaded.module, loaded.file)
spark = start_session("test", Settings(), logs=folder / "log", warehouse=folder / "warehouse")
(folder / "rates.py").write_text("def of(amount): return 100 * amount")
orders = spark.createDataFrame([(10,)], "amount long")
loader = HandlerLoader(absolute(target), "spent", code_of(target))
tried = {
    "view": lambda: orders.select(loaded.module.taxed("amount")).collect(),
    "handler": lambda: spark.sparkContext.parallelize([0], 1).map(lambda _: loader()[0].name).collect(),
    "other": lambda: orders.select(loaded.module.tolled("amount")).collect()[0][0],
}
for name, run in tried.items():
    try:
        print(name, "gave", run())
    except Exception as error:
        print(name, "failed", "rates.py was changed while the app runs: restart the app" in str(error))
spark.stop()
"""


@pytest.mark.spark
def test_a_neighbour_that_was_edited_since_the_app_was_loaded_is_run_by_no_worker(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "rates.py").write_text("def of(amount): return amount")
    (tmp_path / "tolls.py").write_text("TOLL = 3")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["view failed True", "handler failed True", "other gave 30"], done.stderr


def test_a_module_is_found_unless_its_file_is_not_as_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "rates.py"
    file.write_text("VAT = 1")
    found = LoadedModules({str(file.resolve()): str(digest_of(str(file)))})
    assert found.find_spec("rates") is not None
    assert found.find_spec("nowhere_to_be_found") is None
    file.write_text("VAT = 2")
    with pytest.raises(ImportError, match=r"rates.py was changed while the app runs: restart the app"):
        found.find_spec("rates")
