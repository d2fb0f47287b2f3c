"""`penstock purge`: undeclared data is deleted completely, whatever happens meanwhile; nothing else is."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.failpoints import VARIABLE
from penstock.runtime.embedded.directory import DataDirectory, held, take
from penstock.runtime.embedded.prints import read_prints
from penstock.runtime.embedded.stored import stored_files
from penstock.runtime.leftovers import size_text
from tests.fingerprints.shelf import compare, stock, write

VIEWS = (
    'app.sql("best", "SELECT shop, max(amount) AS best FROM orders GROUP BY shop", key="shop")\n'
    'app.sql("rich", "SELECT shop, best FROM best WHERE best > 10", key="shop")\n'
)
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """Give all of the shop data; then its views are no longer declared."""
    directory = stock(write(tmp_path), tmp_path / "data")
    for name in ("orders.rejected", "best.late", "best.changes"):
        (directory.streams / f"{name}.db").write_bytes(b"x")
    write(tmp_path, (VIEWS, ""))
    return directory


def penstock(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environ
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def names(data: DataDirectory) -> set[str]:
    return set(stored_files(data))


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
    assert "this permanently deletes the data of best from data; pass --yes" in asked.stderr
    assert names(data) == {"orders", "best", "rich", "count"}
    done = penstock(tmp_path, "purge", "shop.py", "--data", "data", "best", "rich", "--yes")
    assert done.returncode == 0, done.stderr
    assert names(data) == {"orders", "count"}
    assert (data.streams / "orders.rejected.db").exists()
    prints = read_prints(data.declarations)
    assert prints is not None
    assert (set(prints.streams), set(prints.views), set(prints.handlers)) == ({"orders"}, set(), {"count"})
    nothing = penstock(tmp_path, "purge", "shop.py", "--data", "data")
    assert "nothing to delete: shop.py declares everything in data" in nothing.stdout


def test_purge_refuses_what_is_declared_and_what_is_not_there(tmp_path: Path, data: DataDirectory) -> None:
    done = penstock(tmp_path, "purge", "shop.py", "orders", "--data", "data", "--yes")
    assert done.returncode == 1
    assert "'orders' is declared in shop.py, and its data is in use; remove the declaration first" in done.stderr
    done = penstock(tmp_path, "purge", "shop.py", "bets", "--data", "data", "--yes")
    assert "data has no data for 'bets'; it has data for best, rich" in done.stderr
    done = penstock(tmp_path, "purge", "shop.py", "best", "--data", "none", "--yes")
    assert (done.returncode, "there is no data in none: pass the app's data directory" in done.stderr) == (1, True)
    assert names(data) == {"orders", "best", "rich", "count"}


def test_purge_refuses_while_an_app_runs_on_the_directory(tmp_path: Path, data: DataDirectory) -> None:
    with held(data):
        done = penstock(tmp_path, "purge", "shop.py", "best", "--data", "data", "--yes")
    assert done.returncode == 1
    assert "data is in use by" in done.stderr
    assert names(data) == {"orders", "best", "rich", "count"}


@pytest.mark.parametrize("command", ["plan", "purge", "run"])
def test_the_data_of_another_app_is_neither_compared_nor_deleted(
    tmp_path: Path, data: DataDirectory, command: str
) -> None:
    """Its declarations would all be listed as removed, each with the command that deletes its data."""
    os.close(*take(data, "bank").inherit)
    before = names(data)
    arguments = ["orders", "best", "--yes"] if command == "purge" else []
    refused = penstock(tmp_path, command, "shop.py", *arguments, "--data", "data")
    assert refused.returncode == 1
    assert "data belongs to the app 'bank', not 'shop'; use a different --data" in refused.stderr
    assert "purge" not in refused.stdout + refused.stderr
    assert names(data) == before


def test_a_plan_says_if_there_is_no_data(tmp_path: Path) -> None:
    write(tmp_path)
    planned = penstock(tmp_path, "plan", "shop.py", "--data", "datum")
    assert planned.returncode == 0
    assert planned.stdout.endswith("penstock: datum has no data yet: 4 new; `penstock run` would start\n")
    assert not (tmp_path / "datum").exists()


def test_a_stream_whose_key_changed_can_begin_anew_with_all_who_read_it(tmp_path: Path, data: DataDirectory) -> None:
    write(tmp_path, ('Order, key="shop"', 'Order, key="oid"'))
    done = penstock(tmp_path, "purge", "shop.py", "orders", "--data", "data", "--yes")
    assert done.returncode == 1
    assert "count, best, rich used the data of orders: add them to the command, because their data" in done.stderr
    done = penstock(tmp_path, "purge", "shop.py", "orders", "count", "best", "rich", "--data", "data", "--yes")
    assert done.returncode == 0, done.stderr
    assert names(data) == set()
    assert {verdict.kind for verdict in compare(tmp_path / "shop.py", data).verdicts()} == {"new"}


def test_the_purge_that_a_plan_names_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my shop"
    folder.mkdir()
    data = stock(write(folder), folder / "the data")
    write(folder, ('app.sql("rich"', '# app.sql("rich"'))
    plan = penstock(tmp_path, "plan", "my shop/shop.py", "--data", "my shop/the data", "--json")
    (removed,) = [
        declaration for declaration in json.loads(plan.stdout)["declarations"] if declaration["verdict"] == "removed"
    ]
    program, *arguments = shlex.split(removed["command"])
    assert program == "penstock"
    done = penstock(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert names(data) == {"orders", "best", "count"}


POINTS = ["purge.intended", *(f"purge.removing@{number}" for number in range(1, 7)), "purge.forgotten"]
"""Every point at which the purge of two views can end: before, between and after their files."""
QUICK = {"purge.intended", "purge.removing@4", "purge.forgotten"}


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in QUICK else pytest.mark.soak) for point in POINTS]
)
def test_a_purge_that_is_killed_is_completed_by_the_next_one(tmp_path: Path, data: DataDirectory, point: str) -> None:
    arguments = ("purge", "shop.py", "best", "rich", "--data", "data", "--yes")
    killed = penstock(tmp_path, *arguments, **{VARIABLE: f"{point}=kill"})
    assert killed.returncode == -signal.SIGKILL
    write(tmp_path)  # the views are declared again, and must not use half of their old files
    refused = penstock(tmp_path, "plan", "shop.py", "--data", "data")
    assert refused.returncode == 1
    assert (
        "the purge of best, rich from data was interrupted; complete it with penstock purge shop.py" in refused.stderr
    )
    done = penstock(tmp_path, "purge", "shop.py", "--data", "data", "--yes")
    assert done.returncode == 0, done.stderr
    assert names(data) == {"orders", "count"}
    assert {verdict.name for verdict in compare(tmp_path / "shop.py", data).verdicts() if verdict.kind == "new"} == {
        "best",
        "rich",
    }


def test_sizes_are_told_in_units() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 5 * 1024**3)] == ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 GiB"]
