"""The cost of an idle app, and the cost of importing `penstock`. The baseline for the import is starting the
interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.report import Figure
from bench.running import app_process, descendants

SETTLE_S = 10.0
SECONDS = 30.0


def run() -> Iterator[Figure]:
    bare = median(elapsed_ms("pass") for _ in range(5))
    ours = median(elapsed_ms("import penstock") for _ in range(5))
    yield Figure("import penstock", ours - bare, "ms", bare, "starting Python at all", "< 300 ms")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, app_process(Path(folder)):
        time.sleep(SETTLE_S)
        before = used_s()
        time.sleep(SECONDS)
        share = (used_s() - before) / SECONDS * 100
    yield Figure("idle: one view", share, "% of a core", bar="< 5%")


def elapsed_ms(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - began) * 1000


def used_s() -> float:
    """Return the processor time of all descendants of this process."""
    ticks = 0
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
