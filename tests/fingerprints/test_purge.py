"""`penstock purge`: what is no longer declared goes, whole, whatever happens meanwhile; nothing else does."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.failpoints import VARIABLE
from penstock.fingerprints.stored import read_prints
from penstock.runtime.directory import DataDirectory, held
from penstock.runtime.leftovers import size_text, stored
from tests.fingerprints.shelf import compare, stock, write

VIEWS = (
    'app.sql("best", "SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")\n'
    'app.sql("rich", "SELECT shop, best FROM best WHERE best > 10", key="shop")\n'
)
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """All of the shop has data; then its views are no longer declared."""
    made = stock(write(tmp_path), tmp_path / "data")
    for name in ("orders.rejected", "best.late", "best.changes"):
        (made.streams / f"{name}.db").write_bytes(b"x")
    write(tmp_path, (VIEWS, ""))
    return made


def penstock(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environ
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def names(data: DataDirectory) -> set[str]:
    return set(stored(data))


def test_purge_lists_what_could_go_and_asks_before_it_does(tmp_path: Path, data: DataDirectory) -> None:
    listed = penstock(tmp_path, "purge", "shop.py", "--data", "data")
    assert listed.returncode == 0
    assert [line.rpartition(":")[0] for line in listed.stdout.splitlines()] == [
        "penstock: view best",
        "penstock: view rich",
    ]
    assert "KiB" in listed.stdout
    asked = penstock(tmp_path, "purge", "shop.py", "--data", "data", "best")
    assert asked.returncode == 1
    assert "this removes the data of best from data, for good; give --yes" in asked.stderr
    assert names(data) == {"orders", "best", "rich", "count"}
    done = penstock(tmp_path, "purge", "shop.py", "--data", "data", "best", "rich", "--yes")
    assert done.returncode == 0, done.stderr
    assert names(data) == {"orders", "count"}
    assert (data.streams / "orders.rejected.db").exists()
    prints = read_prints(data.declarations)
    assert prints is not None
    assert (set(prints.streams), set(prints.views), set(prints.handlers)) == ({"orders"}, set(), {"count"})
    nothing = penstock(tmp_path, "purge", "shop.py", "--data", "data")
    assert "data has nothing that shop.py does not declare" in nothing.stdout


def test_purge_refuses_what_is_declared_and_what_is_not_there(tmp_path: Path, data: DataDirectory) -> None:
    done = penstock(tmp_path, "purge", "shop.py", "orders", "--data", "data", "--yes")
    assert done.returncode == 1
    assert "'orders' is declared in shop.py, and its data is in use; remove the declaration first" in done.stderr
    done = penstock(tmp_path, "purge", "shop.py", "bets", "--data", "data", "--yes")
    assert "data has no data of 'bets' to remove; there is best, rich" in done.stderr
    assert names(data) == {"orders", "best", "rich", "count"}


def test_purge_refuses_while_an_app_runs_on_the_directory(tmp_path: Path, data: DataDirectory) -> None:
    with held(data):
        done = penstock(tmp_path, "purge", "shop.py", "best", "--data", "data", "--yes")
    assert done.returncode == 1
    assert "data is in use by" in done.stderr
    assert names(data) == {"orders", "best", "rich", "count"}


def test_a_stream_whose_key_changed_can_begin_anew_with_all_who_read_it(tmp_path: Path, data: DataDirectory) -> None:
    write(tmp_path, ('Order, key="shop"', 'Order, key="oid"'))
    done = penstock(tmp_path, "purge", "shop.py", "orders", "--data", "data", "--yes")
    assert done.returncode == 1
    assert "count, best, rich went by the data of orders, and must begin anew with it: name them too" in done.stderr
    done = penstock(tmp_path, "purge", "shop.py", "orders", "count", "best", "rich", "--data", "data", "--yes")
    assert done.returncode == 0, done.stderr
    assert names(data) == set()
    assert {each.kind for each in compare(tmp_path / "shop.py", data).verdicts()} == {"new"}


def test_the_purge_that_a_plan_names_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my shop"
    folder.mkdir()
    data = stock(write(folder), folder / "the data")
    write(folder, ('app.sql("rich"', '# app.sql("rich"'))
    plan = penstock(tmp_path, "plan", "my shop/shop.py", "--data", "my shop/the data", "--json")
    (removed,) = [each for each in json.loads(plan.stdout)["declarations"] if each["verdict"] == "removed"]
    program, *arguments = shlex.split(removed["command"])
    assert program == "penstock"
    done = penstock(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert names(data) == {"orders", "best", "count"}


POINTS = ["purge.intended", *(f"purge.removing@{number}" for number in range(1, 7)), "purge.forgotten"]
"""Every point at which the purge of two views can end: before, between and after their files."""
QUICK = {"purge.intended", "purge.removing@4", "purge.forgotten"}


@pytest.mark.parametrize(
    "point", [pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in POINTS]
)
def test_a_purge_that_is_killed_is_completed_by_the_next_one(tmp_path: Path, data: DataDirectory, point: str) -> None:
    arguments = ("purge", "shop.py", "best", "rich", "--data", "data", "--yes")
    killed = penstock(tmp_path, *arguments, **{VARIABLE: f"{point}=kill"})
    assert killed.returncode == -signal.SIGKILL
    write(tmp_path)  # the views are declared again, and must not take up half of what they had
    refused = penstock(tmp_path, "plan", "shop.py", "--data", "data")
    assert refused.returncode == 1
    assert (
        "the removal of best, rich from data was cut short; complete it with penstock purge shop.py" in refused.stderr
    )
    done = penstock(tmp_path, "purge", "shop.py", "--data", "data", "--yes")
    assert done.returncode == 0, done.stderr
    assert names(data) == {"orders", "count"}
    assert {each.name for each in compare(tmp_path / "shop.py", data).verdicts() if each.kind == "new"} == {
        "best",
        "rich",
    }


def test_sizes_are_told_in_units() -> None:
    assert [size_text(each) for each in (0, 1023, 1536, 5 * 1024**3)] == ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 GiB"]
