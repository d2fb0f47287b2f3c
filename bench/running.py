"""The measured app as processes, as a user runs it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

APP = Path(__file__).parent / "readings.py"
READY_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def start(folder: Path, port: int, app: Path = APP) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.cli", "run", str(app), "--data", str(folder), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def healthy(url: str) -> bool | None:
    """True if ready, False if it answers but is not, None if it does not answer."""
    try:
        return httpx.get(f"{url}/v1/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return None


def descendants(pid: int) -> list[int]:
    """The processes below one, at any depth."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(entry.parent.name)
            found += [child, *descendants(child)]
    return found


def engine_pid(folder: Path) -> int | None:
    """The process id of the engine, as the supervisor wrote it; None while there is none."""
    try:
        told = json.loads((folder / "run/supervisor.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    pid: int | None = told["engine"]["pid"]
    return pid


def python_workers(engine: int) -> list[int]:
    """The processes in which Spark runs Python, below an engine."""
    return [
        pid
        for pid in descendants(engine)
        if "pyspark.daemon" in command(pid) and "pyspark.daemon" in command(_parent(pid))
    ]


def command(pid: int) -> str:
    """The command line of a process, "" if it is gone."""
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
    """The app, ready, for the length of a block; gives its address."""
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
