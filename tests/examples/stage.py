"""Running a demo as a new user does: as a script, until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import DRAIN_S, ROOT, START_S

STOP_S = DRAIN_S + 30.0
DEADLINE_S = 2 * START_S


@contextmanager
def demo(name: str, folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a demo while in the block, yielding its address; then send the Ctrl-C of a terminal, and wait for its end."""
    command = [sys.executable, f"examples/{name}.py", "--data", str(folder / "data"), "--port", "0", *options]
    environ = os.environ | {"PENSTOCK_DRAIN_S": f"{DRAIN_S:.0f}"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            match = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert match
            yield process, match.group()
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_S)
