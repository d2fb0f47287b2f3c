from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.contracts import LogReader
from penstock.queue import EmbeddedLog, EmbeddedLogOpener


@dataclass
class EmbeddedHome:
    directory: Path

    def open(self) -> EmbeddedLog:
        return EmbeddedLog(self.directory, disk_reserve_bytes=0)

    def opener(self) -> Callable[[], LogReader]:
        return EmbeddedLogOpener(self.directory)


@pytest.fixture
def home(tmp_path: Path) -> EmbeddedHome:
    return EmbeddedHome(tmp_path / "streams")
