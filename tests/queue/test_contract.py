from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.log import LogContract, LogHome
from tests.queue.conftest import EmbeddedHome


class TestEmbeddedLog(LogContract):
    """The embedded log keeps every promise of the contract."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> LogHome:
        return EmbeddedHome(tmp_path / "streams")
