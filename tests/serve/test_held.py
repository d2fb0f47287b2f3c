"""Bytes held for clients that do not read are bounded, for each caller and in total. Clients that read get
everything."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from penstock.core.settings import Settings
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections
from penstock.serve.deps import Deps
from penstock.serve.held import HeldBytes
from tests.alone import alone
from tests.clocks import until
from tests.serve.clients import events, hear, open_socket, say
from tests.serve.fakes import FakeView, make_deps, run, serving
from tests.serve.query.support import Typed, queried
from tests.serve.test_slow import frame, mute, requested

MIB = 1024 * 1024
CALM = Settings(heartbeat_s=600, filters_max=1_000)
SUBSCRIPTIONS = 40
CACHES_BYTES = 48 * MIB
"""The size of the channel's own caches of rows and snapshots, whoever asks."""


def large_view(rows: int = 200) -> FakeView:
    """Return a view with rows of 10 KB each."""
    view = FakeView()
    view.put({f"{number:04}" + "x" * 10_000: number for number in range(rows)})
    return view


def deps_of(view: FakeView, connections: Connections | None = None) -> Deps:
    return make_deps(views={"x": ViewChannel("x", view, CALM, key=["k"])}, settings=CALM, connections=connections)


async def subscribe(connection: ClientConnection, number: int, **more: object) -> None:
    """Subscribe through a unique filter, which hides one row only."""
    await say(connection, op="subscribe", id=str(number), view="x", where=f"v <> {number}", **more)


@alone
def test_held_up_subscriptions_hold_no_snapshots() -> None:
    """Each has a full window, and then a unique filter on a view of 2 MB: 40 of them would hold 80 MB."""

    async def main() -> None:
        async with serving(deps_of(large_view())) as port, open_socket(port, max_size=None) as connection:
            base = tracemalloc.get_traced_memory()[0]
            for number in range(SUBSCRIPTIONS):
                await say(connection, op="subscribe", id=str(number), view="x", where="v < 0", window=1)
                assert (await hear(connection))["event"] == "subscribed"
                first = await hear(connection)
                assert first["event"] == "snapshot"
                await say(connection, op="filter", id=str(number), where=f"v <> {number}")
                assert (await hear(connection))["event"] == "filtered"
            await say(connection, op="ack", id=str(number), cursor=first["cursor"])
            last = await hear(connection)  # the others would have been read before it
            assert (last["id"], len(last["data"]["rows"])) == (str(number), 199)
            del last
            assert tracemalloc.get_traced_memory()[0] - base < 24 * MIB

    tracemalloc.start()
    run(main())


@pytest.mark.parametrize("window", [1, None])
@alone
def test_idle_subscriptions_hold_no_snapshots_that_they_have_sent(window: int | None) -> None:
    """Each has sent its snapshot of 2 MB, and waits: 40 of them would hold 80 MB."""

    async def main() -> None:
        connections = Connections(10)
        async with serving(deps_of(large_view(), connections)) as port, open_socket(port, max_size=None) as connection:
            base = tracemalloc.get_traced_memory()[0]
            for number in range(SUBSCRIPTIONS):
                await subscribe(connection, number, window=window)
                assert (await hear(connection))["event"] == "subscribed"
                assert (await hear(connection))["event"] == "snapshot"
            await until(lambda: connections.held.total == 0)
            assert tracemalloc.get_traced_memory()[0] - base < CACHES_BYTES

    tracemalloc.start()
    run(main())


@alone
def test_subscriptions_that_are_paused_at_once_hold_no_snapshots() -> None:
    async def main() -> None:
        async with serving(deps_of(large_view())) as port, open_socket(port, max_size=None) as connection:
            base = tracemalloc.get_traced_memory()[0]
            for number in range(SUBSCRIPTIONS):
                await subscribe(connection, number)
                await say(connection, op="pause", id=str(number))
            counts = Counter[str]()
            while min(counts["paused"], counts["subscribed"]) < SUBSCRIPTIONS:  # each has read its first delivery then
                counts[(await hear(connection))["event"]] += 1
            assert tracemalloc.get_traced_memory()[0] - base < CACHES_BYTES

    tracemalloc.start()
    run(main())


@alone
def test_one_who_does_not_read_holds_no_more_than_the_bound() -> None:
    async def main() -> None:
        connections = Connections(10, held_bytes_max=8 * MIB)
        async with serving(deps_of(large_view(), connections)) as port:
            async with mute(port, "websocket", "view") as client:
                base = tracemalloc.get_traced_memory()[0]
                for number in range(SUBSCRIPTIONS):
                    asked = b'{"op":"subscribe","id":"%d","view":"x","where":"v <> %d"}' % (number + 2, number)
                    client.sendall(frame(0x81, asked))
                await until(lambda: connections.held.total > 4 * MIB)
                async with events(port, "view", None, where="v < 1") as deliveries:
                    await anext(deliveries)  # anything read ahead would have been read before
                assert connections.held.total <= 8 * MIB
                assert tracemalloc.get_traced_memory()[0] - base < CACHES_BYTES + 8 * MIB
            await until(lambda: connections.held.total == 0)

    tracemalloc.start()
    run(main())


