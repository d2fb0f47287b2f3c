"""Which process of tests runs which files: Spark keeps a core busy, and most other tests wait for something.

Spark is started dozens of times, with an archive of its classes in half the time. If there is none yet, it is made
while other tests run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK_LANES = 2
"""So many processes begin with the files with Spark; the others come to them when nothing else is left."""


class Lanes(LoadFileScheduling):
    """Files go to processes whole, as the option `loadfile` says, each process beginning with its kind of them."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._making: subprocess.Popen[bytes] | None = None

    def schedule(self) -> None:
        if self.collection is None and any(map(self._has_spark, self._files())):
            from penstock.analyze.archive import start_making

            self._making = start_making()
        super().schedule()

    def _files(self) -> set[str]:
        """All that the processes have found."""
        return {item.split("::")[0] for found in self.registered_collections.values() for item in found}

    def _assign_work_unit(self, node: Any) -> None:
        made = self._making is None or self._making.poll() is not None
        wanted = made and self.nodes.index(node) < SPARK_LANES
        found = next((file for file in self.workqueue if self._has_spark(file) == wanted), next(iter(self.workqueue)))
        self.workqueue.move_to_end(found, last=False)
        super()._assign_work_unit(node)

    def _has_spark(self, file: str) -> bool:
        return "mark.spark" in Path(self._root, file).read_text()
