"""Processes that write a stream until they are killed: `python -m tests.queue.workers append|admit DIRECTORY N`.

Each prints a line for every call that returned, at once, so that the test knows which were acknowledged. With `evolve`
the Nth version of an event class is declared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.queue import EmbeddedLog
from tests.contracts.log import ROOT, batch, spec
from tests.queue import evolving


def command(action: str, directory: Path, count: int) -> list[str]:
    return [sys.executable, "-m", "tests.queue.workers", action, str(directory), str(count)]


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, **environment}
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT, env=surroundings)


FIRST = evolving.Version({"order": str, "cents": int})
SECOND = evolving.migrate(evolving.rename(FIRST, "order", "id"), "cents", str, lambda fields: f"{fields['cents']} ct")
VERSIONS = (FIRST, replace(SECOND, renamed={"order": "id"}))


def main(action: str, directory: str, count: str) -> None:
    log = EmbeddedLog(Path(directory), disk_reserve_bytes=0)
    if action == "evolve":
        evolving.declare(log, VERSIONS[int(count)].event_class())
        log.close()
        return
    log.declare(spec(unique_ids=10_000))
    for number in range(int(count)):
        try:
            if action == "append":
                log.append("fixes", number % 2, batch([number]), producer="p", sequence=number)
            else:
                log.admit("fixes", {0: batch([2 * number]), 1: batch([2 * number + 1])})
        except PenstockError as error:
            print(f"refused {number} {error.code}", flush=True)
        else:
            print(f"took {number}", flush=True)
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
