"""Runs the app that is measured, with all its processes, as a user would."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from penstock.control import SupervisorStatus
from penstock.runtime.embedded.channel import FileChannel
from penstock.runtime.embedded.directory import DataDirectory

APP = Path(__file__).parent / "readings.py"
READY_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def start(folder: Path, port: int, app: Path = APP) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.cli", "run", str(app), "--data", str(folder), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def healthy(url: str) -> bool | None:
    """Return True if the app is ready, False if it responds but is not ready, and None if it does not respond."""
    try:
        return httpx.get(f"{url}/v1/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return None


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(entry.parent.name)
            pids += [child, *descendants(child)]
    return pids


def engine_pid(folder: Path) -> int | None:
    """Return the engine's process id, as recorded by the supervisor, or None if there is no engine."""
    status = FileChannel(DataDirectory(folder)).latest(SupervisorStatus)
    return status.engine.pid if status is not None else None


def python_workers(engine: int) -> list[int]:
    """Return an engine's descendants that run Python for Spark."""
    return [
        pid
        for pid in descendants(engine)
        if "pyspark.daemon" in command(pid) and "pyspark.daemon" in command(_parent(pid))
    ]


def command(pid: int) -> str:
    """Return a process's command line, or "" if the process no longer exists."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@contextlib.contextmanager
def app_process(folder: Path, app: Path = APP) -> Iterator[str]:
    """Run the app for the duration of the block. Yields its address once the app is ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with start(folder, port, app) as process:
        deadline = time.monotonic() + READY_S
        while not healthy(url):
            assert time.monotonic() < deadline, "the app did not become ready"
            time.sleep(0.05)
        try:
            yield url
        finally:
            process.terminate()
