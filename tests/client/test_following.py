"""Following a stream or a view: one behaviour on every transport."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from penstock.client import Change, Client, Events, Following, Progress, Reset, ServerError, Snapshot
from penstock.schema import Event
from tests.client.suite import TRANSPORTS, Stage, connected, staged
from tests.network import Proxy, listening
from tests.serve.fakes import background, run, until

TOTAL = 300


class Reading(Event, id="n"):
    n: int
    text: str = ""


on_every_transport = pytest.mark.parametrize("transport", TRANSPORTS)


def numbers(message: object) -> list[int]:
    return [event["n"] for event in message.events] if isinstance(message, Events) else []


@on_every_transport
def test_a_stream_is_followed_from_now_on_and_each_event_comes_once(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1, 2)
            async with client.follow(stream="x", transport=transport) as messages:
                assert isinstance(await anext(messages), Progress)
                stage.write(3)
                stage.write(4, 5)
                found: list[int] = []
                while len(found) < 3:
                    found += numbers(await anext(messages))
        assert found == [3, 4, 5]

    run(main())


@on_every_transport
def test_events_become_values_of_a_class(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(7)
            async with client.follow(stream="x", of=Reading, since="earliest", transport=transport) as messages:
                async for message in messages:
                    if isinstance(message, Events):
                        assert list(message.events) == [Reading(n=7)]
                        return

    run(main())


@on_every_transport
def test_a_view_is_its_rows_and_then_each_change(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.view.put({"a": 1, "b": 2})
            async with client.follow(view="x", transport=transport) as messages:
                first = await anext(messages)
                assert isinstance(first, Snapshot)
                assert first.rows == [{"k": "a", "v": 1}, {"k": "b", "v": 2}]
                stage.view.put({"a": 5}, deletes=["b"])
                async for message in messages:
                    if isinstance(message, Change):
                        assert (message.upserts, message.deletes) == ([{"k": "a", "v": 5}], [{"k": "b"}])
                        assert messages.cursor == message.cursor
                        return

    run(main())


@on_every_transport
def test_a_position_that_is_gone_is_told_and_then_what_there_is(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(1, 2, 3)
            async with client.follow(stream="x", since="earliest", transport=transport) as messages:
                assert numbers(await anext(messages)) == [1, 2, 3]
                cursor = messages.cursor
            stage.write(4, 5, 6)
            stage.log.trim(0, 5)
            stage.stream.wake()
            async with client.follow(stream="x", since=cursor, transport=transport) as messages:
                assert isinstance(await anext(messages), Reset)
                assert numbers(await anext(messages)) == [6]

    run(main())


@on_every_transport
def test_what_is_not_there_is_an_error_with_its_code(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            for wish in ({"view": "y"}, {"stream": "y"}):
                with pytest.raises(ServerError) as raised:
                    await anext(client.follow(**wish, transport=transport))
                assert (raised.value.code, raised.value.status) == ("not_found", 404)
            with pytest.raises(ServerError) as raised:
                await anext(client.follow(stream="x", since="rubbish", transport=transport))
            assert raised.value.code == "bad_cursor"

    run(main())


async def write(stage: Stage, chance: random.Random, proxy: Proxy) -> None:
    """Events and versions of the view, while the connections are cut."""
    number = 0
    while number < TOTAL:
        count = min(TOTAL - number, chance.randrange(1, 6))
        stage.log.write(chance.randrange(2), *range(number, number + count), at_s=number)
        stage.stream.wake()
        for each in range(number, number + count):
            stage.view.put({chance.choice("abcdef"): each}, deletes=chance.choice([[], ["a"]]))
        number += count
        await asyncio.sleep(chance.random() * 0.01)
    await until(lambda: proxy.cuts >= 5)
    proxy.calm = True


async def read_all(client: Client, transport: Any) -> list[int]:
    found: list[int] = []
    async with client.follow(stream="x", since="earliest", transport=transport) as messages:
        while len(found) < TOTAL:
            found += numbers(await anext(messages))
    return found


async def copy(client: Client, transport: Any, stage: Stage, proxy: Proxy) -> list[dict[str, Any]]:
    async with client.table("x", key=["k"], transport=transport) as table:
        async for _ in table:
            if proxy.calm and table.get("z") is not None:
                return table.rows
    raise AssertionError("it ended")


@pytest.mark.parametrize("seed", random.sample(range(10**6), 2))
@on_every_transport
def test_connections_that_are_cut_at_any_byte_cost_nothing_and_repeat_nothing(transport: Any, seed: int) -> None:
    """Two streams and a table on one client, through a network that cuts, truncates and delays."""
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def main() -> None:
        async with staged() as stage:
            proxy = Proxy(lambda: stage.port, random.Random(seed), bytes_max=3000)
            async with listening(proxy), connected(proxy.port) as client:
                async with background(write(stage, chance, proxy)):
                    reading = [asyncio.create_task(read_all(client, transport)) for _ in range(2)]
                    copying = asyncio.create_task(copy(client, transport, stage, proxy))
                    await until(lambda: proxy.calm)
                    stage.view.put({"z": 1})
                    for each in reading:
                        assert sorted(await each) == list(range(TOTAL))
                    rows = await copying
            assert {row["k"]: row["v"] for row in rows} == {
                key: int(raw.decode().split('"v": ')[1].rstrip("}")) for key, raw in stage.view.rows.items()
            }

    run(main())


@on_every_transport
def test_waiting_for_a_message_may_be_given_up_and_nothing_is_lost(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            async with client.follow(stream="x", transport=transport) as messages:
                found: list[int] = []
                tries = written = 0
                while len(found) < 20:
                    tries += 1
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            found += numbers(await anext(messages))
                    if written < 20 and messages.cursor is not None:
                        stage.write(written)
                        written += 1
        assert found == list(range(20))
        assert tries > 20

    run(main())


def test_closing_the_client_ends_what_is_followed() -> None:
    async def main() -> None:
        async with staged() as stage:
            async with connected(stage.port) as client:
                waiting = [
                    asyncio.create_task(to_the_end(client.follow(stream="x", transport=each))) for each in TRANSPORTS
                ]
                await asyncio.sleep(0)
            await asyncio.gather(*waiting)

    run(main())


async def to_the_end(messages: Following[Any]) -> None:
    async for _ in messages:
        pass
