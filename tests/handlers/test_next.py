"""Prepared state of a rebuilt handler in a data directory meets the guarantees of the contract, and damage is
noticed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core import files
from penstock.core.errors import Damaged
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.next_handler import EmbeddedNextHandler
from penstock.runtime.storage import Storage
from tests.contracts.rebuilds import POSITION, PREPARED, ROWS, NextHandlerContract, shard
from tests.runtime.test_storage import new_storage

CHECKSUM_BYTES = 4
"""Without its checksum, the file is as an earlier version wrote it."""


class TestEmbeddedNextHandler(NextHandlerContract):
    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


@pytest.fixture
def prepared(tmp_path: Path) -> EmbeddedNextHandler:
    following = EmbeddedNextHandler(DataDirectory(tmp_path / "data"), "stock")
    following.write(PREPARED, {0: (shard("tea"), POSITION)}, ROWS)
    return following


def test_the_mark_is_removed_durably_before_anything_else(
    prepared: EmbeddedNextHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the mark could be back after a power cut, beside half of the state or another one's."""
    seen: list[tuple[bool, bool]] = []

    def sync(folder: Path) -> None:
        seen.append(((folder / "prepared.json").exists(), (folder / "rows.arrow").exists()))

    monkeypatch.setattr(files, "sync_directory", sync)
    prepared.remove()
    assert seen == [(False, True)]


def test_every_flipped_byte_and_every_length_of_the_rows_is_noticed(prepared: EmbeddedNextHandler) -> None:
    path = prepared.folder / "rows.arrow"
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(Damaged, match=r"rows.arrow is damaged; remove"):
            prepared.rows()
        path.write_bytes(data[:position])
        if position != len(data) - CHECKSUM_BYTES:
            with pytest.raises(Damaged):
                prepared.rows()
    path.write_bytes(data)
    assert prepared.rows() == ROWS


def test_rows_that_an_earlier_version_prepared_without_a_checksum_are_read(prepared: EmbeddedNextHandler) -> None:
    with pa.OSFile(str(prepared.folder / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, ROWS.schema) as writer:
        writer.write_table(ROWS)
    assert prepared.rows() == ROWS
