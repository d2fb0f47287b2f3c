"""Following a stream or a view: the same behaviour on every transport."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from penstock.client import Change, Client, ClientError, Events, Following, Progress, Reset, ServerError, Snapshot
from penstock.core.schema import Event
from tests.client.suite import LIVELY, TRANSPORTS, Stage, connected, staged
from tests.clocks import until
from tests.network import Proxy, listening
from tests.serve.fakes import background, run

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
                event_numbers: list[int] = []
                while len(event_numbers) < 3:
                    event_numbers += numbers(await anext(messages))
        assert event_numbers == [3, 4, 5]

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


class Trip(Event):
    n: str


@on_every_transport
def test_a_message_that_does_not_fit_its_class_is_not_counted_as_given_out(transport: Any) -> None:
    """A client that continues from the cursor gets it again, for a class that it fits."""

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(7)
            async with client.follow(stream="x", of=Trip, since="earliest", transport=transport) as messages:
                with pytest.raises(ClientError, match="does not match Trip"):
                    await anext(messages)
                cursor = messages.cursor
            async with client.follow(stream="x", since=cursor, transport=transport) as messages:
                assert numbers(await anext(messages)) == [7]

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


@pytest.mark.usefixtures("dense")
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
                while isinstance(message := await anext(messages), Progress):
                    pass
                assert numbers(message) == [6]

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
    """Write events and versions of the view, while the connections are cut."""
    number = 0
    while number < TOTAL:
        count = min(TOTAL - number, chance.randrange(1, 6))
        stage.log.write(chance.randrange(2), *range(number, number + count), at_s=number)
        stage.stream.wake()
        for value in range(number, number + count):
            stage.view.put({chance.choice("abcdef"): value}, deletes=chance.choice([[], ["a"]]))
        number += count
        await asyncio.sleep(chance.random() * 0.01)
    await until(lambda: proxy.cuts >= 5)
    proxy.calm = True


async def read_all(client: Client, transport: Any) -> list[int]:
    event_numbers: list[int] = []
    async with client.follow(stream="x", since="earliest", transport=transport) as messages:
        while len(event_numbers) < TOTAL:
            event_numbers += numbers(await anext(messages))
    return event_numbers


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
                    for task in reading:
                        assert sorted(await task) == list(range(TOTAL))
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
                event_numbers: list[int] = []
                tries = written = 0
                while len(event_numbers) < 20:
                    tries += 1
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            event_numbers += numbers(await anext(messages))
                    if written < 20 and messages.cursor is not None:
                        stage.write(written)
                        written += 1
        assert event_numbers == list(range(20))
        assert tries > 20

    run(main())


def test_closing_the_client_ends_what_is_followed() -> None:
    async def main() -> None:
        async with staged() as stage:
            async with connected(stage.port) as client:
                waiting = [
                    asyncio.create_task(to_the_end(client.follow(stream="x", transport=transport)))
                    for transport in TRANSPORTS
                ]
                await asyncio.sleep(0)
            await asyncio.gather(*waiting)

    run(main())


async def to_the_end(messages: Following[Any]) -> None:
    async for _ in messages:
        pass


def test_all_that_is_followed_by_websocket_shares_one_connection() -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            opened = stage.deps.connections
            async with contextlib.AsyncExitStack() as stack:
                streams = [await stack.enter_async_context(client.follow(stream="x")) for _ in range(5)]
                views = [await stack.enter_async_context(client.follow(view="x")) for _ in range(5)]
                for stream in streams:
                    await anext(stream)
                for view in views:
                    await anext(view)
                assert opened.open == 1
            await until(lambda: opened.open == 0)
            async with client.follow(stream="x") as again:
                await anext(again)
                assert opened.open == 1

    run(main())


def test_a_reader_that_is_slow_does_not_hold_up_the_others_and_holds_a_window_at_most() -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port, window=4) as client:
            stage.write(*range(100))
            async with (
                client.follow(stream="x", since="earliest", transport="websocket") as slow,
                client.follow(stream="x", since="earliest", transport="websocket") as quick,
            ):
                slow_numbers = numbers(await anext(slow))
                seen: list[int] = []
                written = 100
                while len(seen) < 2 * TOTAL:
                    stage.write(*range(written, written + 6))
                    written += 6
                    seen += numbers(await anext(quick))
                while len(slow_numbers) < 2 * TOTAL:
                    slow_numbers += numbers(await anext(slow))
        assert slow_numbers[: 2 * TOTAL] == seen[: 2 * TOTAL] == list(range(2 * TOTAL))

    run(main())


def test_a_table_asks_the_app_for_the_key_of_its_view() -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.view.put({"a": 1, "b": 2})
            async with client.table("x") as table:
                assert table.get("a") == {"k": "a", "v": 1}
                stage.view.put({"c": 3}, deletes=["a"])
                while not isinstance(await anext(table), Change):
                    pass
                assert table.get("a") is None
                assert sorted(row["k"] for row in table.rows) == ["b", "c"]
            with pytest.raises(ServerError, match="no view 'y'"):
                await anext(client.table("y"))

    run(main())


@on_every_transport
def test_a_view_of_more_rows_than_a_page_has_is_followed_as_any_other(transport: Any) -> None:
    def rows(first: int) -> dict[str, int]:
        return {f"{number:03}": number for number in range(first, first + 50)}

    async def main() -> None:
        settings = replace(LIVELY, page_events=5, page_events_max=10)
        async with staged(settings) as stage, connected(stage.port) as client:
            stage.view.put(rows(0))
            async with client.table("x", key=["k"], transport=transport) as table:
                assert {row["k"]: row["v"] for row in table.rows} == rows(0)
                stage.view.remake()
                stage.view.put(rows(100))
                while not isinstance(await anext(table), Reset):
                    pass
                while not table.rows:
                    await anext(table)
                assert {row["k"]: row["v"] for row in table.rows} == rows(100)
            page = await client.rows("x", limit="all")
            assert (len(page.rows), page.truncated) == (50, False)
            assert (await client.rows("x", limit=10)).truncated

    run(main())


@on_every_transport
def test_a_view_that_is_made_anew_empties_the_table(transport: Any) -> None:
    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.view.put({"a": 1})
            async with client.table("x", key=["k"], transport=transport) as table:
                stage.view.remake()
                stage.view.put({"z": 9})
                while not isinstance(await anext(table), Reset):
                    pass
                assert table.rows == []
                while table.get("z") is None:
                    await anext(table)
                assert table.rows == [{"k": "z", "v": 9}]

    run(main())


@on_every_transport
def test_pages_and_rows_fit_what_is_followed(transport: Any) -> None:
    """A cursor from one transport is valid on every other."""

    async def main() -> None:
        async with staged() as stage, connected(stage.port) as client:
            stage.write(*range(20))
            stage.view.put({"a": 1})
            pages = [page async for page in client.events("x", limit=7)]
            assert [event["n"] for page in pages for event in page.events] == list(range(20))
            stage.write(20, 21)
            async with client.follow(stream="x", since=pages[-1].cursor, transport=transport) as messages:
                assert numbers(await anext(messages)) == [20, 21]
            rows = await client.rows("x")
            assert rows.rows == [{"k": "a", "v": 1}]
            stage.view.put({"b": 2})
            async with client.follow(view="x", since=rows.cursor, transport=transport) as changes:
                change = await anext(changes)
                assert isinstance(change, Change)
                assert change.upserts == [{"k": "b", "v": 2}]

    run(main())