def test_those_who_read_get_every_snapshot_though_few_fit_at_once() -> None:
    """Deliveries without room are read again, in turn; a paused subscription gets its own later."""

    async def main() -> None:
        connections = Connections(10, held_bytes_max=5 * MIB)
        async with serving(deps_of(large_view(), connections)) as port, open_socket(port, max_size=None) as connection:
            for number in range(SUBSCRIPTIONS):
                await subscribe(connection, number)
                await say(connection, op="pause", id=str(number))
                await say(connection, op="resume", id=str(number))
            waiting = {str(number) for number in range(SUBSCRIPTIONS)}
            while waiting:
                message = await hear(connection)
                if message["event"] == "snapshot":
                    assert len(message["data"]["rows"]) == 199
                    waiting.remove(message["id"])
            await until(lambda: connections.held.total == 0)

    run(main())


def test_server_sent_events_are_refused_while_there_is_no_room() -> None:
    async def main() -> None:
        connections = Connections(100, held_bytes_max=9 * MIB)
        async with serving(deps_of(large_view(800), connections)) as port, httpx.AsyncClient(timeout=30) as client:
            url = f"http://127.0.0.1:{port}/v1/views/x/live"
            async with mute(port, "sse", "view"):
                await until(lambda: connections.held.total > 7 * MIB)
                for number in range(3):
                    async with client.stream("GET", url, params={"where": f"v <> {number}"}) as answer:
                        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            await until(lambda: connections.held.total == 0)

    run(main())


def page(number: int) -> bytes:
    """Return a request for all rows but one of a view of 4 MB."""
    return b"GET /v1/views/by-key?limit=all&where=v%%20%%3C%%3E%%20%d HTTP/1.1\r\nHost: x\r\n\r\n" % number


def question(number: int) -> bytes:
    """Return a query with an answer of 4 MB."""
    body = b'{"sql":"SELECT repeat(\'x\', 4000000) AS x, %d AS n"}' % number
    return b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("ask", [page, question])
def test_long_answers_that_are_not_read_are_bounded_and_the_next_is_refused(ask: Callable[[int], bytes]) -> None:
    """Each has a separate body, which is not shared. There is room for two."""

    async def main() -> None:
        view, connections = Typed(), Connections(100, held_bytes_max=9 * MIB)
        view.put({f"{number:04}" + "x" * 10_000: number for number in range(400)})
        async with queried(view=view) as deps, serving(replace(deps, connections=connections)) as port:
            with ExitStack() as stack:
                for number in (1, 2):
                    await asyncio.to_thread(stack.enter_context, requested(port, ask(number)))
                await until(lambda: connections.held.total > 7 * MIB)
                with requested(port, ask(3)) as refused:
                    assert (await asyncio.to_thread(refused.recv, 4096)).startswith(b"HTTP/1.1 503")
                assert connections.held.total <= 9 * MIB
            await until(lambda: connections.held.total == 0)
            with requested(port, ask(4)) as answered:
                assert (await asyncio.to_thread(answered.recv, 4096)).startswith(b"HTTP/1.1 200")

    run(main())


def test_a_caller_holds_half_and_the_same_bytes_count_once() -> None:
    held = HeldBytes(8 * MIB)
    pieces = [bytes(2 * MIB) for _ in range(5)]
    with held.keep("ann", pieces[0]) as one, held.keep("ann", pieces[1]) as two, held.keep("ann", pieces[0]) as again:
        assert (one, two, again) == (True, True, True)
        with held.keep("ann", pieces[2]) as three:
            assert not three
        with held.keep("bob", pieces[0]) as same, held.keep("bob", pieces[3]) as other:
            assert (same, other) == (True, True)
            assert held.total == 6 * MIB
    assert held.total == 0


def test_one_that_is_larger_than_the_bound_goes_alone() -> None:
    held = HeldBytes(1 * MIB)
    with held.keep("ann", bytes(3 * MIB)) as alone_:
        assert alone_
        with held.keep("bob", bytes(1 * MIB)) as beside:
            assert not beside


def test_room_is_given_in_turn_and_one_who_leaves_takes_none() -> None:
    async def main() -> None:
        held, order = HeldBytes(2 * MIB), list[str]()

        async def hold(name: str) -> None:
            async with held.reserved(name, 1 * MIB):
                order.append(name)

        async with held.reserved("ann", 1 * MIB):
            tasks = [asyncio.create_task(hold(name)) for name in ("ann", "ann", "bob")]
            await until(lambda: order == ["bob"])
            tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["bob", "ann"]
        assert held.total == 0

    run(main())


@pytest.mark.parametrize("size", [0, 100])
def test_small_deliveries_are_not_counted(size: int) -> None:
    held = HeldBytes(1)
    with held.keep("ann", bytes(size)) as one, held.keep("ann", bytes(size)) as two:
        assert (one, two) == (True, True)
        assert held.total == 0
