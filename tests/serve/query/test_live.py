"""Live queries: on every transport, shared, and quiet when nothing has changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from penstock.core.access import ANYONE, Caller
from penstock.core.access.grants import ALL
from penstock.core.contracts import Channel, Delivery
from penstock.core.cursor import view_cursor
from penstock.core.errors import BadCursor, BadExpression, Busy, QueryTooLarge
from penstock.serve.connections import following
from penstock.serve.query.answers import QueryResponse
from penstock.serve.query.check import Checked
from penstock.serve.query.live import LiveQueries, QueryChannel
from penstock.serve.query.plan import QueryPlan
from tests.clocks import until
from tests.contracts.channel import ChannelContract, OpenChannel
from tests.serve.clients import Received, hear, open_socket, read_events, say
from tests.serve.fakes import FakeLog, run, serving
from tests.serve.query.support import SETTINGS, Typed, asking, queried

TOP = 'SELECT k, v FROM "by-key" WHERE v > 1 ORDER BY k'


@asynccontextmanager
async def by_events(port: int, since: str | None = None) -> AsyncIterator[AsyncIterator[Received]]:
    headers = {"Last-Event-ID": since} if since else {}
    async with httpx.AsyncClient(timeout=30) as client:
        url = f"http://127.0.0.1:{port}/v1/query/live"
        async with client.stream("GET", url, params={"sql": TOP}, headers=headers) as response:
            response.raise_for_status()
            yield read_events(response)


@asynccontextmanager
async def by_socket(port: int, since: str | None = None) -> AsyncIterator[AsyncIterator[Received]]:
    async def deliveries() -> AsyncIterator[Received]:
        async for raw in connection:
            message = json.loads(raw)
            if message["event"] != "subscribed":
                yield Received(message["event"], message["cursor"], message["data"])

    async with open_socket(port) as connection:
        await say(connection, op="subscribe", id="1", query=TOP, since=since)
        yield deliveries()


class NumbersInQuery:
    """The result of a live query, with a row for each number, and what a channel test does with it."""

    column, foreign_cursor = "n", view_cursor(1, 0)

    def __init__(self, heartbeat_s: float) -> None:
        self._numbers: list[int] = []
        self._plan = QueryPlan(Checked("SELECT n FROM input_0", ("numbers",), {}, 100), (None,))
        live = LiveQueries(self._run, self._versions, replace(SETTINGS, live_query_ms=1))
        self.channel: Channel = QueryChannel(self._planned, live, heartbeat_s)

    async def _planned(self) -> QueryPlan:
        return self._plan

    async def _run(self, plan: QueryPlan) -> QueryResponse:
        rows = ",".join(f'{{"n":{number}}}' for number in self._numbers)
        return QueryResponse(f'{{"columns":[],"rows":[{rows}]'.encode(), {}, 0.0)

    async def _versions(self, reads: tuple[str, ...]) -> tuple[object, ...]:
        return (len(self._numbers),)

    def write(self, *numbers: int) -> None:
        self._numbers += numbers


class TestQueryChannel(ChannelContract):
    NEWS = "snapshot"

    @pytest.fixture
    def open_home(self) -> OpenChannel:
        return NumbersInQuery


async def next_result(deliveries: AsyncIterator[Received]) -> Received:
    while True:
        received = await anext(deliveries)
        if received.kind != "progress":
            return received


@pytest.mark.parametrize("connect", [by_events, by_socket])
def test_a_live_query_sends_its_result_and_each_one_that_differs(connect: object) -> None:
    async def main() -> None:
        view = Typed()
        view.put({"a": 1, "b": 2})
        async with queried(view=view) as deps, serving(deps) as port:
            async with connect(port) as deliveries:  # type: ignore[operator]
                first = await anext(deliveries)
                assert first.kind == "snapshot"
                assert first.data["rows"] == [{"k": "b", "v": 2}]
                assert first.data["columns"] == [{"name": "k", "type": "VARCHAR"}, {"name": "v", "type": "BIGINT"}]
                view.put({"a": 0})
                view.put({"c": 3})
                second = await next_result(deliveries)
                assert second.data["rows"] == [{"k": "b", "v": 2}, {"k": "c", "v": 3}]
            async with connect(port, second.cursor) as deliveries:  # type: ignore[operator]
                assert (await anext(deliveries)).kind == "progress", "nothing new for one who has the result"
                view.put({"c": 4})
                assert (await next_result(deliveries)).data["rows"][1] == {"k": "c", "v": 4}
            async with connect(port, second.cursor) as deliveries:  # type: ignore[operator]
                third = await anext(deliveries)
                assert (third.kind, third.data["rows"][1]) == ("snapshot", {"k": "c", "v": 4})

    run(main())


def test_a_change_that_does_not_change_the_result_is_not_sent() -> None:
    async def main() -> None:
        view = Typed()
        view.put({"b": 2})
        async with queried(view=view) as deps:
            async with following(deps.channel("query", TOP, ANYONE), None) as deliveries:
                first = await anext(deliveries)
                view.put({"a": 0})
                view.put({"a": 1})
                for _ in range(5):
                    again = await anext(deliveries)
                    assert (again.kind, again.cursor) == ("progress", first.cursor)
                view.put({"a": 2})
                while (delivery := await anext(deliveries)).kind == "progress":
                    pass
                assert json.loads(delivery.data)["rows"] == [{"k": "a", "v": 2}, {"k": "b", "v": 2}]

    run(main())


def test_a_live_query_over_a_stream_counts_on() -> None:
    async def main() -> None:
        log = FakeLog(2)
        async with queried(log) as deps:
            channel = deps.channel("query", "SELECT count(*) AS n FROM readings", ANYONE)
            async with following(channel, None) as deliveries:
                for number in range(4):
                    while (delivery := await anext(deliveries)).kind == "progress":
                        pass
                    assert json.loads(delivery.data)["rows"] == [{"n": number}]
                    log.write(number % 2, number)

    run(main())


def test_followers_of_the_same_query_share_its_evaluation() -> None:
    async def main() -> None:
        view = Typed()
        view.put({"b": 2})
        async with queried(view=view) as deps:
            asked = deps.asked
            count, run_once = 0, asked.run

            async def counted(plan: QueryPlan) -> QueryResponse:
                nonlocal count
                count += 1
                return await run_once(plan)

            asked._live._run = counted
            texts = [TOP, TOP.lower().replace("select", "SELECT"), TOP.replace(" WHERE", "\n  WHERE /* more */")]
            channels = [deps.channel("query", text, ANYONE) for text in texts * 10]
            streams = [channel.follow(None) for channel in channels]
            snapshots = await asyncio.gather(*(anext(stream) for stream in streams))
            assert len({snapshot.data for snapshot in snapshots}) == 1
            assert count == 1
            view.put({"b": 3})
            again = await asyncio.gather(*(_next(stream) for stream in streams))
            assert {json.loads(data)["rows"][0]["v"] for data in again} == {3}
            assert count == 2
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]
            assert asked._live._kept == {}

    async def _next(deliveries: AsyncIterator) -> bytes:  # type: ignore[type-arg]
        while (delivery := await anext(deliveries)).kind == "progress":
            pass
        return bytes(delivery.data)

    run(main())


def test_too_many_different_live_queries_are_refused() -> None:
    async def main() -> None:
        async with queried(settings=replace(SETTINGS, live_queries_max=2)) as deps:
            held = [deps.channel("query", f"SELECT {number}", ANYONE).follow(None) for number in range(2)]
            for stream in held:
                await anext(stream)
            with pytest.raises(Busy):
                await anext(deps.channel("query", "SELECT 5", ANYONE).follow(None))
            again = deps.channel("query", "SELECT 1", ANYONE).follow(None)
            assert (await anext(again)).kind == "snapshot", "one that is there already takes no place"
            for stream in (*held, again):
                await stream.aclose()  # type: ignore[attr-defined]
            after = deps.channel("query", "SELECT 5", ANYONE).follow(None)
            assert (await anext(after)).kind == "snapshot"
            await after.aclose()  # type: ignore[attr-defined]

    run(main())


def test_a_live_query_that_becomes_too_expensive_ends_with_an_error_and_can_be_asked_for_again() -> None:
    async def main() -> None:
        view = Typed()
        view.put({"a": 1})
        settings = replace(SETTINGS, query_s_max=2.0)
        async with queried(view=view, settings=settings) as deps, serving(deps) as port, open_socket(port) as socket:
            query = 'SELECT count(*) AS n FROM range((SELECT max(v) FROM "by-key"))'
            await say(socket, op="subscribe", id="q", query=query)
            await say(socket, op="subscribe", id="v", view="by-key")
            heard = [await hear(socket) for _ in range(4)]
            assert {message["event"] for message in heard} == {"subscribed", "snapshot"}
            view.put({"a": 10**12})
            ended = await hear(socket)
            while ended["event"] != "error":
                ended = await hear(socket)
            assert (ended["id"], ended["data"]["code"]) == ("q", "query_too_slow")
            view.put({"a": 3})
            await say(socket, op="subscribe", id="q", query=query)
            while (message := await hear(socket))["id"] != "q" or message["event"] != "snapshot":
                assert message["event"] != "error", message
            assert message["data"]["rows"] == [{"n": 3}]

    run(main())


def test_what_is_wrong_with_a_live_query_is_answered_at_once() -> None:
    async def main() -> None:
        async with queried() as deps, serving(deps) as port:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                for sql, code in (("SELECT oops", "bad_query"), ("DROP TABLE x", "query_refused"), ("", "bad_query")):
                    response = await client.get("/v1/query/live", params={"sql": sql})
                    assert (response.status_code, response.json()["code"]) == (400, code)
                response = await client.get("/v1/query/live", params={"sql": "SELECT 1", "since": view_cursor(1, 1)})
                assert response.json()["code"] == "bad_cursor"
            async with open_socket(port) as socket:
                await say(socket, op="subscribe", id="1", query="SELECT oops")
                message = await hear(socket)
                assert (message["event"], message["data"]["code"]) == ("error", "bad_query")
                assert message["data"]["position"] == 7
                await say(socket, op="subscribe", id="2", query="SELECT 1", view="by-key")
                assert (await hear(socket))["data"]["code"] == "bad_parameter"
                await say(socket, op="subscribe", id="3", query="SELECT 1", where="x > 1")
                assert (await hear(socket))["data"]["code"] == "bad_expression"

    run(main())


def test_a_query_is_a_channel_like_any_other() -> None:
    """It has pages, long polling and its own refusals, for transports that only know channels."""

    async def main() -> None:
        view = Typed()
        view.put({"b": 2})
        async with queried(view=view) as deps:
            channel: Channel = deps.channel("query", TOP, ANYONE)
            assert isinstance(channel, QueryChannel)
            page = await channel.page(None, 100)
            assert json.loads(page.body)["rows"] == [{"k": "b", "v": 2}]
            assert json.loads(page.body)["cursor"] == page.cursor
            assert (await channel.last(10)).tag == page.tag
            assert (await channel.page(page.cursor, 100, wait_s=0.05)).tag == page.tag
            waiting = asyncio.create_task(channel.page(page.cursor, 100, wait_s=15))
            await until(lambda: deps.asked._live._kept != {})
            view.put({"b": 5})
            assert json.loads((await waiting).body)["rows"] == [{"k": "b", "v": 5}]
            with pytest.raises(BadExpression):
                channel.through("v > 1", None)
            with pytest.raises(BadCursor):
                await channel.page(view_cursor(1, 1), 10)

    run(main())


def test_the_api_says_so_where_there_are_no_queries() -> None:
    async def main() -> None:
        async with queried() as deps, asking(replace(deps, queries=None)) as client:
            assert (await client.post("/v1/query", json={"sql": "SELECT 1"})).status_code == 404

    run(main())


def test_what_live_queries_hold_is_bounded_in_all_and_for_each_caller() -> None:
    """A result has 5 MB: of a bound of 16 MiB one caller fills half with two of them, and others the rest."""

    async def main() -> None:
        async with queried(settings=replace(SETTINGS, query_memory_bytes=16 * 2**20)) as deps:

            def followed(number: int, name: str) -> AsyncIterator[Delivery]:
                text = f"SELECT repeat('x', 5000000) AS x, {number} AS n"
                return deps.channel("query", text, Caller(name, ALL)).follow(None)

            streams = [followed(number, "ann") for number in range(2)]
            for stream in streams:
                assert (await anext(stream)).kind == "snapshot"
            with pytest.raises(Busy, match="of your live queries"):
                await anext(followed(2, "ann"))
            streams.append(followed(3, "bob"))
            assert (await anext(streams[-1])).kind == "snapshot"
            with pytest.raises(QueryTooLarge, match="all live queries together"):
                await anext(followed(4, "bob"))
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]
            assert deps.asked._live._kept == {}

    run(main())
