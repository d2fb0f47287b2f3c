"""Files are opened with all required settings, or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.client.outbox import Outbox
from penstock.core import files
from penstock.core.errors import StorageError


def test_a_file_system_without_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite reports it in the result of a pragma, and continues with another journal."""
    real = sqlite3.connect

    def dotfile(address: str, **named: Any) -> Any:
        return real(f"{address}&vfs=unix-dotfile", **named)

    monkeypatch.setattr(sqlite3, "connect", dotfile)
    with pytest.raises(StorageError, match="write-ahead log"):
        files.connect(tmp_path / "x.db")


def test_an_outbox_is_for_the_eyes_of_its_owner(tmp_path: Path) -> None:
    """It has events that were not sent yet."""
    outbox = Outbox(tmp_path / "outbox.db")
    try:
        for path in tmp_path.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path.name
    finally:
        outbox.close()
