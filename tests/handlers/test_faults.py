"""Exactly once while the gateway, the engine, Spark's workers and the disk fail: proved by a replay of the log."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.running import command, descendants
from tests import packages
from tests.handlers import shop
from tests.handlers.survival import APP, Fleet, Survival, figures, require_exactly_once
from tests.harness import START_S, RunningApp, running, wait_for

pytestmark = pytest.mark.spark
DISK_MB = 1024
LEG_ROUNDS = 50
POINTS = {
    "handler.before_delta": 2,
    "handler.after_delta": 3,
    "engine.after_commit": 3,
    "ledger.before_commit": 2,
}
"""The failpoints and the counts at which a process dies: a worker at the first two, the engine at the others. At the
other points of the engine it dies in the test of the whole app, and in that of a view kept by a handler."""
TWO_POINTS = ("handler.after_delta", "ledger.before_commit")


@pytest.mark.parametrize(
    "points", [TWO_POINTS, pytest.param(tuple(POINTS), marks=pytest.mark.soak)], ids=["two", "every"]
)
def test_a_kill_at_the_failpoints_of_a_handler_changes_nothing(tmp_path: Path, points: tuple[str, ...]) -> None:
    marks = {name: tmp_path / f"{name}.reached" for name in points}
    setting = ";".join(f"{name}@{POINTS[name]}=kill:{marks[name]}" for name in points)
    with running(APP, tmp_path / "data", PENSTOCK_FAILPOINTS=setting) as app:
        app.ready()
        with Fleet(lambda: app.url, seed=1, pause_s=0.1) as fleet:
            wait_for(lambda: all(mark.exists() for mark in marks.values()), 240, "every failpoint to be reached")
            require_exactly_once(app, fleet)
    assert {mark.read_text().split()[0] for mark in marks.values()} == set(points)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Start an app without events, for the two tests below, in their order."""
    with running(APP, tmp_path_factory.mktemp("fresh") / "data") as app:
        yield app


def test_java_that_ends_while_queries_start_is_started_again(fresh: RunningApp) -> None:
    """A query that is about to start sees an end of Java as its own failure."""
    log = fresh.data / "log/engine.log"
    wait_for(lambda: "is up" in log.read_text(), START_S, "Spark")
    java, *_ = [pid for pid in descendants(fresh.pid("engine") or 0) if "java" in command(pid)]
    os.kill(java, signal.SIGKILL)
    wait_for(lambda: log.read_text().count("is up") == 2, START_S, "Spark to be started again")
    fresh.ready()


def test_state_and_timers_are_served_as_time_passes(fresh: RunningApp) -> None:
    """The state of a key has a cursor; a timer fires without an event; a missing key gives 404."""
    app = fresh.ready()
    app.post("fixes", [{"fix": "1", "vehicle": "a/b", "x": 0.0}])
    path = f"{app.url}/v1/handlers/geofence/state"
    response = wait_for(
        lambda: httpx.get(f"{path}/a%2Fb").status_code == 200 and httpx.get(f"{path}/a%2Fb"), 30, "state"
    )
    assert response.json()["state"]["fixes"] == 1
    assert list(response.json()["timers"]) == ["silent"]
    page = httpx.get(f"{app.url}/v1/streams/fixes", params={"since": response.json()["cursor"]})
    assert page.json()["events"] == []
    silences = f"{app.url}/v1/streams/geofence.Silence?since=earliest"
    wait_for(lambda: httpx.get(silences).json()["events"], 30, "the timer to come")
    assert httpx.get(f"{path}/nobody").json()["code"] == "not_found"
    assert httpx.get(f"{app.url}/v1/handlers/nope/state/a").status_code == 404
    assert figures(app, "geofence")["keys"] == 1
    assert 'penstock_handler_keys{handler="geofence"} 1.0' in httpx.get(f"{app.url}/metrics").text
    assert app.post("geofence.Silence", [{}]).status_code == 404


@pytest.mark.soak
def test_a_silent_stream_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """A handler of two streams must know that nothing more comes of one before it runs an event of the other. The
    test of a running app with a join covers that as well."""
    with running(Path(shop.__file__), tmp_path / "data") as app:
        app.ready()
        app.post("prices", [{"item": "tea", "price": 2.0}])
        for number in range(3):
            app.post("sales", [{"sale": str(number), "item": "tea", "shop": "a"}])
        state = f"{app.url}/v1/handlers/till/state/tea"
        wait_for(lambda: httpx.get(state).json().get("state", {}).get("total", 0.0) >= 6.0, 30, "the last sale")
        assert httpx.get(state).json()["state"]["total"] == 6.0


@pytest.mark.soak
def test_two_hundred_random_faults_change_nothing(tmp_path: Path) -> None:
    """It runs on a separate disk, which is full or slow at times. In legs, each from an empty log: the check after
    each round is a replay from the beginning."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    packages.need("strace")  # slows it down
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(mount)], check=True)
    faults = ("worker", "worker", "jvm", "engine", "gateway", "torn", "missing", "full", "slow")
    rounds = int(os.environ.get("ROUNDS", "200"))
    try:
        for first in range(0, rounds, LEG_ROUNDS):
            upcoming = min(LEG_ROUNDS, rounds - first)
            with running(APP, mount / "data", PENSTOCK_DISK_RESERVE_BYTES=str(48 * 2**20)) as app:
                assert Survival(app.ready(), seed + first, *faults).run(upcoming).total() == upcoming
            shutil.rmtree(mount / "data")
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
