"""Named points in the code where a test can interrupt the process.

`PENSTOCK_FAILPOINTS` contains entries of the form `NAME[@N]=ACTION[:MARKER]`, separated by `;`. When this process
reaches NAME for the Nth time (by default, the first), ACTION is run: `kill` ends the process like kill -9, and `stop`
raises `Interrupted`. If a MARKER path is set, the action runs only once, even across restarts: the marker file is
created just before the action and prevents it from running again. Outside tests the variable is unset, and reaching a
point costs one lookup in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PENSTOCK_FAILPOINTS"


class Interrupted(BaseException):
    """Raised at a failpoint by the action `stop`. Not a subclass of Exception, so that error handlers do not swallow
    it."""


@dataclass
class _Trap:
    action: str
    remaining: int
    marker: Path | None

    def spring(self, name: str) -> None:
        self.remaining -= 1
        if self.remaining != 0 or (self.marker is not None and self.marker.exists()):
            return
        if self.marker is not None:
            self.marker.write_text(f"{name} {os.getpid()}\n")
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise Interrupted(name)


def parse(text: str) -> dict[str, _Trap]:
    traps = {}
    for entry in filter(None, text.split(";")):
        left, _, right = entry.partition("=")
        name, _, count = left.partition("@")
        action, _, marker = right.partition(":")
        if action not in ("kill", "stop"):
            raise ValueError(f"{VARIABLE}: unknown action {action!r} in {entry!r}; use kill or stop")
        traps[name] = _Trap(action, int(count or 1), Path(marker) if marker else None)
    return traps


_traps = parse(os.environ.get(VARIABLE, ""))


def reach(name: str) -> None:
    """Run the action set for the failpoint `name`, if any. The action kills the process or raises `Interrupted`."""
    trap = _traps.get(name)
    if trap is not None:
        trap.spring(name)
