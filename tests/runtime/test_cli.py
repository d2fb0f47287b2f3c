"""The commands as a newcomer types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import main

BAD = """
from penstock import App, Event

class Order(Event):
    product: str

app = App("shop")
app.stream("orders", Order, key="produkt")
app.sql("sales", "SELECT product, count(*) AS n FROM orders GROUP BY product", key="product", top=3)
"""

WRONG_COLUMN = """
from penstock import App, Event

class Order(Event):
    product: str

app = App("shop")
orders = app.stream("orders", Order, key="product")

@app.view("sales", reads=orders, key="product")
def sales(orders):
    return orders.groupBy("product").agg({"prize": "sum"})
"""


def penstock(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_check_prints_every_problem_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BAD)
    done = penstock("check", "shop.py", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("shop.py:8: stream orders: the key 'produkt' is no field of Order")
    assert lines[1].startswith("shop.py:9: view sales: top and by go together")
    assert len(lines) == 2


@pytest.mark.spark
def test_check_finds_what_only_spark_can_find(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(WRONG_COLUMN)
    done = penstock("check", "shop.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "shop.py:12: view sales: [UNRESOLVED_COLUMN" in done.stderr
    assert "`prize`" in done.stderr
    assert "java" not in done.stderr.replace("jdk.incubator", "").lower()


@pytest.mark.spark
def test_a_new_app_is_sound_and_its_test_passes(tmp_path: Path) -> None:
    assert penstock("new", "corner-shop", cwd=tmp_path).returncode == 0
    checked = penstock("check", "corner-shop/app.py", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "corner-shop is sound: 1 stream, 1 view\n" in checked.stdout
    command = [sys.executable, "-m", "pytest", "-q", "corner-shop"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert tested.returncode == 0, tested.stdout


def test_new_refuses_a_folder_that_is_there_and_a_bad_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert "already" in penstock("new", "shop", cwd=tmp_path).stderr
    assert "malformed" in penstock("new", "../shop", cwd=tmp_path).stderr


def test_doctor_says_what_it_looked_at(tmp_path: Path) -> None:
    done = penstock("doctor", cwd=tmp_path)
    for word in ("Python", "PySpark", "Java", "memory", "disk", "port"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("missing.py", "there is no file 'missing.py'"),
        ("empty.py", "empty.py has no App"),
        ("broken.py", "broken.py:2: ZeroDivisionError"),
        ("syntax.py", "syntax.py:1: "),
        ("two.py", "two.py has 2 apps; give one as two.py:NAME"),
        ("two.py:c", "two.py has no app named 'c'; it has a, b"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    (tmp_path / "syntax.py").write_text("def (:\n")
    (tmp_path / "two.py").write_text("from penstock import App\na, b = App('a'), App('b')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", target]) == 1
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
