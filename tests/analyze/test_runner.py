"""The reports on a query that starts, runs, fails and is retried. Spark is simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock import App, Event
from penstock.analyze import runner as running
from penstock.analyze import streaming_query as querying
from penstock.analyze.runner import Runner
from penstock.analyze.streaming_query import QueryProgress, SparkQuery
from penstock.core.errors import Busy, StorageError


class Order(Event):
    product: str


class Played:
    """A query that does what the test prescribes."""

    def __init__(self) -> None:
        self.progress = QueryProgress()
        self.failure: BaseException | None = None
        self.query: Any = None
        self.starts = 0

    def start(self, frame: Any, *, trigger_ms: int, clean: bool) -> list[str]:
        self.failure, self.query = None, SimpleNamespace(isActive=True)
        self.starts += 1
        return []

    def does_a_batch(self) -> None:
        self.progress.batches += 1

    def fails(self, error: BaseException) -> None:
        self.failure, self.query.isActive = error, False


class Scene:
    """A runner, its query, whether there is something to read, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = App("shop")
        app.stream("orders", Order)
        view = app.sql("sales", "SELECT product, count(*) AS n FROM orders GROUP BY product", key="product")
        frame: Any = SimpleNamespace(schema=SimpleNamespace(fields=[]))
        self.query: Any = Played()
        self.behind, self.now = True, 100.0
        self.runner = Runner(
            view, lambda: self.query, lambda: frame, lambda: not self.behind, trigger_ms=0, longest_s=30
        )
        monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: self.now))

    def state_after(self, passed_s: float = 0.0) -> str:
        self.now += passed_s
        self.runner.step()
        return self.runner.state


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(monkeypatch)
    scene.runner.start(clean=True)
    return scene


def test_it_starts_until_its_first_batch(scene: Scene) -> None:
    assert scene.state_after() == "starting"
    scene.query.does_a_batch()
    assert scene.state_after() == "running"


def test_it_runs_where_there_is_nothing_to_read(scene: Scene) -> None:
    scene.behind = False
    assert scene.state_after() == "running"


@pytest.mark.parametrize("batches", [0, 1])
def test_a_fault_that_stays_is_told_without_a_break_while_it_is_tried_again(scene: Scene, batches: int) -> None:
    """Batches from before the error say nothing about the current state."""
    for _ in range(batches):
        scene.query.does_a_batch()
        assert scene.state_after() == "running"
    for wait_s in (1, 2, 4):
        scene.query.fails(Busy("the disk is busy"))
        assert scene.state_after() == "failed"
        assert scene.runner.error == f"the disk is busy (retrying in {wait_s} s)"
        starts = scene.query.starts
        assert [scene.state_after(wait_s - 0.5), scene.state_after(0.6), scene.state_after(0.1)] == ["failed"] * 3
        assert scene.query.starts == starts + 1
        assert scene.runner.error is not None
    scene.query.does_a_batch()
    assert (scene.state_after(), scene.runner.error) == ("running", None)


def test_the_waits_begin_anew_after_a_healthy_minute(scene: Scene) -> None:
    for wait_s in (1, 2):
        scene.query.fails(Busy("x"))
        scene.state_after()
        scene.state_after(wait_s)
    scene.query.does_a_batch()
    assert [scene.state_after(), scene.state_after(running.HEALTHY_S + 1)] == ["running"] * 2
    scene.query.fails(Busy("x"))
    scene.state_after()
    assert scene.runner.error == "x (retrying in 1 s)"


def test_a_fault_of_the_files_is_not_tried_again(scene: Scene) -> None:
    scene.query.fails(StorageError("the file is damaged"))
    assert [scene.state_after(), scene.state_after(3600)] == ["failed"] * 2
    assert (scene.query.starts, scene.runner.error) == (1, "the file is damaged")


def test_a_batch_that_was_committed_before_does_not_show_that_a_query_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure Spark may first repeat the last good batch, and then fails again on the same event."""
    commits: Any = iter([False, True])
    sink: Any = SimpleNamespace(commit=lambda _: next(commits))
    checkpoint: Any = SimpleNamespace(sync=lambda: None, range=lambda _: ("[]", "[]"))
    view = App("shop").sql("sales", "SELECT 1 AS n", key="n")
    query = SparkQuery(view, checkpoint, sink, epoch=1)
    monkeypatch.setattr(querying, "fetch", lambda _: pa.table({"n": [1]}))
    frame: Any = None
    query._commit(frame, 0)
    assert query.progress.batches == 0
    query._commit(frame, 1)
    assert query.progress.batches == 1
