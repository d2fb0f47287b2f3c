"""Assignment of test files to processes: Spark keeps a core busy, and most other tests wait for something.

Spark is started dozens of times, in half the time with an archive of its classes. If there is none yet, it is created
while other tests run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK_LANES = 2
"""The number of processes that begin with the files with Spark; the others come to them when nothing else is left."""


class Lanes(LoadFileScheduling):
    """Assigns whole files to processes, as the option `loadfile` does, each process beginning with its kind of
    files."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._making: subprocess.Popen[bytes] | None = None

    def schedule(self) -> None:
        if self.collection is None and any(map(self._has_spark, self._files())):
            from penstock.analyze.archive import start_archiving

            self._making = start_archiving()
        super().schedule()

    def _files(self) -> set[str]:
        """Return all files that the processes have collected."""
        return {item.split("::")[0] for collection in self.registered_collections.values() for item in collection}

    def _assign_work_unit(self, node: Any) -> None:
        ready = self._making is None or self._making.poll() is not None
        wanted = ready and self.nodes.index(node) < SPARK_LANES
        file = next((file for file in self.workqueue if self._has_spark(file) == wanted), next(iter(self.workqueue)))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _has_spark(self, file: str) -> bool:
        return "mark.spark" in Path(self._root, file).read_text()
