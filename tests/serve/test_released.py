"""A delivery that has been sent is released at once, without waiting for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
from websockets.asyncio.client import ClientConnection

from penstock.core.contracts import Delivery
from penstock.core.settings import Settings
from penstock.http import frames
from penstock.http.frames import frame
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from penstock.serve.held import SMALL_BYTES
from penstock.serve.subscription import Subscription
from tests.alone import alone
from tests.clocks import until
from tests.serve.clients import events, hear, open_socket, said, say, webhook
from tests.serve.fakes import FakeView, make_deps, run, serving

MIB = 1024 * 1024
CALM = Settings(heartbeat_s=600)
FOLLOWERS = 5
ROWS = 200
SHARED = 1
"""The view keeps one snapshot: the latest without a filter, or the only one for which its cache has room."""
WHERE = {"filtered": {"where": "v >= 0"}, "unfiltered": {}}


def large_view() -> FakeView:
    """Return a view of 2 MB."""
    view = FakeView()
    view.put({f"{number:04}" + "x" * 10_000: number for number in range(ROWS)})
    return view


def deps_of(view: FakeView) -> Deps:
    channel = ViewChannel("x", view, CALM, key=["k"])
    channel._shared.snapshots._bytes_max = 1
    return make_deps(views={"x": channel}, settings=CALM)


def large_deliveries() -> int:
    """Return the number of large deliveries in memory."""
    return sum(type(thing) is Delivery and len(thing.data) > MIB for thing in gc.get_objects())


def subscriptions() -> int:
    return sum(type(thing) is Subscription for thing in gc.get_objects())


@contextmanager
def uncollected() -> Iterator[None]:
    """Run the block without the garbage collector, so that a cycle keeps what it refers to."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def subscribe(connection: ClientConnection, id: str, **more: object) -> str:
    """Subscribe and receive the snapshot; returns its cursor."""
    await say(connection, op="subscribe", id=id, view="x", **more)
    assert (await hear(connection))["event"] == "subscribed"
    snapshot = await hear(connection)
    assert (snapshot["event"], len(snapshot["data"]["rows"])) == ("snapshot", ROWS)
    return str(snapshot["cursor"])


@asynccontextmanager
async def following(port: int, transport: str, number: int, **where: str) -> AsyncIterator[None]:
    """Follow the view and receive its snapshot."""
    if transport == "webhook":
        async with webhook(port, "view", None, **where) as deliveries:
            assert (await said(deliveries)).kind == "snapshot"
            yield
    elif transport == "sse":
        async with events(port, "view", None, **where) as deliveries:
            assert (await anext(deliveries)).kind == "snapshot"
            yield
    else:
        async with open_socket(port, max_size=None) as connection:
            await subscribe(connection, str(number), window=1 if transport == "window" else None, **where)
            yield


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("transport", ["websocket", "window", "sse", "webhook"])
@alone
def test_a_snapshot_is_released_once_it_is_sent_and_when_its_reader_leaves(transport: str, where: str) -> None:
    """Each follower gets a snapshot of a different version, which no other follower shares."""

    async def main() -> None:
        view = large_view()
        async with serving(deps_of(view)) as port:
            async with AsyncExitStack() as stack:
                for number in range(FOLLOWERS):
                    view.put({"0000" + "x" * 10_000: number})
                    await stack.enter_async_context(following(port, transport, number, **WHERE[where]))
                await until(lambda: large_deliveries() <= SHARED, 0.05)
            await until(lambda: large_deliveries() <= SHARED and not subscriptions(), 0.05)

    with uncollected():
        run(main())


@pytest.mark.parametrize("where", WHERE)
@alone
def test_subscriptions_that_end_release_their_snapshots(where: str) -> None:
    """The client ends each one in another way, while the connection stays open."""

    async def main() -> None:
        view = large_view()
        async with serving(deps_of(view)) as port, open_socket(port, max_size=None) as connection:
            for number in range(FOLLOWERS):
                view.put({"0000" + "x" * 10_000: number})
                await subscribe(connection, "1", **WHERE[where])
                if number % 2:
                    await say(connection, op="filter", id="1", where="v < 0")
                    assert (await hear(connection))["event"] == "filtered"
                    assert (await hear(connection))["event"] == "snapshot"
                await say(connection, op="unsubscribe", id="1")
                assert (await hear(connection))["event"] == "unsubscribed"
            await until(lambda: large_deliveries() <= SHARED and not subscriptions(), 0.05)

    with uncollected():
        run(main())


def test_readers_with_the_same_filter_share_each_delivery_and_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the large snapshot and the change after it are framed once for ten connections."""
    framed = list[int]()

    def counted(text: bytes) -> bytes:
        if len(text) > SMALL_BYTES:
            framed.append(len(text))
        return frame(text)

    async def main() -> None:
        view = large_view()
        async with serving(deps_of(view)) as port, AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(open_socket(port, max_size=None)) for _ in range(10)]
            for connection in connections:
                await subscribe(connection, "1", where="v >= 0")
            assert len(framed) == 1
            view.put({"0001" + "x" * 20_000: 1})
            for connection in connections:
                assert (await hear(connection))["data"]["upserts"][0]["v"] == 1
            assert len(framed) == 2

    monkeypatch.setattr(frames, "frame", counted)
    run(main())
