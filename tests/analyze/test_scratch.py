"""Spark's working files are readable by their owner only, and are deleted with the process, killed or not."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.analyze.scratch import PREFIX, remove_orphans
from tests.harness import ROOT

HOLDS = """
import sys
from penstock.analyze.scratch import scratch_folder
folder = scratch_folder()
assert folder == scratch_folder()
(folder / "rows").write_text("rows")
print(folder, flush=True)
sys.stdin.read()
"""
WORKS = """
import os, sys
from pathlib import Path
from penstock import App, Event

class Sale(Event):
    shop: str
    cents: int

app = App("shops")
sales = app.stream("sales", Sale, key="shop")
app.sql("totals", "SELECT shop, sum(cents) AS cents FROM sales GROUP BY shop", key="shop")
frame = app.preview("totals", [{"shop": str(number % 7), "cents": number} for number in range(100)])
assert len(frame.cache().collect()) == 7
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the temporary folder, also for child processes. Short, because the path of a socket must be."""
    with tempfile.TemporaryDirectory() as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        monkeypatch.setenv("TMPDIR", path)
        yield Path(path)


@contextmanager
def started(script: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process and wait for its first line. It runs until its input ends, or it is killed."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def scratch_in(folder: Path) -> list[Path]:
    return list(folder.glob(f"{PREFIX}*"))


def test_the_scratch_folder_is_its_owners_alone_and_ends_with_the_process(folder: Path) -> None:
    before = os.umask(0)
    try:
        with started(HOLDS) as process:
            [scratch] = scratch_in(folder)
            assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
            process.communicate("")
    finally:
        os.umask(before)
    assert scratch_in(folder) == []


def test_the_scratch_folder_of_a_process_that_was_killed_is_removed_by_the_next(folder: Path) -> None:
    with started(HOLDS) as killed:
        [left] = scratch_in(folder)
        killed.kill()
        killed.wait()
    assert (left / "rows").exists()
    with started(HOLDS):
        [scratch] = scratch_in(folder)
    assert scratch != left


def test_the_scratch_folder_of_a_process_at_work_stays(folder: Path) -> None:
    with started(HOLDS), started(HOLDS):
        remove_orphans()
        assert len([scratch for scratch in scratch_in(folder) if (scratch / "rows").exists()]) == 2


def test_what_is_behind_a_link_with_the_name_of_a_scratch_folder_stays(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "rows").write_text("rows")
    (folder / f"{PREFIX}link").symlink_to(folder / "mine")
    (folder / f"{PREFIX}file").write_text("a file")
    remove_orphans()
    assert (folder / "mine" / "rows").exists()
    assert (folder / f"{PREFIX}file").exists()


@pytest.mark.spark
def test_nothing_that_spark_writes_can_be_read_by_others(folder: Path) -> None:
    """Java's own statistics, one file for each process, are in a place that cannot be configured."""
    with started(WORKS):
        assert any(folder.rglob("blockmgr-*")), "where else does Spark work?"
        modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()}
        assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
