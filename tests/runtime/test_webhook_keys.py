"""A webhook belongs to the key that registered it, even after a rotation, and to no other key of the same name."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec

from penstock.core.access import KeyFile
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.webhooks import _HOOK, WebhookStore
from tests.harness import wait_for
from tests.runtime.guarded import Running, running
from tests.runtime.hooked import QUICK, Receiver, asking, gateway, receiver, registered, state_is

__all__ = ["gateway", "receiver"]


def readded(gateway: Running, name: str, *grants: str) -> str:
    """Revoke a key and add another of the same name, before the gateway checks."""
    gateway.keys.revoke(name)
    return gateway.add(name, *grants)


def test_a_webhook_stops_with_its_key_though_another_of_the_same_name_is_added(
    gateway: Running, receiver: Receiver
) -> None:
    mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
    with asking(gateway, mine) as ask, asking(gateway, boss) as admin:
        id = registered(ask, receiver)
        gateway.post("a", boss, {"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        readded(gateway, "mine", "consume:a")
        gateway.post("a", boss, {"k": "one", "n": 2})
        webhook = state_is(admin, id, "stopped")
        assert "key:mine no longer has access" in webhook["reason"]
        assert len(receiver.bodies) == 1


def test_a_key_does_not_get_the_webhooks_of_an_earlier_one_of_its_name(gateway: Running, receiver: Receiver) -> None:
    """It can neither see nor resume them; and it may reuse their names."""
    mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
    with asking(gateway, mine) as ask:
        id = registered(ask, receiver, name="alarm")
    with asking(gateway, readded(gateway, "mine", "consume:a")) as ask, asking(gateway, boss) as admin:
        assert ask("GET") == {"webhooks": []}
        for method, path in (("GET", ""), ("GET", "/dead"), ("POST", "/resume"), ("DELETE", "")):
            ask(method, f"/{id}{path}", expect=404)
        registered(ask, receiver, name="alarm")
        state_is(admin, id, "stopped")
        assert admin("POST", f"/{id}/resume")["owner"] == "key:boss"


def test_a_webhook_that_was_resumed_by_an_admin_stops_with_the_key_of_that_admin(
    gateway: Running, receiver: Receiver
) -> None:
    mine, boss, other = gateway.add("mine", "consume:a"), gateway.add("boss", "admin"), gateway.add("other", "admin")
    with asking(gateway, mine) as ask:
        id = registered(ask, receiver)
    gateway.keys.revoke("mine")
    gateway.reload()
    with asking(gateway, boss) as admin, asking(gateway, other) as another:
        state_is(another, id, "stopped")
        assert admin("POST", f"/{id}/resume")["owner"] == "key:boss"
        readded(gateway, "boss", "admin")
        assert "key:boss no longer has access" in state_is(another, id, "stopped")["reason"]


def test_a_webhook_goes_on_with_a_rotated_key_across_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path, settings=QUICK) as gateway:
        mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
        with asking(gateway, mine) as ask:
            id = registered(ask, receiver)
    _, text = KeyFile(DataDirectory(tmp_path).keys).rotate("mine", timedelta(0))
    with running(tmp_path, settings=QUICK) as gateway, asking(gateway, text) as ask:
        gateway.post("a", boss, {"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        assert ask("GET", f"/{id}")["state"] == "active"


def forget_keys(path: Path) -> None:
    """Make the file an old one, when webhooks had only the name of their owner."""

    def rewrite(store: WebhookStore) -> None:
        for hook, _ in store.hooks():
            data = msgspec.structs.asdict(hook)
            del data["owner_key"]
            store._put_bytes(_HOOK, hook.id, 0, msgspec.msgpack.encode(data))

    async def change() -> None:
        store = WebhookStore(path, lambda error: None)
        await store.read(lambda: rewrite(store))
        await store.close()

    asyncio.run(change())


def stored_without_key(directory: Path, receiver: Receiver) -> tuple[str, str, str]:
    """Register a webhook and forget its key. Returns its id, the key of its owner and the key of an admin."""
    with running(directory, settings=QUICK) as gateway:
        mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
        with asking(gateway, mine) as ask:
            id = registered(ask, receiver)
    forget_keys(DataDirectory(directory).webhooks)
    return id, mine, boss


def test_a_webhook_that_was_stored_without_its_key_goes_on_with_the_key_that_was_there_by_then(
    tmp_path: Path, receiver: Receiver
) -> None:
    """It stops with the key, as other webhooks do."""
    id, mine, boss = stored_without_key(tmp_path, receiver)
    with running(tmp_path, settings=QUICK) as gateway, asking(gateway, boss) as admin:
        gateway.post("a", boss, {"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        with asking(gateway, mine) as ask:
            assert ask("GET", f"/{id}")["state"] == "active"
        readded(gateway, "mine", "consume:a")
        state_is(admin, id, "stopped")


def test_a_webhook_that_was_stored_without_its_key_does_not_go_to_a_later_key(
    tmp_path: Path, receiver: Receiver
) -> None:
    id, _, boss = stored_without_key(tmp_path, receiver)
    keys = KeyFile(DataDirectory(tmp_path).keys)
    keys.revoke("mine")
    keys.add("mine", ["consume:a"])
    with running(tmp_path, settings=QUICK) as gateway, asking(gateway, boss) as admin:
        state_is(admin, id, "stopped")
