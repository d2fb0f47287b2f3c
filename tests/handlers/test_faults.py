"""Exactly once while the gateway, the engine and Spark's workers are killed: proved by a replay of the log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.running import python_workers
from tests.handlers import shop
from tests.harness import RunningApp, running, wait_for

pytestmark = pytest.mark.spark
APP = Path(__file__).parent / "fleet.py"
SETTLE_S = 120.0
POINTS = {
    "handler.before_delta": 3,
    "handler.after_delta": 5,
    "handler.after_append": 3,
    "engine.before_commit": 4,
    "engine.after_commit": 5,
    "ledger.before_commit": 3,
    "ledger.after_commit": 4,
}
"""Where a process dies, and at which time it gets there: a worker at the first two, the engine at the others."""


class Fleet(threading.Thread):
    """Vehicles that report until told to stop; a report that got no answer is sent again, as it was."""

    def __init__(self, url: Callable[[], str], seed: int) -> None:
        super().__init__(daemon=True)
        self.url, self.chance = url, random.Random(seed)
        self.finish = threading.Event()
        self.acknowledged = 0

    def run(self) -> None:
        number = 0
        while not self.finish.is_set():
            events = [self._fix(number + index) for index in range(20)]
            number += 20
            while not self._send(events):
                self.finish.wait(0.1)
            self.acknowledged += len(events)
            self.finish.wait(0.02)

    def _fix(self, number: int) -> dict[str, Any]:
        trouble = self.chance.choice([None] * 15 + ["quiet"] * 15 + ["raise", "state"])
        x = self.chance.choice([0.0, 2.0])
        return {"fix": str(number), "vehicle": f"v{self.chance.randrange(30)}", "x": x, "trouble": trouble}

    def _send(self, events: list[dict[str, Any]]) -> bool:
        try:
            return httpx.post(f"{self.url()}/v1/streams/fixes", json=events, timeout=20).status_code == 200
        except httpx.HTTPError:
            return False


def figures(app: RunningApp, name: str) -> dict[str, Any]:
    return next(each for each in app.describe()["handlers"] if each["name"] == name)


def workers(app: RunningApp) -> list[int]:
    """The processes in which Spark runs Python."""
    engine = app.pid("engine")
    return python_workers(engine) if engine is not None else []


def require_exactly_once(app: RunningApp, fleet: Fleet) -> None:
    """Every event was run once, with the effects that a replay from zero finds, and everything was emitted once."""
    fleet.finish.set()
    fleet.join(60)
    app.ready()
    wait_for(lambda: figures(app, "geofence")["lag"] == 0, SETTLE_S, "the handler to have read everything")
    assert app.describe()["streams"][0]["end"] == fleet.acknowledged
    emitted = next(each["end"] for each in app.describe()["streams"] if each["name"] == "geofence.Crossing")
    wait_for(
        lambda: sum(row["n"] for row in app.view("crossings")) == emitted, SETTLE_S, "the view on what was emitted"
    )
    app.stop()
    command = [sys.executable, "-m", "penstock.cli", "replay", str(APP), "--data", str(app.data), "--verify"]
    for handler in ("geofence", "tally"):
        made = subprocess.run([*command, "--handler", handler], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
    ids = emitted_ids(app.data, ["geofence.Crossing", "geofence.Silence", "geofence.failed"])
    assert [each for each, count in ids.items() if count > 1] == []
    assert set(ids) == replayed_ids(app.data)


def emitted_ids(data: Path, streams: list[str]) -> Counter[str]:
    from penstock.queue import EmbeddedLog

    log, found = EmbeddedLog(data / "streams", read_only=True), Counter[str]()
    for stream in streams:
        for partition, end in log.ends(stream).items():
            for batch in log.read(stream, partition, 0, end):
                found.update(batch.column("_id").to_pylist())
    log.close()
    return found


def replayed_ids(data: Path) -> set[str]:
    from penstock.runtime.replay import Replay
    from penstock.settings import Settings
    from tests.handlers.fleet import app, geofence

    replay = Replay(app, geofence, data, Settings())
    return set(replay.run(geofence, replay.end(None)).outputs)


def test_a_kill_at_every_failpoint_of_a_handler_changes_nothing(tmp_path: Path) -> None:
    marks = {name: tmp_path / f"{name}.reached" for name in POINTS}
    setting = ";".join(f"{name}@{count}=kill:{marks[name]}" for name, count in POINTS.items())
    with running(APP, tmp_path / "data", PENSTOCK_FAILPOINTS=setting) as app:
        app.ready()
        fleet = Fleet(lambda: app.url, seed=1)
        fleet.start()
        wait_for(lambda: all(mark.exists() for mark in marks.values()), 240, "every failpoint to be reached")
        require_exactly_once(app, fleet)
    assert {mark.read_text().split()[0] for mark in marks.values()} == set(POINTS)


def survive(app: RunningApp, kills: int, seed: int) -> int:
    """Kill what is alive, so many times, and require that nothing shows; returns how often something was killed."""
    chance = random.Random(seed)
    fleet = Fleet(lambda: app.url, seed)
    fleet.start()
    done: Counter[str] = Counter()
    while sum(done.values()) < kills:
        time.sleep(chance.uniform(0.2, 2.0))  # the moment of the kill is the random part of this test
        victim = chance.choice(["worker", "worker", "worker", "engine", "gateway"])
        if victim == "worker":
            app.ready()
            time.sleep(chance.uniform(0.0, 1.0))
            alive = workers(app)
            if alive:
                os.kill(chance.choice(alive), signal.SIGKILL)
                done[victim] += 1
        elif app.kill(victim):
            done[victim] += 1
    require_exactly_once(app, fleet)
    print(f"seed {seed}: {dict(done)}, {fleet.acknowledged} events")
    return done.total()


def test_state_and_timers_are_served_as_time_passes(tmp_path: Path) -> None:
    """The state of a key with its cursor; a timer that comes though no event does; what there is not is 404."""
    with running(APP, tmp_path / "data") as app:
        app.ready()
        app.post("fixes", [{"fix": "1", "vehicle": "a/b", "x": 0.0}])
        path = f"{app.url}/v1/handlers/geofence/state"
        found = wait_for(
            lambda: httpx.get(f"{path}/a%2Fb").status_code == 200 and httpx.get(f"{path}/a%2Fb"), 30, "state"
        )
        assert found.json()["state"]["fixes"] == 1
        assert list(found.json()["timers"]) == ["silent"]
        page = httpx.get(f"{app.url}/v1/streams/fixes", params={"since": found.json()["cursor"]})
        assert page.json()["events"] == []
        silences = f"{app.url}/v1/streams/geofence.Silence?since=earliest"
        wait_for(lambda: httpx.get(silences).json()["events"], 30, "the timer to come")
        assert httpx.get(f"{path}/nobody").json()["code"] == "not_found"
        assert httpx.get(f"{app.url}/v1/handlers/nope/state/a").status_code == 404
        assert figures(app, "geofence")["keys"] == 1
        assert 'penstock_handler_keys{handler="geofence"} 1.0' in httpx.get(f"{app.url}/metrics").text
        assert app.post("geofence.Silence", [{}]).status_code == 404


def test_a_silent_stream_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """A handler of two streams must know that nothing more comes of one before it runs an event of the other."""
    with running(Path(shop.__file__), tmp_path / "data") as app:
        app.ready()
        app.post("prices", [{"item": "tea", "price": 2.0}])
        for number in range(3):
            app.post("sales", [{"sale": str(number), "item": "tea", "shop": "a"}])
        state = f"{app.url}/v1/handlers/till/state/tea"
        wait_for(lambda: httpx.get(state).json().get("state", {}).get("total") == 6.0, 30, "the last sale to be run")


def test_random_kills_change_nothing(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with running(APP, tmp_path / "data") as app:
        assert survive(app.ready(), kills=4, seed=seed) == 4


@pytest.mark.soak
def test_two_hundred_random_kills_change_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    with running(APP, tmp_path / "data") as app:
        assert survive(app.ready(), kills=200, seed=seed) == 200
