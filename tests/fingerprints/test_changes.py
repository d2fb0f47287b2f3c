"""An app that is edited, as processes: `plan` beside it, the engine that starts again, and `run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.spark
def test_an_edited_app_never_goes_on_with_what_other_code_has_made(tmp_path: Path) -> None:
    file, data = tmp_path / "meters.py", tmp_path / "data"
    file.write_text(APP)
    with running(file, data) as app:
        app.ready()
        app.post("readings", [{"id": "1", "meter": "a", "x": 70}, {"id": "2", "meter": "a", "x": 1}])
        wait_for(lambda: app.view("peak") == [{"meter": "a", "peak": 70}], what="the peak")
        wait_for(lambda: app.view("counts") == [{"meter": "a", "n": 2}], what="the count")
        same = penstock("plan", str(file), "--data", str(data))
        assert (same.returncode, same.stderr) == (0, ""), "no Spark is needed for what has not changed"
        assert same.stdout == f"penstock: {data}: 3 unchanged; `penstock run` would start\n"

        file.write_text(APP.replace("max(x)", "min(x)"))
        before = (data / "declarations.json").read_bytes()
        told = penstock("plan", str(file), "--data", str(data), "--json")
        assert told.returncode == 1
        assert "comparing peak with Spark" in told.stderr
        assert (data / "declarations.json").read_bytes() == before
        verdicts = {each["name"]: each for each in json.loads(told.stdout)["declarations"]}
        assert verdicts["peak"]["verdict"] == "incompatible"
        assert verdicts["peak"]["reasons"] == ["its query has changed"]
        assert verdicts["peak"]["command"] == f"penstock rebuild {file} --view peak --data {data}"
        assert verdicts["counts"]["verdict"] == "unchanged"

        app.kill("engine")

        def peak() -> dict[str, Any]:
            return next(each for each in app.describe()["views"] if each["name"] == "peak")

        wait_for(lambda: peak()["state"] == "failed", 240, "the failure of the edited view")
        assert (
            "view peak: incompatible: its query has changed. Compute it again from the log: penstock rebuild"
            in peak()["error"]
        )
        app.post("readings", [{"id": "3", "meter": "a", "x": 5}])
        wait_for(lambda: app.view("counts") == [{"meter": "a", "n": 3}], 240, "the other view")
        assert app.view("peak") == [{"meter": "a", "peak": 70}], "not 5, the least of what came after the edit"

        rebuilt = penstock("rebuild", str(file), "--view", "peak", "--data", str(data))
        assert rebuilt.returncode == 0, rebuilt.stderr
        wait_for(lambda: app.view("peak") == [{"meter": "a", "peak": 1}], 240, "the rebuilt view")
        again = penstock("plan", str(file), "--data", str(data))
        assert again.stdout == f"penstock: {data}: 3 unchanged; `penstock run` would start\n"
        app.stop()

    file.write_text(APP.replace('key="meter")\napp.sql("peak"', 'key="id")\napp.sql("peak"'))
    refused = penstock("run", str(file), "--data", str(data), "--port", "0")
    assert refused.returncode == 1
    assert "meters.py:11: stream readings: incompatible: its key was 'meter' and is 'id'" in refused.stderr

    file.write_text(APP.replace('app.sql("peak"', '# app.sql("peak"'))
    removed = penstock("plan", str(file), "--data", str(data))
    assert removed.returncode == 0
    assert "view peak: removed: it is no longer declared" in removed.stdout
    assert f"penstock purge {file} peak --data {data} --yes" in removed.stdout
