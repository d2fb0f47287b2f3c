"""Modules beside an app's file that are edited while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.analyze.workers import LoadedModules, digest_of
from penstock.app.loading import load
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
from penstock.app.fingerprints.declared import handler_functions
from penstock.runtime.handlers import HandlerLoader
from penstock.app.loading import absolute, code_of, load
from penstock.core.settings import Settings

folder = Path(sys.argv[1])
target = str(folder / "app.py")
loaded = load(target)
carry(loaded.module, loaded.file)
spark = start_session("test", Settings(), logs=folder / "log", warehouse=folder / "warehouse")
(folder / "rates.py").write_text("def of(amount): return 100 * amount")
orders = spark.createDataFrame([(10,)], "amount long")
functions = handler_functions(loaded.app.handlers[0]).code
loader = HandlerLoader(absolute(target), "spent", code_of(target), functions)
tried = {
    "view": lambda: orders.select(loaded.module.taxed("amount")).collect(),
    "handler": lambda: spark.sparkContext.parallelize([0], 1).map(lambda _: loader()[0].name).collect(),
    "other": lambda: orders.select(loaded.module.tolled("amount")).collect()[0][0],
}
for name, run in tried.items():
    try:
        print(name, "gave", run())
    except Exception as error:
        print(name, "failed", "rates.py was changed while the app was running: restart the app" in str(error))
spark.stop()
"""


@pytest.mark.spark
def test_workers_import_neighbours_from_the_folder_of_the_app_and_none_that_was_edited(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "rates.py").write_text("def of(amount): return amount")
    (tmp_path / "tolls.py").write_text("TOLL = 3")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tolls.py").write_text("TOLL = 100  # of other code, in the folder where the command is run")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(command, env=environ, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["view failed True", "handler failed True", "other gave 30"], done.stderr


def test_a_module_is_found_unless_its_file_is_not_as_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "rates.py"
    file.write_text("VAT = 1")
    modules = LoadedModules({"rates": str(file.resolve())}, {str(file.resolve()): str(digest_of(str(file)))})
    assert modules.find_spec("rates") is not None
    assert modules.find_spec("nowhere_to_be_found") is None
    file.write_text("VAT = 2")
    with pytest.raises(ImportError, match=r"rates.py was changed while the app was running: restart the app"):
        modules.find_spec("rates")


def test_a_module_that_is_found_in_another_file_than_the_app_has_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rates.py").write_text("VAT = 1")
    loaded = str(tmp_path / "app" / "rates.py")
    with pytest.raises(ImportError, match=f"the app has loaded rates from {loaded}, but a worker would load it from "):
        LoadedModules({"rates": loaded}, {}).find_spec("rates")


def test_an_app_imports_the_file_beside_it_before_others_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the folder of the app is on the path already, after the working directory."""
    for folder, rate in (("old", 1), ("new", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour_rates.py").write_text(f"VAT = {rate}")
        (tmp_path / folder / "priced.py").write_text(
            "import neighbour_rates\nfrom penstock import App\nVAT = neighbour_rates.VAT\napp = App('priced')\n"
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "old"), str(tmp_path / "new"), *sys.path])
    monkeypatch.delitem(sys.modules, "neighbour_rates", raising=False)
    assert load(str(tmp_path / "new" / "priced.py")).module.VAT == 2
    monkeypatch.delitem(sys.modules, "neighbour_rates")
