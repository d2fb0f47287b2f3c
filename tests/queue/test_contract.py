from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.queue import gaps
from tests.contracts.catalog import LogCatalogContract, OpenLog
from tests.contracts.log import LogChanges, LogContract, LogHome, batch, spec
from tests.contracts.watch import WakingWatchContract, WatchHome
from tests.queue.conftest import EmbeddedHome


class TestEmbeddedLog(LogContract):
    """The embedded log meets every guarantee of the contract."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> LogHome:
        return EmbeddedHome(tmp_path / "streams")


class TestEmbeddedLogWithGaps(LogContract):
    """The embedded log meets every guarantee when it skips offsets, as other logs do."""

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogHome:
        monkeypatch.setenv(gaps.VARIABLE, os.environ["TEST_SEED"])
        return EmbeddedHome(tmp_path / "streams")


class TestCatalogOfEmbeddedLog(LogCatalogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> OpenLog:
        return EmbeddedHome(tmp_path / "streams").open


class TestCatalogOfEmbeddedLogWithGaps(TestCatalogOfEmbeddedLog):
    @pytest.fixture
    def open_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenLog:
        monkeypatch.setenv(gaps.VARIABLE, os.environ["TEST_SEED"])
        return EmbeddedHome(tmp_path / "streams").open


class TestWatchOfEmbeddedLog(WakingWatchContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> Iterator[WatchHome]:
        log = EmbeddedHome(tmp_path / "streams").open()
        log.declare(spec())
        yield LogChanges(log, lambda number: log.append("fixes", 0, batch([number]), producer="p", sequence=number))
        log.close()
