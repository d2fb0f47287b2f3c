"""The file of webhooks meets the guarantees of the contract, and damage is noticed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from penstock.core.errors import Damaged, PenstockError, SyncFailed
from penstock.runtime.embedded import webhooks
from penstock.runtime.embedded.storage import open_storage
from penstock.runtime.embedded.webhooks import WebhookStore
from penstock.serve.webhooks.contracts import StoredWebhooks
from penstock.serve.webhooks.model import ChannelProgress
from tests.contracts.webhooks import OpenStore, StoredWebhooksContract, append, hook, never_fatal


class TestWebhookStore(StoredWebhooksContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        def opened() -> StoredWebhooks:
            return WebhookStore(tmp_path / "webhooks.db", never_fatal)

        return opened


@pytest.mark.parametrize("kind", ["message", "body", "place", "tally", "hook"])
def test_every_kind_of_record_is_checked(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        path = tmp_path / "webhooks.db"
        store = WebhookStore(path, never_fatal)
        await store.register(hook(), ChannelProgress("start"))
        await append(store, "a", 1, 2)
        await store.done("a", 2, hook().created)
        with sqlite3.connect(path) as file:
            file.execute("UPDATE record SET data = CAST(data || 'x' AS BLOB) WHERE kind = ?", (kind,))
        file.close()
        with pytest.raises(Damaged, match=f"the {kind} . of a is damaged"):
            await read_everything(store)
        await store.close()

    asyncio.run(main())


async def read_everything(store: StoredWebhooks) -> None:
    await store.read(store.hooks)
    await store.read(lambda: store.waiting("a"))
    await store.body("a", 1)


def test_a_disk_that_fails_is_reported_to_the_owner_and_to_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        failures: list[PenstockError] = []
        store = WebhookStore(tmp_path / "webhooks.db", failures.append)

        def fail(*_: object) -> None:
            raise SyncFailed("a write failed; nothing was acknowledged")

        monkeypatch.setattr(webhooks, "transaction", fail)
        with pytest.raises(SyncFailed):
            await store.register(hook(), ChannelProgress("start"))
        assert len(failures) == 1
        await store.close()

    asyncio.run(main())


def test_damaged_registrations_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asks without opening the store is not kept from other work by them."""

    async def main() -> None:
        storage = open_storage(tmp_path)
        assert storage.registered_webhooks() == []
        store = storage.open_webhooks(never_fatal)
        await store.register(hook(), ChannelProgress("start"))
        await store.close()
        assert [registered.id for registered in storage.registered_webhooks()] == ["a"]
        storage.directory.webhooks.write_bytes(b"rubbish" * 1000)
        assert storage.registered_webhooks() == []
        assert "cannot read the registered webhooks" in caplog.text

    asyncio.run(main())
