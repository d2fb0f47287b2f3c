"""Runs an app as a user does, as processes, and causes the faults of production."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.running import descendants
from penstock.control import SupervisorStatus
from penstock.runtime.embedded.channel import FileChannel
from penstock.runtime.embedded.directory import DataDirectory

ROOT = Path(__file__).parent.parent
START_S = 240.0
ANSWER_S = 60.0
DRAIN_S = 60.0
"""A clean shutdown may be slow on a shared machine."""


def edited(file: Path, path: Path, edits: Sequence[tuple[str, str]]) -> Path:
    """Write an app's file with other code to another path."""
    text = file.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def wait_for(condition: Callable[[], Any], timeout_s: float = ANSWER_S, what: str = "the condition") -> Any:
    """Return the first true value of `condition`, polled often at first, later a few times a second: waiting for Spark
    must not keep it from its work. Fails after the timeout."""
    began = time.monotonic()
    while True:
        outcome = condition()
        if outcome:
            return outcome
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise AssertionError(f"{what} did not come true in {timeout_s:.0f} s")
        time.sleep(min(0.25, 0.02 + 0.1 * waited))


@dataclass
class RunningApp:
    """`penstock run` in a separate process, with its data directory."""

    file: Path
    data: Path
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    port: int = 0
    output: str = ""

    def start(self) -> RunningApp:
        """Start, and return as soon as the gateway answers (the engine takes some seconds more)."""
        self.begin().health(START_S)
        return self

    def begin(self) -> RunningApp:
        """Start, and return as soon as it has printed its address."""
        command = [sys.executable, "-m", "penstock.cli", "run", str(self.file), "--data", str(self.data)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PENSTOCK_DRAIN_S": f"{DRAIN_S:.0f}"} | self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.output = ""
        while not (address := re.search(r"http://\S+:(\d+)", self.output)):  # changes of the app are printed before
            line = self.process.stdout.readline()
            assert line, f"it ended without an address: {self.output}"
            self.output += line
        self.port = int(address[1])
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def health(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the body of `/v1/health`, as soon as there is one."""

        def ask() -> Any:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/v1/health", timeout=ANSWER_S).json()
            return None

        return dict(wait_for(ask, timeout_s, "an answer of the gateway"))

    def ready(self, timeout_s: float = START_S) -> RunningApp:
        """Wait until everything runs."""
        wait_for(lambda: self.health()["ready"], timeout_s, f"readiness ({self.log_tail()})")
        return self

    def describe(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/v1/app", timeout=ANSWER_S).json())

    def view(self, name: str) -> list[dict[str, Any]]:
        return list(httpx.get(f"{self.url}/v1/views/{name}", timeout=ANSWER_S).json()["rows"])

    def post(self, stream: str, events: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/streams/{stream}", json=events, timeout=ANSWER_S, **options)

    def pid(self, name: str) -> int | None:
        """Return the process id of the gateway or the engine, as the supervisor wrote it."""
        status = FileChannel(DataDirectory(self.data)).latest(SupervisorStatus)
        if status is None:
            return None
        return {"gateway": status.gateway, "engine": status.engine}[name].pid

    def kill(self, name: str) -> bool:
        """Kill a part of it with kill -9; False if it does not run at this moment."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def stop(self, timeout_s: float = DRAIN_S + 30.0) -> int:
        """Send SIGTERM, and return the exit status. The next start uses another port: this one may be taken by then."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout_s)
        assert self.process.stdout is not None
        self.output = self.process.stdout.read()
        self.process.stdout.close()
        self.port = 0
        return status

    def log_tail(self) -> str:
        files = [self.data / "log" / name for name in ("gateway.log", "engine.log")]
        return "\n".join(file.read_text()[-1500:] for file in files if file.exists())

    def kill_all(self) -> None:
        """Kill everything with kill -9, the supervisor first; returns when nothing holds the data directory."""
        assert self.process is not None
        below = descendants(self.process.pid)
        self.process.kill()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(file: Path, data: Path, **environ: str) -> Iterator[RunningApp]:
    """Run an app while in the block, and leave nothing of it behind."""
    with begun(file, data, **environ) as app:
        app.health(START_S)
        yield app


@contextlib.contextmanager
def begun(file: Path, data: Path, **environ: str) -> Iterator[RunningApp]:
    """Do the same as `running`, without waiting for the app to answer."""
    app = RunningApp(file, data, environ).begin()
    try:
        yield app
    finally:
        if app.process is not None and app.process.poll() is None:
            app.kill_all()
