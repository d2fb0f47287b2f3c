"""Assigns a batch's shards to workers, preferably to a worker that has the shard in memory.

Spark assigns each task to any free Python worker, and a worker without the shard must load it, or catch up with its
changes. Therefore a task is not bound to a shard: the worker that runs the task claims a free shard, preferably one
that it already holds. A task that is run again after its worker died claims the same shard as before, so exactly one
task runs each shard, no matter which worker runs the task.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COURTESY_S = 0.02
"""Seconds that a worker without any of the shards waits, so that workers that hold shards choose first."""
KEPT = 4


@dataclass(frozen=True)
class FileClaims:
    """`Claims` of one planned batch: a file with a line `TASK SHARD` for each claim."""

    path: Path

    def take(self, task: int, shards: Sequence[int], holds: Callable[[int], bool]) -> int:
        """Claim a handler's shard for a Spark task. Each of `len(shards)` tasks gets a different shard. Blocks for up
        to COURTESY_S if the worker holds none of the shards."""
        shard = self._take(task, shards, lambda free: next(filter(holds, free), None))
        if shard is None:
            time.sleep(COURTESY_S)
            shard = self._take(task, shards, lambda free: next(filter(holds, free), free[0]))
        assert shard is not None
        return shard

    def _take(self, task: int, shards: Sequence[int], choose: Callable[[list[int]], int | None]) -> int | None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            taken = self._taken()
            if task in taken:
                return taken[task]
            chosen = choose([shard for shard in shards if shard not in taken.values()])
            if chosen is not None:
                os.write(descriptor, f"{task} {chosen}\n".encode())
            return chosen
        finally:
            os.close(descriptor)

    def _taken(self) -> dict[int, int]:
        lines = (line.split() for line in self.path.read_text().splitlines())
        return {int(task): int(shard) for task, shard in lines}


def new_claims(folder: Path) -> FileClaims:
    """Create the shard claims of a batch that is being planned. Deletes the claims of all but the last few batches."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    for number in numbers[:-KEPT]:
        (folder / str(number)).unlink(missing_ok=True)
    return FileClaims(folder / str(numbers[-1] + 1 if numbers else 0))


@dataclass(frozen=True)
class ClaimsOpener:
    """Creates the shard claims of a new batch, in the process that plans it."""

    folder: Path

    def __call__(self) -> FileClaims:
        return new_claims(self.folder)
