"""The producer: each accepted message arrives once, in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from penstock.client import Client, ClientError, OutboxFull, ServerError
from penstock.client.outbox import Outbox
from penstock.client.producer import Producer
from penstock.core.errors import AlreadyRunning, DiskFull
from tests.client.scripted import websocket
from tests.client.suite import QUICK, connected
from tests.clocks import until
from tests.collect.served import Served, serving
from tests.collect.support import fix
from tests.serve.fakes import run

by_both_ways = pytest.mark.parametrize("transport", ["websocket", "post"])


def ids(served: Served, stream: str = "fixes") -> list[str]:
    return [row["fix_id"] for row in served.log.events(stream)]


@asynccontextmanager
async def producing(served: Served, path: Path, stream: str = "fixes", **options: Any) -> AsyncIterator[Producer]:
    async with connected(served.port) as client, Producer(client, stream, path / "outbox.db", **options) as producer:
        yield producer


@by_both_ways
def test_events_arrive_in_the_order_in_which_they_were_sent(tmp_path: Path, transport: Any) -> None:
    async def main() -> None:
        with serving() as served:
            async with producing(served, tmp_path, transport=transport) as producer:
                for number in range(50):
                    await producer.send(fix(number))
                await producer.send([fix(50), fix(51)])
                await producer.flush(10)
                assert producer.pending == 0
            assert ids(served) == [f"f{number}" for number in range(52)]

    run(main())


@by_both_ways
def test_what_was_taken_while_the_server_was_away_is_sent_by_the_next_producer(tmp_path: Path, transport: Any) -> None:
    async def main() -> None:
        async with connected(1) as client, Producer(client, "fixes", tmp_path / "outbox.db") as producer:
            for number in range(20):
                await producer.send(fix(number))
            with pytest.raises(TimeoutError):
                await producer.flush(0.05)
        with serving() as served:
            async with producing(served, tmp_path, transport=transport) as producer:
                assert producer.pending == 20
                await producer.send(fix(20))
                await producer.flush(10)
            assert ids(served) == [f"f{number}" for number in range(21)]

    run(main())


@by_both_ways
def test_an_event_that_does_not_fit_is_kept_and_told_and_blocks_nobody(tmp_path: Path, transport: Any) -> None:
    async def main() -> None:
        rejections: list[Any] = []
        with serving() as served:
            async with producing(served, tmp_path, transport=transport, on_rejected=rejections.append) as producer:
                await producer.send(fix(1))
                await producer.send({"fix_id": "no more"})
                await producer.send([fix(2), {"vehicle": 7}])
                await producer.send(fix(3))
                await producer.flush(10)
                kept = await producer.rejected()
                assert [(rejection.events, [error["index"] for error in rejection.errors]) for rejection in kept] == [
                    ([{"fix_id": "no more"}], [0]),
                    ([fix(2), {"vehicle": 7}], [1]),
                ]
                assert rejections == kept
                await producer.forget_rejected(kept[0])
                assert await producer.rejected() == kept[1:]
            assert ids(served) == ["f1", "f2", "f3"]

    run(main())


def test_a_full_outbox_refuses_if_it_was_told_to(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "outbox.db"
        async with connected(1) as client:
            async with Producer(client, "fixes", path, bytes_max=500, when_full="refuse") as producer:
                for number in range(4):
                    await producer.send(fix(number))
                with pytest.raises(OutboxFull):
                    await producer.send(fix(4))
                before = producer.pending
            async with Producer(client, "fixes", path, bytes_max=500, when_full="refuse") as producer:
                assert producer.pending == before, "what was refused is not there, what was taken is"
                with pytest.raises(OutboxFull):
                    await producer.send(fix(10))

    run(main())


def test_a_full_outbox_waits_until_something_has_arrived(tmp_path: Path) -> None:
    async def main() -> None:
        with serving() as served:
            served.log.gate.clear()
            async with producing(served, tmp_path, bytes_max=500) as producer:
                sending = asyncio.create_task(send_all(producer, 40))
                await until(lambda: 500 - producer.pending * 150 < 150)
                assert not sending.done()
                assert producer.pending < 10
                served.log.gate.set()
                await sending
                await producer.flush(10)
            assert ids(served) == [f"f{number}" for number in range(40)]

    run(main())


async def send_all(producer: Producer, count: int) -> None:
    for number in range(count):
        await producer.send(fix(number))


@by_both_ways
def test_a_stream_that_is_not_there_is_told_and_the_events_stay(tmp_path: Path, transport: Any) -> None:
    async def main() -> None:
        with serving() as served:
            async with producing(served, tmp_path, "elsewhere", transport=transport) as producer:
                await producer.send(fix(1))
                with pytest.raises(ServerError) as raised:
                    await producer.flush(10)
                assert raised.value.code == "not_found"
                assert producer.pending == 1

    run(main())


def test_one_file_has_one_producer(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(1) as client, Producer(client, "fixes", tmp_path / "outbox.db"):
            with pytest.raises(AlreadyRunning):
                await Producer(client, "fixes", tmp_path / "outbox.db").__aenter__()

    run(main())


def test_a_message_that_the_server_would_not_take_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(1) as client, Producer(client, "raw", tmp_path / "outbox.db") as producer:
            with pytest.raises(ClientError, match="at most"):
                await producer.send({"text": "x" * (1024 * 1024)})
            assert producer.pending == 0

    run(main())


@by_both_ways
def test_an_event_of_a_stream_without_a_class_is_sent_as_it_is(tmp_path: Path, transport: Any) -> None:
    async def main() -> None:
        with serving() as served:
            async with producing(served, tmp_path, "raw", transport=transport) as producer:
                await producer.send({"reading": 1})
                await producer.flush(10)
            assert [json.loads(row["data"]) for row in served.log.events("raw")] == [{"reading": 1}]

    run(main())


def test_a_full_disk_is_told_to_those_who_send_and_costs_nothing_that_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = [False]
    commit = Outbox.commit

    def failing(outbox: Outbox, *given: Any) -> Any:
        if is_full[0]:
            raise DiskFull("no space left")
        return commit(outbox, *given)

    monkeypatch.setattr(Outbox, "commit", failing)
    monkeypatch.setattr("penstock.client.producer.DISK_FULL_S", 0.01)

    async def main() -> None:
        with serving() as served:
            async with producing(served, tmp_path) as producer:
                served.log.gate.clear()
                await producer.send(fix(0))
                is_full[0] = True
                with pytest.raises(DiskFull):
                    await producer.send(fix(1))
                served.log.gate.set()
                await until(lambda: ids(served) == ["f0"])
                is_full[0] = False
                await producer.send(fix(2))
                await producer.flush(10)
            assert ids(served) == ["f0", "f2"]

    run(main())


def test_those_who_wait_for_room_keep_their_places(tmp_path: Path) -> None:
    async def main() -> None:
        with serving() as served:
            served.log.gate.clear()
            async with producing(served, tmp_path, bytes_max=400) as producer:
                sending = [
                    asyncio.create_task(producer.send(fix(number, "v" * (1 + 50 * (number % 2)))))
                    for number in range(20)
                ]
                await until(lambda: producer.pending >= 2)
                served.log.gate.set()
                await asyncio.gather(*sending)
                await producer.flush(10)
            assert ids(served) == [f"f{number}" for number in range(20)]

    run(main())


@by_both_ways
def test_a_number_is_never_used_twice_though_nothing_is_left_in_the_file(tmp_path: Path, transport: Any) -> None:
    """Events without an id are identified by their numbers: with a reused one, a new event would be treated as an old
    one."""

    async def main() -> None:
        with serving() as served:
            for number in range(3):
                async with producing(served, tmp_path, "raw", transport=transport) as producer:
                    await producer.send({"reading": number})
                    await producer.flush(10)
            assert [json.loads(row["data"])["reading"] for row in served.log.events("raw")] == [0, 1, 2]

    run(main())


def test_what_a_server_says_that_makes_no_sense_is_told_and_blocks_no_later_try(tmp_path: Path) -> None:
    said = [{"event": "open"}, {"event": "hello"}, {"event": "open", "window": 10}]

    async def talk(connection: ServerConnection, number: int) -> None:
        await connection.send(json.dumps(said[min(number, 3) - 1]))
        async for raw in connection:
            await connection.send(json.dumps({"event": "ack", "seq": json.loads(raw)["seq"], "shed": 1}))

    async def main() -> None:
        async with websocket(talk) as url, Client(url, timing=QUICK) as client:
            async with Producer(client, "x", tmp_path / "outbox.db") as producer:
                await producer.send({"a": 1})
                with suppress(ClientError):  # until it has reached the third
                    await producer.flush(10)
                await until(lambda: not producer.pending)
                assert producer.error is None
                assert producer.shed == 1

    run(main())


def test_one_who_is_told_of_rejected_events_and_fails_does_not_stop_the_producer(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        with serving() as served:
            async with producing(served, tmp_path, on_rejected=fail) as producer:
                await producer.send({"fix_id": "no more"})
                await producer.flush(10)
                await producer.send(fix(1))
                await producer.flush(10)
                assert len(await producer.rejected()) == 1
            assert ids(served) == ["f1"]

    run(main())
