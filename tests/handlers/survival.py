"""A fleet that runs during faults, and the proof that they have no effect."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bench.running import command, descendants, python_workers
from penstock.core.settings import Settings
from penstock.handlers.replay import collect
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.storage import open_storage
from penstock.runtime.replaying import open_replay
from tests.beside import Beside
from tests.handlers.fleet import app as fleet_app
from tests.handlers.fleet import geofence
from tests.harness import RunningApp, wait_for

APP = Path(__file__).parent / "fleet.py"
OUTPUTS = ("geofence.Crossing", "geofence.Silence", "geofence.failed")
SETTLE_S, RETRY_S = 120.0, 0.1
REFUSED, SLOW_EVENTS = 30, 500
"""The duration of a full disk, in refused requests, and of a slow one, in accepted events."""
SYNCS = "fsync,fdatasync,syncfs"


class Fleet(Beside):
    """Vehicles that report until stopped; a report that got no answer is resent unchanged."""

    def __init__(self, url: Callable[[], str], seed: int, pause_s: float = 0.02) -> None:
        super().__init__("fleet")
        self.url, self.chance, self.pause_s = url, random.Random(seed), pause_s
        self.acknowledged = self.refused = 0

    def run(self) -> None:
        number = 0
        while not self.finish.is_set():
            events = [self._fix(number + index) for index in range(20)]
            number += 20
            while not self._send(events):
                self.refused += 1
                if self.leave.wait(RETRY_S):
                    return
            self.acknowledged += len(events)
            self.finish.wait(self.pause_s)

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
    return next(handler for handler in app.describe()["handlers"] if handler["name"] == name)


def require_exactly_once(app: RunningApp, fleet: Fleet) -> None:
    """Check that every event ran once, with the same effects as in a replay from zero, and every output was emitted
    once."""
    fleet.finish.set()
    fleet.join(60)
    app.ready()
    wait_for(lambda: figures(app, "geofence")["lag"] == 0, SETTLE_S, "the handler to have read everything")
    assert app.describe()["streams"][0]["end"] == fleet.acknowledged
    emitted = next(stream["end"] for stream in app.describe()["streams"] if stream["name"] == "geofence.Crossing")
    wait_for(
        lambda: sum(row["n"] for row in app.view("crossings")) == emitted, SETTLE_S, "the view on what was emitted"
    )
    app.stop()
    command = [sys.executable, "-m", "penstock.cli", "replay", str(APP), "--data", str(app.data), "--verify"]
    for handler in ("geofence", "tally"):
        process = subprocess.run([*command, "--handler", handler], capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr
    assert set(emitted_ids(app.data)) == replayed_ids(app.data)


def emitted_ids(data: Path) -> set[str]:
    """Return the ids of all emitted events: each must be there once."""
    log, counts = EmbeddedLog(data / "streams", read_only=True), Counter[str]()
    for stream in OUTPUTS:
        for partition, end in log.ends(stream).items():
            for batch in log.read(stream, partition, 0, end):
                counts.update(batch.column("_id").to_pylist())
    log.close()
    assert [event_id for event_id, count in counts.items() if count > 1] == []
    return set(counts)


def replayed_ids(data: Path) -> set[str]:
    """Run the log again, from zero to the position of the handler. Its state must be the same, bit for bit; returns
    the ids that it emits."""
    replay, outputs = open_replay(fleet_app, geofence, open_storage(data), Settings()), dict[str, bytes]()
    recomputation = replay.begin(geofence, replay.end(None))
    recomputation.advance(replay.end(None), collect(outputs))
    replay.log.close()
    assert recomputation.digest == replay.digest
    return set(outputs)


class Survival:
    """A running app with random faults, one at a time. After each the state must be that of a replay
    from zero, and the replay's output must have been emitted, once; the app continues meanwhile."""

    def __init__(self, app: RunningApp, seed: int, *faults: str) -> None:
        self.app, self.faults = app, faults
        self.chance = random.Random(seed)
        self.fleet = Fleet(lambda: app.url, seed)
        self.done: Counter[str] = Counter()

    def run(self, rounds: int) -> Counter[str]:
        """Run `rounds` rounds; returns how often each fault happened."""
        with self.fleet:
            while self.done.total() < rounds:
                self._let_pass(self.chance.randint(100, 1000))  # the moment is the random part of this
                fault = self.chance.choice(self.faults)
                if getattr(self, f"do_{fault}")():
                    self.done[fault] += 1
                    self.verify()
                    print(fault, end=" ", flush=True)
            require_exactly_once(self.app, self.fleet)
        print(f"{dict(self.done)}, {self.fleet.acknowledged} events")
        return self.done

    def _let_pass(self, events: int) -> None:
        """Wait until `events` more events were acknowledged."""
        goal = self.fleet.acknowledged + events
        wait_for(lambda: self.fleet.acknowledged >= goal, SETTLE_S, "events to be taken")

    def verify(self) -> None:
        ledger = self.app.data / "handlers/geofence/ledger.db"
        if ledger.exists() and figures(self.app, "geofence")["batch_id"] is not None:
            assert replayed_ids(self.app.data) <= emitted_ids(self.app.data), self.done

    def do_worker(self) -> bool:
        self.app.ready()
        self._let_pass(self.chance.randint(0, 500))
        return self._kill(self._workers())

    def do_jvm(self) -> bool:
        engine = self.app.pid("engine")
        return self._kill([pid for pid in descendants(engine or 0) if "java" in command(pid)])

    def do_engine(self) -> bool:
        return self.app.kill("engine")

    def do_gateway(self) -> bool:
        if not self.app.kill("gateway"):
            return False
        self.app.health()
        return True

    def do_torn(self) -> bool:
        """Cut off the end of a state file."""
        return self._damage("*.delta", lambda file: file.write_bytes(file.read_bytes()[: -self.chance.randint(1, 40)]))

    def do_missing(self) -> bool:
        """Delete a state file."""
        return self._damage("*.*", Path.unlink)

    def do_full(self) -> bool:
        """Fill the disk for a while."""
        filler = self.app.data.parent / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(65536)):
                pass
        assert shutil.disk_usage(self.app.data).free < 2**20
        refused = self.fleet.refused
        wait_for(lambda: self.fleet.refused > refused + REFUSED, SETTLE_S, "the front door to refuse events")
        filler.unlink()
        self.app.ready()
        return True

    def do_slow(self) -> bool:
        """Make every sync of the engine and its workers take 0.3 s for a while."""
        self.app.ready()
        pids = [pid for pid in (self.app.pid("engine"), *self._workers()) if pid is not None]
        chosen = [word for pid in pids for word in ("-p", str(pid))]
        slow = ["-e", f"trace={SYNCS}", "-e", f"inject={SYNCS}:delay_exit=300000"]
        with subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", *chosen, *slow]) as strace:
            self._let_pass(SLOW_EVENTS)
            strace.terminate()
        return True

    def _workers(self) -> list[int]:
        engine = self.app.pid("engine")
        return python_workers(engine) if engine is not None else []

    def _kill(self, alive: list[int]) -> bool:
        if not alive:
            return False
        os.kill(self.chance.choice(alive), signal.SIGKILL)
        return True

    def _damage(self, pattern: str, damage: Callable[[Path], object]) -> bool:
        """Kill the engine, and damage a file before the next engine reads it."""
        self.app.ready()
        engine = self.app.pid("engine")
        if not self.app.kill("engine"):
            return False
        wait_for(lambda: self.app.pid("engine") != engine, 30, "the supervisor to have noticed")
        files = sorted(self.app.data.glob(f"handlers/geofence/0/*/{pattern}"))
        if files:
            damage(self.chance.choice(files))
        return bool(files)
