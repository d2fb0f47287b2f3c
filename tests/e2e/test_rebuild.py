"""A view rebuilt while its app runs, under load, as clients see it; and kill -9 at every point of the rebuild."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.beside import Beside
from tests.e2e.load import Producer, Reader
from tests.harness import RunningApp, running, wait_for

FIRST = Path(__file__).parent / "counting.py"
SETTLE_S = 120.0
POINTS = [
    "swap.before_adoption",
    "adoption.before_commit",
    "adoption.after_commit",
    "swap.after_late",
    "checkpoint.before_move",
    "checkpoint.after_move",
]

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def edited(folder: Path) -> Path:
    """Return the app with the smallest number of each page in place of the sum."""
    text, old = FIRST.read_text(), 'F.sum("number")'
    assert old in text
    path = folder / "second.py"
    path.write_text(text.replace(old, 'F.min("number")'))
    return path


def rebuild(target: Path, data: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", "rebuild", str(target), "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, check=False)


class Load(Producer):
    """Remembers the smallest number of each page."""

    def _event(self, number: int) -> dict[str, Any]:
        event = super()._event(number)
        self.__dict__.setdefault("least", {}).setdefault(event["page"], number)
        return event

    def rows(self) -> dict[str, tuple[int, int]]:
        return {page: (count, self.__dict__["least"][page]) for page, count in self.expected.items()}


class Watcher(Beside):
    """Queries the view all the time; every answer must have rows, and as many hits as any before it."""

    def __init__(self, app: RunningApp) -> None:
        super().__init__("watcher")
        self.app, self.answers, self.most = app, 0, 0
        self.faults: list[str] = []

    def run(self) -> None:
        while not self.finish.wait(0.05):
            try:
                rows = self.app.view("pages")
            except httpx.HTTPError as error:
                self.faults.append(repr(error))
                continue
            hits = sum(row["hits"] for row in rows)
            if hits < self.most:
                self.faults.append(f"{hits} hits after {self.most}")
            self.answers, self.most = self.answers + 1, max(hits, self.most)


def served(app: RunningApp) -> dict[str, tuple[int, int]]:
    return {row["page"]: (row["hits"], row["total"]) for row in app.view("pages")}


def folded(reader: Reader) -> dict[str, tuple[int, int]]:
    return {page: (row["hits"], row["total"]) for page, row in reader.rows.items()}


def test_a_view_is_rebuilt_under_load_and_clients_start_over_without_a_gap(tmp_path: Path) -> None:
    second = edited(tmp_path)
    with running(FIRST, tmp_path / "data") as app:
        app.ready()
        with (
            Reader(lambda: app.url, "pages") as reader,
            Load(lambda: app.url, 1) as load,
            Watcher(app) as watcher,
        ):
            wait_for(lambda: sum(load.expected.values()) > 2_000 and reader.versions, 60, "the old code to be at work")
            assert watcher.most > 0
            rebuilt = rebuild(second, tmp_path / "data", "--view", "pages")
            assert rebuilt.returncode == 0, rebuilt.stderr
            assert "the app has switched to the rebuild" in rebuilt.stdout
            wait_for(lambda: reader.events["reset"], 60, "the reader to be told to start over")
            load.finish.set()
            load.join(60)
            wait_for(lambda: served(app) == load.rows(), SETTLE_S, "the view to have each event once")
            wait_for(lambda: folded(reader) == load.rows(), 30, "the reader to have caught up")
            watcher.finish.set()
        assert reader.events["reset"] == 1
        assert reader.events["snapshot"] == 2
        assert reader.versions == sorted(reader.versions)
        assert watcher.faults == []
        assert watcher.answers > 100
        print(f"{load.acknowledged} events, {watcher.answers} answers")
        assert app.stop() == 0


def test_kill_9_at_every_point_of_a_rebuild_is_made_up_for(tmp_path: Path) -> None:
    second, data = edited(tmp_path), tmp_path / "data"
    with running(FIRST, data) as app:
        app.ready()
        with Load(lambda: app.url, 2) as load:
            wait_for(lambda: sum(load.expected.values()) > 500, 60, "some events")
        load.join(60)
        wait_for(lambda: sum(row["hits"] for row in app.view("pages")) == load.acknowledged, SETTLE_S, "all hits")
        assert app.stop() == 0
    killed = rebuild(second, data, "--view", "pages", PENSTOCK_FAILPOINTS="rebuild.before_mark=kill")
    assert killed.returncode == -signal.SIGKILL
    rebuilt = rebuild(second, data, "--view", "pages")
    assert f"the next `penstock run {second} --data {data}` switches to it" in rebuilt.stdout, rebuilt.stderr
    marks = {name: tmp_path / f"{name}.reached" for name in POINTS}
    setting = ";".join(f"{name}=kill:{mark}" for name, mark in marks.items())
    with running(second, data, PENSTOCK_FAILPOINTS=setting) as app:
        wait_for(lambda: all(mark.exists() for mark in marks.values()), 400, "every point to be reached")
        app.ready()
        assert served(app) == load.rows()
        app.post("hits", [{"hit": "last", "page": "page-1", "number": -1}])
        wait_for(lambda: served(app)["page-1"][1] == -1, SETTLE_S, "the view to go on")
        assert app.stop() == 0
