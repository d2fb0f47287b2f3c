"""An edited app, as processes: `plan` beside it, the restarted engine, `rebuild`, and `run`.

Spark is started as rarely as possible. The first output of the app is produced in the session of the tests, which also
does the work of `penstock rebuild`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.analyze import session
from penstock.app.loading import load
from penstock.cli import main as cli
from penstock.core.columns import partition_of, to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.event_shape import event_spec
from penstock.core.settings import from_environment
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory, take
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.engine import Engine
from tests.harness import ROOT, running, wait_for

APP = """from penstock import App, Event


class Reading(Event, id="id"):
    id: str
    meter: str
    x: int


app = App("meters")
readings = app.stream("readings", Reading, key="meter")
app.sql("peak", "SELECT meter, max(x) AS peak FROM readings GROUP BY meter", key="meter")
app.sql("counts", "SELECT meter, count(*) AS n FROM readings GROUP BY meter", key="meter")
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST = [{"id": "1", "meter": "a", "x": 70}, {"id": "2", "meter": "a", "x": 1}]

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory on which the app has run, and has stopped cleanly."""
    file, data = tmp_path_factory.mktemp("code") / "meters.py", tmp_path_factory.mktemp("begun") / "data"
    file.write_text(APP)
    app, directory, settings = load(str(file)).app, DataDirectory(data), from_environment()
    directory.make()
    send(app.streams[0].event, directory, settings.partitions)
    owned = take(directory, app.name)
    engine = Engine(app, str(file), EmbeddedStorage(directory), settings, owned.epoch)
    engine.spark = spark
    engine.comparison.record_streams()
    for view in app.queries:
        engine._start(view, True)
        query = engine.runners[view.name].query
        assert query is not None and query.query is not None, engine.runners[view.name].error  # noqa: PT018
        query.query.processAllAvailable()
    engine._stop(0)
    os.close(*owned.inherit)
    return data


def send(event: type[Any], directory: DataDirectory, partitions: int) -> None:
    """Append the first readings to the log, as the gateway does."""
    log, values = EmbeddedLog(directory.streams), [event(**fields) for fields in FIRST]
    log.declare(StreamSpec.of("readings", event_spec(event), partitions))
    ids, keys = [reading.id for reading in values], [reading.meter for reading in values]
    batch = to_batch(event, values, ids=ids, keys=keys, now=NOON)
    log.append("readings", partition_of("a", partitions), batch, producer="test", sequence=1)
    log.close()


@pytest.fixture
def data(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "data"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "meters.py"
    written.write_text(APP)
    return written


def penstock(*arguments: str) -> subprocess.Popen[str]:
    """Start a command in a separate process."""
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Run a command here: its status, and what it prints to both outputs."""
    capsys.readouterr()
    status = cli.main([str(argument) for argument in arguments])
    return (status, *capsys.readouterr())


def test_an_edited_app_never_goes_on_with_what_other_code_has_made(
    spark: SparkSession, file: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unchanged = (0, f"penstock: {data}: 3 unchanged; `penstock run` would start\n", "")
    with running(file, data) as app:
        assert run_cli(capsys, "plan", file, "--data", data) == unchanged, "no Spark is needed for what has not changed"
        file.write_text(APP.replace("max(x)", "min(x)"))
        assert app.kill("engine"), "it starts again with the file as it is now"
        planned = penstock("plan", str(file), "--data", str(data), "--json")

        def peak() -> dict[str, Any]:
            return next(view for view in app.describe()["views"] if view["name"] == "peak")

        wait_for(lambda: peak()["state"] == "failed", 240, "the failure of the edited view")
        assert (
            "view peak: incompatible: its query has changed. Recompute it from the log: penstock rebuild"
            in peak()["error"]
        )
        app.post("readings", [{"id": "3", "meter": "a", "x": 5}])
        wait_for(lambda: app.view("counts") == [{"meter": "a", "n": 3}], 240, "the other view")
        assert app.view("peak") == [{"meter": "a", "peak": 70}], "not 5, the least of what came after the edit"
        require_planned(planned, file, data)

        rebuild_here(spark, monkeypatch)
        status, _, problem = run_cli(capsys, "rebuild", file, "--view", "peak", "--data", data)
        assert status == 0, problem
        wait_for(lambda: app.view("peak") == [{"meter": "a", "peak": 1}], 240, "the rebuilt view")
        assert run_cli(capsys, "plan", file, "--data", data) == unchanged
        assert app.stop() == 0


def require_planned(planned: subprocess.Popen[str], file: Path, data: Path) -> None:
    """Check the output of `penstock plan` about the edited view, beside the running app."""
    printed, said = planned.communicate(timeout=300)
    assert planned.returncode == 1
    assert "using Spark to compare peak" in said
    verdicts = {declaration["name"]: declaration for declaration in json.loads(printed)["declarations"]}
    assert verdicts["peak"]["verdict"] == "incompatible"
    assert verdicts["peak"]["reasons"] == ["its query has changed"]
    assert verdicts["peak"]["command"] == f"penstock rebuild {file} --view peak --data {data}"
    assert verdicts["counts"]["verdict"] == "unchanged"


def rebuild_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `penstock rebuild` use the existing session, and leave it and this process unchanged."""
    monkeypatch.setattr(session, "start_session", lambda *_, **__: spark)
    monkeypatch.setattr(session, "carry", lambda *_: None)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr(os, "nice", lambda _: 0)


def test_a_plan_changes_nothing(file: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (data / "declarations.json").read_bytes()
    file.write_text(APP.replace('app.sql("counts"', 'app.sql("numbers"'))
    status, printed, _ = run_cli(capsys, "plan", file, "--data", data)
    assert (status, printed.count("view numbers: new"), printed.count("view counts: removed")) == (0, 1, 1)
    assert (data / "declarations.json").read_bytes() == before


def test_a_stream_with_another_key_is_refused_by_run(file: Path, data: Path) -> None:
    file.write_text(APP.replace('key="meter")\napp.sql("peak"', 'key="id")\napp.sql("peak"'))
    refused = penstock("run", str(file), "--data", str(data), "--port", "0")
    _, said = refused.communicate(timeout=300)
    assert refused.returncode == 1
    assert "meters.py:11: stream readings: incompatible: its key was 'meter' and is now 'id'" in said


def test_a_view_that_is_no_longer_declared_is_told_with_the_command_that_removes_it(
    file: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(APP.replace('app.sql("peak"', '# app.sql("peak"'))
    status, printed, _ = run_cli(capsys, "plan", file, "--data", data)
    assert status == 0
    assert "view peak: removed: it is no longer declared" in printed
    assert f"penstock purge {file} peak --data {data} --yes" in printed
