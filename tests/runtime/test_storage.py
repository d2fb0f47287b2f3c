"""The storage in a data directory meets the guarantees of the contract."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import ClassVar

from penstock.runtime.embedded.storage import EmbeddedStorage, open_storage
from penstock.runtime.storage import Storage
from tests.contracts.ownership import AppRecordsContract, OwnershipContract, PurgeContract
from tests.contracts.rebuilds import NextViewContract
from tests.contracts.storage import CommitContract, ReplacementContract


def new_storage(folder: Path) -> EmbeddedStorage:
    """Return an empty data directory."""
    storage = open_storage(folder)
    storage.create()
    return storage


class TestEmbeddedStorage(CommitContract):
    POINTS = (
        "handler.after_intent",
        "queue.before_commit@1",
        "queue.after_commit@1",
        "queue.before_commit@2",
        "queue.after_commit@2",
        "queue.before_commit@3",
        "queue.after_commit@3",
        "ledger.before_commit@1",
        "ledger.after_commit@1",
        "handler.after_append",
        "ledger.before_commit@2",
        "ledger.after_commit@2",
    )
    INTENDED = "handler.after_intent"

    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


class TestEmbeddedReplacement(ReplacementContract):
    POINTS = ("renewal.after_rows", "renewal.before_adopt", "renewal.after_adopt")

    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


class TestEmbeddedNextView(NextViewContract):
    POINTS: ClassVar = {"rebuild.before_mark": False, "rebuild.after_mark": True}

    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


class TestEmbeddedOwnership(OwnershipContract):
    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


class TestEmbeddedPurge(PurgeContract):
    POINTS = ("purge.intended", "purge.removing@1", "purge.removing@4", "purge.forgotten")

    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


class TestEmbeddedAppRecords(AppRecordsContract):
    def fresh(self, folder: Path) -> Storage:
        return new_storage(folder)


def test_a_storage_can_be_sent_to_another_process(tmp_path: Path) -> None:
    storage: EmbeddedStorage = pickle.loads(pickle.dumps(open_storage(tmp_path)))
    assert storage == open_storage(tmp_path)
    assert pickle.loads(pickle.dumps(storage.shard_opener("sales"))) == storage.shard_opener("sales")
    assert hash(storage.shard_opener("sales")) == hash(storage.shard_opener("sales"))


def test_opening_a_storage_creates_nothing(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "nothing")
    assert not storage.exists()
    assert (storage.owner(), storage.last_owner(), storage.handled("sales"), storage.rebuilt("sales")) == (None,) * 4
    assert storage.stored() == {}
    assert not (tmp_path / "nothing").exists()
