"""Which worker runs which shard of a batch: the one that has it in memory, if it can.

Spark hands its tasks to whatever Python worker is free, and a worker that gets a shard it does not have must load it,
or catch up with what others did to it. So a task is not bound to a shard. It comes with a number, and the worker that
gets it takes a shard that is still to be had: one that it holds, if there is one. A task that is run again, since its
worker died, takes what it took before. So every shard is run by one task, whoever runs it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COURTESY_S = 0.02
"""How long a worker that holds none of the shards lets others choose first."""
KEPT = 4


@dataclass(frozen=True)
class Claims:
    """The shards of one planned batch that are taken: a line `TASK SHARD` for each, in a file of its own."""

    path: Path

    def take(self, task: int, shards: Sequence[int], holds: Callable[[int], bool]) -> int:
        """The shard that a task is to run. Each of so many tasks gets another one of so many shards."""
        found = self._take(task, shards, lambda free: next(filter(holds, free), None))
        if found is None:
            time.sleep(COURTESY_S)
            found = self._take(task, shards, lambda free: next(filter(holds, free), free[0]))
        assert found is not None
        return found

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


def new_claims(folder: Path) -> Claims:
    """For a batch that is being planned. Those of batches before the last few are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit())
    for number in numbers[:-KEPT]:
        (folder / str(number)).unlink(missing_ok=True)
    return Claims(folder / str(numbers[-1] + 1 if numbers else 0))
