"""`penstock replay`: the log of a data directory run again in plain Python, compared with the run on Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock.testing import run
from tests.handlers.fleet import app, fixes, geofence
from tests.handlers.pipe import HandlerPipe
from tests.handlers.test_spark import TARGET, items

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory in which the handler has run on Spark."""
    root = tmp_path_factory.mktemp("replay")
    pipe = HandlerPipe(spark, root, app, TARGET, handler_events_max=70)
    pipe.append("fixes", items(seed=3))
    pipe.run(geofence)
    pipe.close()
    return root


def replay(
    data: Path, *arguments: str, target: Path = TARGET, text: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "replay",
        str(target),
        "--data",
        str(data),
        "--handler",
        "geofence",
    ]
    chosen = os.environ | {"PENSTOCK_PARTITIONS": "2"} | environ
    return subprocess.run([*command, *arguments], capture_output=True, text=True, input=text, env=chosen, check=False)


def test_a_replay_proves_the_run_on_spark_equal(data: Path) -> None:
    process = replay(data, "--verify")
    assert process.returncode == 0, process.stderr
    assert run(app, {fixes: items(seed=3)}).digest(geofence) in process.stdout
    assert "bit for bit" in process.stdout


def test_a_replay_with_other_code_is_not_equal(data: Path, tmp_path: Path) -> None:
    changed = tmp_path / "fleet.py"
    changed.write_text(TARGET.read_text().replace("vehicle.fixes += 1", "vehicle.fixes += 2"))
    process = replay(data, "--verify", target=changed)
    assert process.returncode == 1
    assert "differs from the run on Spark" in process.stderr


def test_a_difference_is_told_by_key_and_output(data: Path, tmp_path: Path) -> None:
    changed = tmp_path / "fleet.py"
    changed.write_text(TARGET.read_text().replace("abs(fix.x) < 1", "abs(fix.x) < 3"))
    process = replay(data, "--diff", str(changed))
    assert process.returncode == 0, process.stderr
    assert re.search(r"^state of v\d+: \{.*\} -> \{.*\}$", process.stdout, re.MULTILINE)
    of_one = replay(data, "--diff", str(changed), "--key", "v3").stdout
    assert re.search(r"^output geofence/fixes/\d/\d+/0: \{.*\} -> nothing$", of_one, re.MULTILINE)
    assert "differences" in process.stdout
    assert "no difference" in replay(data, "--diff", str(TARGET)).stdout


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'key="vehicle", state=Vehicle',
            'key="fix", state=Vehicle',
            "reads different streams, or uses a different key",
        ),
        (
            "    x: float\n",
            "    x: float\n    y: float\n",
            "stream fixes: Fix.y is new, and its events",
        ),
    ],
)
def test_a_change_that_cannot_be_compared_is_refused(
    data: Path, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    changed = tmp_path / "fleet.py"
    changed.write_text(TARGET.read_text().replace(old, new, 1))
    process = replay(data, "--diff", str(changed))
    assert process.returncode == 1
    assert expected in process.stderr
    assert "Traceback" not in process.stderr


def test_another_number_of_partitions_is_refused(data: Path) -> None:
    process = replay(data, "--verify", PENSTOCK_PARTITIONS="3")
    assert process.returncode == 1
    assert "has 2 shards of geofence, but this run would have 3" in process.stderr


def test_one_key_is_told_event_by_event(data: Path) -> None:
    process = replay(data, "--key", "v3")
    mine = [item for item in items(seed=3) if getattr(item, "vehicle", None) == "v3"]
    assert process.stdout.count('"vehicle":"v3","x"') == len(mine)
    expected = run(app, {fixes: items(seed=3)}).states(geofence)["v3"]
    assert process.stdout.splitlines()[-2] == f"state of v3: {msgspec.json.encode(expected).decode()}"


def test_the_debugger_stops_in_the_user_s_function_with_the_state(data: Path) -> None:
    process = replay(data, "--key", "v3", "--pdb", text="p vehicle.fixes\nc\np vehicle.fixes\nq\n")
    assert "-> vehicle.fixes += 1" in process.stdout
    assert "(Pdb) 0\n" in process.stdout


def test_state_is_printed_by_key(data: Path) -> None:
    def state(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli", "state", str(TARGET), "--data", str(data), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    expected = run(app, {fixes: items(seed=3)}).states(geofence)
    lines = [msgspec.json.decode(line) for line in state("--handler", "geofence").stdout.splitlines()]
    assert {line["key"]: line["state"] for line in lines} == msgspec.to_builtins(expected)
    assert [line["key"] for line in lines if line["timers"]] != []
    (one,) = state("--handler", "geofence", "--key", "v3").stdout.splitlines()
    assert msgspec.json.decode(one)["key"] == "v3"
    assert "has no state for 'x'" in state("--handler", "geofence", "--key", "x").stderr
    assert state("--handler", "tally").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pdb"], "--pdb needs --key"),
        (["--verify", "--key", "v1"], "it cannot be used with --key or --until"),
        (["--until", "nonsense"], "is not a cursor"),
        (["--handler", "nope"], "there is no handler 'nope'; the handlers are: geofence, tally"),
        (["--handler", "tally"], "has no data for the handler 'tally'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(data: Path, arguments: list[str], expected: str) -> None:
    process = replay(data, *arguments)
    assert process.returncode == 1
    assert expected in process.stderr
    assert "Traceback" not in process.stderr
