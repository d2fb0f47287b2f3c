from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.core.contracts import AdmissionLog, BlockingLogReader, Retention
from penstock.queue import EmbeddedLog, EmbeddedLogOpener


@dataclass
class EmbeddedHome:
    directory: Path

    def open(self) -> EmbeddedLog:
        return EmbeddedLog(self.directory, disk_reserve_bytes=0)

    def trim(self, log: AdmissionLog, stream: str, before: Mapping[int, int]) -> None:
        assert isinstance(log, EmbeddedLog)
        log.trim(stream, Retention(timedelta(0), 0, {**log.starts(stream), **before}))

    def opener(self) -> Callable[[], BlockingLogReader]:
        return EmbeddedLogOpener(self.directory)


@pytest.fixture
def home(tmp_path: Path) -> EmbeddedHome:
    return EmbeddedHome(tmp_path / "streams")
