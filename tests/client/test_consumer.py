"""The consumer: each message is processed once, and its effects are neither lost nor doubled."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.client import ClientError, Consumer, Events, GaveUp, Intent, Reset, Snapshot, Tx
from penstock.core.errors import AlreadyRunning
from tests.client.suite import QUICK, TRANSPORTS, Stage, connected, staged
from tests.clocks import until
from tests.serve.fakes import run


async def note(message: Any, tx: Tx) -> None:
    """Store each number; a second time would fail."""
    tx.execute("CREATE TABLE IF NOT EXISTS seen (n INTEGER PRIMARY KEY)")
    if isinstance(message, Events):
        tx.executemany("INSERT INTO seen VALUES (?)", [(event["n"],) for event in message.events])


def seen(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        with suppress(sqlite3.OperationalError):
            return [row[0] for row in connection.execute("SELECT n FROM seen ORDER BY n")]
    return []


async def running(consumer: Consumer[Any], condition: Callable[[], bool]) -> None:
    """Run until a condition holds, or it fails."""
    async with consumer:
        task = asyncio.create_task(consumer.run())
        await until(lambda: condition() or task.done())
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_consumer_goes_on_where_it_was(tmp_path: Path, transport: Any) -> None:
    path = tmp_path / "seen.db"

    async def consume(stage: Stage, last: int) -> None:
        async with connected(stage.port) as client:
            following = client.follow(stream="x", since="earliest", transport=transport)
            await running(Consumer(following, path, note), lambda: last in seen(path))

    async def main() -> None:
        async with staged() as stage:
            stage.write(*range(20))
            await consume(stage, 19)
            stage.write(*range(20, 40))
            await consume(stage, 39)
        assert seen(path) == list(range(40))

    run(main())


def test_a_message_whose_handler_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    fails = [True]

    async def handle(message: Any, tx: Tx) -> None:
        await note(message, tx)
        if isinstance(message, Events) and fails[0]:
            tx.intend("mail", {})
            raise ZeroDivisionError

    async def mail(intent: Intent) -> None:
        raise AssertionError("the message was undone")

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1, 2)
            consumer = Consumer(client.follow(stream="x", since="earliest"), path, handle, effects={"mail": mail})
            with pytest.raises(ZeroDivisionError):
                await running(consumer, lambda: False)
            assert seen(path) == []
            fails[0] = False
            again = Consumer(client.follow(stream="x", since="earliest"), path, handle, effects={"mail": mail})
            await running(again, lambda: seen(path) == [1, 2])

    run(main())


def test_an_effect_is_tried_again_with_the_same_id_until_it_is_made(tmp_path: Path) -> None:
    tries: list[Intent] = []

    async def handle(message: Any, tx: Tx) -> None:
        for event in message.events if isinstance(message, Events) else ():
            tx.intend("mail", event)

    async def mail(intent: Intent) -> None:
        tries.append(intent)
        if len(tries) % 3:
            raise OSError("not now")

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1)
            stage.write(2)
            following = client.follow(stream="x", since="earliest")
            consumer = Consumer(following, tmp_path / "c.db", handle, effects={"mail": mail}, timing=QUICK)
            await running(consumer, lambda: len(tries) == 6 and not consumer.pending)
        assert [intent.payload["n"] for intent in tries] == [1, 1, 1, 2, 2, 2]
        assert len({intent.id for intent in tries}) == 2

    run(main())


def test_an_effect_that_gives_up_is_kept_aside_and_can_be_made_later(tmp_path: Path) -> None:
    effect_ids: list[str] = []
    willing = [False]

    async def handle(message: Any, tx: Tx) -> None:
        for event in message.events if isinstance(message, Events) else ():
            tx.intend("mail", event)

    async def mail(intent: Intent) -> None:
        if intent.payload["n"] == 1 and not willing[0]:
            raise GaveUp("no such address")
        effect_ids.append(intent.id)

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1)
            stage.write(2)
            following = client.follow(stream="x", since="earliest")
            async with Consumer(following, tmp_path / "c.db", handle, effects={"mail": mail}) as consumer:
                task = asyncio.create_task(consumer.run())
                await until(lambda: len(effect_ids) == 1)
                [given_up] = await consumer.failed()
                assert (given_up.payload["n"], given_up.failed) == (1, "no such address")
                willing[0] = True
                await consumer.retry(given_up)
                await until(lambda: effect_ids[1:] == [given_up.id])
                await until(lambda: not consumer.pending)
                assert await consumer.failed() == []
                task.cancel()

    run(main())


def test_over_the_bound_on_intents_no_new_message_is_begun(tmp_path: Path) -> None:
    handled: list[int] = []
    gate = asyncio.Event()

    async def handle(message: Any, tx: Tx) -> None:
        for event in message.events if isinstance(message, Events) else ():
            handled.append(event["n"])
            tx.intend("mail", event)

    async def mail(intent: Intent) -> None:
        await gate.wait()

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            following = client.follow(stream="x", since="earliest")
            consumer = Consumer(following, tmp_path / "c.db", handle, effects={"mail": mail}, intents_max=3)
            async with consumer:
                task = asyncio.create_task(consumer.run())
                for number in range(8):
                    stage.write(number)
                    await until(lambda: len(handled) == min(number + 1, 3))  # noqa: B023
                    assert consumer.pending <= 3
                gate.set()
                await until(lambda: len(handled) == 8 and not consumer.pending)
                task.cancel()

    run(main())


def test_a_reset_is_handed_to_the_handler_once(tmp_path: Path) -> None:
    path, resets = tmp_path / "seen.db", list[str]()

    async def handle(message: Any, tx: Tx) -> None:
        await note(message, tx)
        if isinstance(message, Reset):
            resets.append(message.reason)

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1, 2, 3)
            consumer = Consumer(client.follow(stream="x", since="earliest"), path, handle)
            await running(consumer, lambda: seen(path) == [1, 2, 3])
            stage.write(4, 5, 6)
            stage.log.trim(0, 5)
            for _ in range(2):
                consumer = Consumer(client.follow(stream="x", since="earliest"), path, handle)
                await running(consumer, lambda: seen(path) == [1, 2, 3, 6])
        assert len(resets) == 1

    run(main())


def test_one_file_has_one_consumer_of_one_target(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(1) as client:
            async with Consumer(client.follow(stream="x"), tmp_path / "c.db", note):
                with pytest.raises(AlreadyRunning):
                    await Consumer(client.follow(stream="x"), tmp_path / "c.db", note).__aenter__()
            with pytest.raises(ClientError, match="belongs to a consumer of"):
                await Consumer(client.follow(stream="y"), tmp_path / "c.db", note).__aenter__()
            async with Consumer(client.follow(stream="x"), tmp_path / "c.db", note):
                pass

    run(main())


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "END",
        "DELETE FROM penstock_intents",
        "DELETE FROM head",
        "INSERT INTO head VALUES (1, 2, 3)",
    ],
)
def test_a_handler_can_not_end_the_transaction_or_touch_the_consumers_own_tables(
    tmp_path: Path, statement: str
) -> None:
    async def handle(message: Any, tx: Tx) -> None:
        tx.execute("CREATE TABLE mine (n INTEGER)")
        tx.execute(statement)

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1)
            consumer = Consumer(client.follow(stream="x", since="earliest"), tmp_path / "c.db", handle)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                await running(consumer, lambda: False)

    run(main())
    with sqlite3.connect(tmp_path / "c.db") as connection:
        assert ("mine",) not in connection.execute("SELECT name FROM sqlite_master").fetchall()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_consumer_of_a_view_ends_with_its_rows(tmp_path: Path, transport: Any) -> None:
    path = tmp_path / "rows.db"

    async def handle(message: Any, tx: Tx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS copy (k TEXT PRIMARY KEY, v INTEGER)")
        if isinstance(message, Snapshot | Reset):
            tx.execute("DELETE FROM copy")
        rows = message.rows if isinstance(message, Snapshot) else getattr(message, "upserts", ())
        tx.executemany("INSERT OR REPLACE INTO copy VALUES (?, ?)", [(row["k"], row["v"]) for row in rows])
        tx.executemany("DELETE FROM copy WHERE k = ?", [(key["k"],) for key in getattr(message, "deletes", ())])

    def copied() -> dict[str, int]:
        with sqlite3.connect(path) as connection, suppress(sqlite3.OperationalError):
            return dict(connection.execute("SELECT k, v FROM copy"))
        return {}

    async def consume(stage: Stage, wanted: dict[str, int]) -> None:
        async with connected(stage.port) as client:
            following = client.follow(view="x", transport=transport)
            await running(Consumer(following, path, handle), lambda: copied() == wanted)
        assert copied() == wanted

    async def main() -> None:
        async with staged(kept=3) as stage:
            stage.view.put({"a": 1, "b": 2})
            await consume(stage, {"a": 1, "b": 2})
            stage.view.put({"c": 3}, deletes=["a"])
            await consume(stage, {"b": 2, "c": 3})
            for number in range(10):
                stage.view.put({"d": number})
            await consume(stage, {"b": 2, "c": 3, "d": 9})

    run(main())
