"""Registrations, waiting messages and tries outlive the process; a lost position is reported."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from penstock.core.access import ANYONE
from penstock.core.errors import BadCursor, Damaged
from penstock.core.settings import Settings
from penstock.runtime.embedded.webhooks import WebhookStore
from penstock.serve.webhooks.dispatcher import RuntimeCallbacks
from penstock.serve.webhooks.registry import Registry
from tests.clocks import until
from tests.serve.fakes import run
from tests.serve.webhooks.receiver import OK, Received, Receiver, receiving, status
from tests.serve.webhooks.rig import Rig, replaced, rigged, settled, wanted


async def down(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
    return status(500)


async def up(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
    return OK


def numbers(receiver: Receiver) -> list[int]:
    return [event["n"] for event in receiver.events()]


def test_what_waited_at_a_restart_is_sent_under_the_same_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving(down) as receiver:
            async with rigged(tmp_path) as rig:
                id = await rig.add(receiver)
                rig.write(1, 2, 3)
                await until(lambda: rig.get(id)["failures"] >= 5)  # of three at a time, so two are recorded
            before = {received.id for received in receiver.requests}
            rig.write(4)
            receiver.behave = up
            async with rigged(tmp_path, before=rig) as after:
                assert after.get(id)["pending"] == 3
                await until(lambda: len(receiver.taken) == 4)
                await settled(after, id)
                assert after.get(id)["failures"] >= 2
        assert numbers(receiver) == [1, 2, 3, 4]
        assert before <= receiver.taken.keys()

    run(main())


async def once_more(rig: Rig, id: str) -> None:
    """Wait until one more try has failed."""
    before = rig.get(id)["failures"]
    await until(lambda: rig.get(id)["failures"] > before)
    await noted(rig)


async def noted(rig: Rig) -> None:
    """Wait until all changes so far are durable."""
    assert rig.registry._dispatcher is not None
    await rig.registry._dispatcher.resources.store.read(lambda: None)


def test_tries_go_on_to_count_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        settings = replaced(webhook_tries_max=5, webhook_backoff_s=0.05)
        async with receiving(down) as receiver:
            rig: Rig | None = None
            id = ""
            for _ in range(5):
                async with rigged(tmp_path, settings, before=rig) as rig:
                    if not id:
                        id = await rig.add(receiver)
                        rig.write(1)
                    await once_more(rig, id)
            async with rigged(tmp_path, settings, before=rig) as rig:
                assert rig.get(id)["dead"] == 1
            assert len(receiver.requests) == 5

    run(main())


def test_a_message_whose_answer_was_not_noted_comes_again_under_its_id(tmp_path: Path) -> None:
    """The process ends between the answer and its record: only that knowledge is lost."""

    async def main() -> None:
        async with receiving() as receiver:
            async with rigged(tmp_path) as rig:
                id = await rig.add(receiver)
                dispatcher = rig.registry._dispatcher
                assert dispatcher is not None
                noted = asyncio.Event()

                async def never(*_: object) -> None:
                    await noted.wait()

                dispatcher.resources.store.done = never  # type: ignore[method-assign,assignment]
                rig.write(1)
                await until(lambda: len(receiver.requests) == 1)
            async with rigged(tmp_path, before=rig) as after:
                await until(lambda: len(receiver.requests) == 2)
                await settled(after, id)
        assert receiver.requests[0].id == receiver.requests[1].id
        assert receiver.requests[0].body == receiver.requests[1].body
        assert numbers(receiver) == [1]

    run(main())


def test_a_message_that_comes_again_because_it_was_not_noted_counts_once(tmp_path: Path) -> None:
    """The record of another message, made meanwhile, has not counted it."""

    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            assert rig.registry._dispatcher is not None
            store = rig.registry._dispatcher.resources.store
            note, first = store.done, asyncio.Event()

            async def late(id: str, number: int, at: datetime) -> None:
                if number == 1:
                    first.set()
                    await asyncio.Event().wait()
                await note(id, number, at)

            store.done = late  # type: ignore[method-assign]
            rig.write(1, key="a")
            await first.wait()
            rig.write(2, key="b")
            await until(lambda: len(receiver.taken) == 2)
            await until(lambda: rig.get(id)["delivered"] == 2)
            await noted(rig)
            await rig.registry.pause(ANYONE, id)
            assert (rig.get(id)["delivered"], rig.get(id)["pending"]) == (1, 1)
            store.done = note  # type: ignore[method-assign]
            await rig.registry.resume(ANYONE, id)
            await until(lambda: len(receiver.requests) == 3)
            await settled(rig, id)
            assert rig.get(id)["delivered"] == 2
        assert receiver.requests[0].id == receiver.requests[2].id

    run(main())


def test_a_place_that_is_gone_gives_a_reset_and_then_what_there_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver:
            async with rigged(tmp_path) as rig:
                id = await rig.add(receiver)
                rig.write(1)
                await until(lambda: len(receiver.taken) == 1)
                await settled(rig, id)
                await rig.registry.pause(ANYONE, id)
            rig.write(2, 3, 4)
            rig.log.trim(sum(b"a") % 2, 3)
            async with rigged(tmp_path, before=rig) as after:
                await after.registry.resume(ANYONE, id)
                await until(lambda: len(receiver.taken) == 3)
        assert receiver.kinds() == ["stream.change", "stream.reset", "stream.change"]
        assert numbers(receiver) == [1, 4]

    run(main())


def test_a_reset_goes_alone_after_all_before_it_and_before_all_after_it(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slow(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
        await gate.wait()
        return OK

    async def main() -> None:
        async with receiving(slow) as receiver, receiving() as witness, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            await rig.add(witness)
            for number in range(5):
                rig.write(number, key=f"key {number}")
            await until(lambda: receiver.open == 5 == len(witness.taken))
            rig.log.remake()
            rig.stream.wake()
            for number in range(5, 10):
                rig.write(number, key=f"key {number}")
            await until(lambda: rig.get(id)["pending"] == 11)
            await until(lambda: len(witness.taken) == 11)  # in this time the reset could have come here too
            assert receiver.open == 5
            gate.set()
            await until(lambda: len(receiver.taken) == 11)
        assert receiver.kinds() == ["stream.change"] * 5 + ["stream.reset"] + ["stream.change"] * 5
        assert sorted(numbers(receiver)[:5]) == [0, 1, 2, 3, 4]

    run(main())


def test_a_view_comes_as_a_snapshot_and_its_changes_by_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            rig.view.put({"a": 1, "b": 2})
            await rig.add(receiver, since="earliest", kind="view")
            await until(lambda: len(receiver.taken) == 1)
            rig.view.put({"a": 3, "c": 4}, deletes=["b"])
            await until(lambda: len(receiver.taken) == 4)
        snapshot, *changes = receiver.taken.values()
        assert snapshot.json["type"] == "view.snapshot"
        assert snapshot.data == {"rows": [{"k": "a", "v": 1}, {"k": "b", "v": 2}], "part": 1, "parts": 1}
        assert {change.json["type"] for change in changes} == {"view.change"}
        assert sorted((change.data for change in changes), key=str) == [
            {"upserts": [], "deletes": [{"k": "b"}]},
            {"upserts": [{"k": "a", "v": 3}], "deletes": []},
            {"upserts": [{"k": "c", "v": 4}], "deletes": []},
        ]

    run(main())


def test_a_view_whose_changes_are_gone_is_told_so_and_comes_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            rig.view.put({"a": 1})
            id = await rig.add(receiver, kind="view")
            await rig.registry.pause(ANYONE, id)
            rig.view.remake()
            rig.view.put({"b": 2})
            await rig.registry.resume(ANYONE, id)
            await until(lambda: len(receiver.taken) >= 2)
        assert receiver.kinds()[:2] == ["view.reset", "view.snapshot"]
        assert [*receiver.taken.values()][1].data["rows"] == [{"k": "b", "v": 2}]

    run(main())


def test_a_large_snapshot_comes_in_parts(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            rig.view.put({f"{number:05}": number for number in range(2500)})
            await rig.add(receiver, since="earliest", kind="view")
            await until(lambda: len(receiver.taken) == 3)
            assert receiver.most_open == 1
        parts = [message.data for message in receiver.taken.values()]
        assert [(part["part"], part["parts"], len(part["rows"])) for part in parts] == [
            (1, 3, 1000), (2, 3, 1000), (3, 3, 500),
        ]  # fmt: skip

    run(main())


def test_a_filter_picks_what_is_sent_and_the_place_moves_though_nothing_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver, where="n % 2 = 0", select="n, text")
            first = rig.get(id)["cursor"]
            rig.write(1, 3, 5)
            await until(lambda: rig.get(id)["cursor"] != first)
            assert receiver.requests == []
            rig.write(2, 3, 4)
            await until(lambda: len(receiver.taken) == 2)
        assert numbers(receiver) == [2, 4]

    run(main())


def test_a_webhook_begins_where_it_was_registered_though_it_is_verified_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving(willing=False) as receiver, rigged(tmp_path) as rig:
            rig.write(1)
            webhook, secret = await rig.registry.register(ANYONE, wanted(receiver.url), "latest")
            rig.write(2)
            await until(lambda: bool(receiver.challenges))
            assert receiver.requests == []
            receiver.willing, receiver.secrets = True, [secret]
            await rig.registry.verify(ANYONE, webhook["id"])
            await until(lambda: len(receiver.taken) == 1)
        assert numbers(receiver) == [2]

    run(main())


def test_redriving_sends_everything_after_a_cursor_again_as_new_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving() as receiver, rigged(tmp_path) as rig:
            id = await rig.add(receiver)
            start = rig.get(id)["cursor"]
            rig.write(1, 2, 3)
            await until(lambda: len(receiver.taken) == 3)
            await settled(rig, id)
            await rig.registry.redrive(ANYONE, id, start)
            await until(lambda: len(receiver.taken) == 6)
            await rig.registry.redrive(ANYONE, id, "earliest")
            await until(lambda: len(receiver.taken) == 9)
            with pytest.raises(BadCursor):
                await rig.registry.redrive(ANYONE, id, "rubbish")
            rig.write(4)
            await until(lambda: len(receiver.taken) == 10)
        assert numbers(receiver) == [1, 2, 3] * 3 + [4]

    run(main())


def test_redriving_drops_what_waits_and_keeps_dead_letters(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving(down) as receiver, rigged(tmp_path, replaced(webhook_tries_max=2)) as rig:
            id = await rig.add(receiver)
            rig.write(1)
            await until(lambda: rig.get(id)["dead"] == 1)
            await rig.registry.pause(ANYONE, id)
            rig.write(2)
            receiver.behave = up
            await rig.registry.redrive(ANYONE, id, "latest")
            await rig.registry.resume(ANYONE, id)
            rig.write(3)
            await until(lambda: len(receiver.taken) == 1)
            assert numbers(receiver) == [3]
            assert rig.get(id)["dead"] == 1
            assert await rig.registry.revive(ANYONE, id, None) == 1
            await until(lambda: len(receiver.taken) == 2)
        assert numbers(receiver) == [3, 1]

    run(main())


def test_the_file_is_for_its_owner_only_and_a_damaged_one_stops_webhooks_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving(down) as receiver, rigged(tmp_path) as rig:
            await rig.add(receiver)
            for path in tmp_path.glob("webhooks.db*"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        connection = sqlite3.connect(tmp_path / "webhooks.db")
        connection.execute("UPDATE record SET data = CAST(data || 'x' AS BLOB) WHERE kind = 'hook'")
        connection.commit()
        connection.close()
        async with rigged(tmp_path, before=rig) as after:
            assert isinstance(after.registry.broken, Damaged)
            assert after.registry.describe() == []
            with pytest.raises(Damaged):
                after.registry.listed(ANYONE)

    run(main())


def test_a_damaged_message_stops_its_webhook_and_is_not_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving(down) as receiver:
            async with rigged(tmp_path) as rig:
                id = await rig.add(receiver)
                rig.write(1, 2)
                await until(lambda: rig.get(id)["failures"] >= 1)
            connection = sqlite3.connect(tmp_path / "webhooks.db")
            connection.execute("UPDATE record SET data = CAST(replace(data, 'x', 'y') AS BLOB) WHERE kind = 'body'")
            connection.commit()
            connection.close()
            receiver.behave = up
            async with rigged(tmp_path, before=rig) as after:
                await until(lambda: "damaged" in (after.get(id)["reason"] or ""))
                assert after.get(id)["state"] == "stopped"
            assert not receiver.taken

    run(main())


def test_making_a_registry_opens_nothing(tmp_path: Path) -> None:
    Registry(
        partial(WebhookStore, tmp_path / "webhooks.db"),
        Settings(),
        RuntimeCallbacks(lambda name: None, lambda kind, of: ()),
    )
    assert [*tmp_path.iterdir()] == []
