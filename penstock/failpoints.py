"""Named points at which a test can end the process, so that a kill is exact instead of lucky.

`PENSTOCK_FAILPOINTS` holds entries separated by `;`, each `NAME[@N]=ACTION[:MARKER]`: at the Nth time (default the
first) that this process reaches NAME, do ACTION. `kill` ends the process as kill -9 would, `stop` raises
`Interrupted`. With a MARKER path the action happens once over all restarts: the file is created just before.
Unset, which is always so outside tests, reaching a point costs one dictionary look-up in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PENSTOCK_FAILPOINTS"


class Interrupted(BaseException):
    """What `stop` raises; not an Exception, so that no handler of errors swallows it."""


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
    """Say that the process is at the point NAME."""
    trap = _traps.get(name)
    if trap is not None:
        trap.spring(name)
