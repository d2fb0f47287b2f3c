"""One caller cannot use up shared limits: filters, live queries, webhooks, and the rate of a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from penstock.core.access import Caller
from penstock.core.access.caller import Bucket
from penstock.core.access.grants import ALL, grants
from penstock.core.contracts import Channel
from penstock.core.errors import Busy
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections, following
from penstock.serve.deps import Deps
from tests.serve.clients import hear, open_socket, say
from tests.serve.fakes import FakeLog, FakeView, Reading, make_deps, run, serving
from tests.serve.query.support import SETTINGS, queried
from tests.serve.webhooks.receiver import receiving
from tests.serve.webhooks.rig import QUICK, rigged, wanted

FOUR = Settings(heartbeat_s=0.05, filters_max=4)
READS = grants(["consume:*"])
ANN, BOB = Caller("key:ann", READS), Caller("key:bob", READS)
NAMES = {"stream": ("stream", "x"), "feed": ("stream", "part"), "view": ("view", "x")}


def deps_of() -> Deps:
    stream = StreamChannel("x", FakeLog(1), FOUR, lambda: event_schema(Reading))
    view = ViewChannel("x", FakeView(), FOUR, key=["k"])
    feed = FeedChannel(stream, "n > 0", None, source="x")
    return make_deps(streams={"x": stream, "part": feed}, views={"x": view}, settings=FOUR)


def seen(deps: Deps, what: str, caller: Caller, number: int) -> Channel:
    """Return a stream, feed or view through a filter that no other number has."""
    return deps.channel(*NAMES[what], caller).through(f"{'v' if what == 'view' else 'n'} <> {number}", None)


@asynccontextmanager
async def followed(channel: Channel) -> AsyncIterator[None]:
    """Follow while in the block."""
    async with following(channel, "latest") as deliveries:
        await anext(deliveries)
        yield


@pytest.mark.parametrize("what", NAMES)
def test_one_caller_has_half_of_the_filters_at_most(what: str) -> None:
    """This holds even if it reads without a filter in between; readers with the same filter count once."""

    async def main() -> None:
        deps = deps_of()
        async with AsyncExitStack() as held:
            for number in (1, 2, 2):
                await held.enter_async_context(followed(seen(deps, what, ANN, number)))
                async with followed(deps.channel(NAMES[what][0], "x", ANN)):
                    pass
            with pytest.raises(Busy, match="you already use 2 filters"):
                await held.enter_async_context(followed(seen(deps, what, ANN, 3)))
            for number in (4, 5):
                await held.enter_async_context(followed(seen(deps, what, BOB, number)))
            with pytest.raises(Busy, match="already has 4 filters in use"):
                await held.enter_async_context(followed(seen(deps, what, Caller("key:cat", READS), 6)))
        async with followed(seen(deps, what, ANN, 3)):
            pass

    run(main())


def test_long_polls_count_in_the_share_of_their_caller() -> None:
    async def main() -> None:
        deps = deps_of()
        async with followed(seen(deps, "stream", ANN, 1)), followed(seen(deps, "stream", ANN, 2)):
            with pytest.raises(Busy, match="you already use 2 filters"):
                await seen(deps, "stream", ANN, 3).page("latest", 10, 5.0)

    run(main())


def test_one_caller_keeps_half_of_the_live_queries_at_most() -> None:
    async def main() -> None:
        async with queried(settings=replace(SETTINGS, live_queries_max=4)) as deps, AsyncExitStack() as held:
            for number in (1, 2, 2):
                await held.enter_async_context(followed(deps.channel("query", f"SELECT {number}", ANN)))
            with pytest.raises(Busy, match="you already follow 2 live queries"):
                await held.enter_async_context(followed(deps.channel("query", "SELECT 3", ANN)))
            await held.enter_async_context(followed(deps.channel("query", "SELECT 3", BOB)))
            with pytest.raises(Busy, match="you already follow 2 live queries"):  # though it is live already
                await held.enter_async_context(followed(deps.channel("query", "SELECT 3", ANN)))

    run(main())


def test_one_caller_has_half_of_the_webhooks_at_most(tmp_path: Path) -> None:
    """The exception is an admin, who is needed when something is wrong."""

    async def main() -> None:
        boss = Caller("key:boss", ALL)
        async with receiving() as receiver, rigged(tmp_path, replace(QUICK, webhooks_max=4)) as rig:
            rig.people.update({person.name: person for person in (ANN, BOB, boss)})
            for _ in range(2):
                await rig.add(receiver, ANN)
            with pytest.raises(Busy, match="you already have 2 webhooks"):
                await rig.registry.register(ANN, wanted(receiver.url), "latest")
            await rig.add(receiver, BOB)
            await rig.add(receiver, boss)
            with pytest.raises(Busy, match="there are already 4 webhooks"):
                await rig.registry.register(boss, wanted(receiver.url), "latest")

    run(main())


def test_subscriptions_count_against_the_rate_of_their_caller_and_wait_for_it() -> None:
    """They count like requests. None is refused: a client that reconnects with many subscriptions gets all of them, in
    time."""

    async def main() -> None:
        caller = Caller("key:ann", READS, Bucket(1.0))  # three at once, then one a second
        async with serving(deps_of(), caller) as port, open_socket(port) as connection:
            for number in range(4):
                await say(connection, op="subscribe", id=str(number), view="x", since="latest")
            assert [(await hear(connection))["id"] for _ in range(3)] == ["0", "1", "2"]
            assert caller.wait_s() > 0
            assert (await hear(connection)) == {"id": "3", "event": "subscribed"}

    run(main())


def test_one_caller_has_half_of_the_live_connections_at_most() -> None:
    connections = Connections(4)
    with connections.one("key:ann"), connections.one("key:ann"):
        with pytest.raises(Busy, match="the maximum for one caller"), connections.one("key:ann"):
            pass
        with connections.one("key:bob"), connections.one(""):
            assert connections.open == 4
    with connections.one("key:ann"):
        assert connections.open == 1


def test_one_caller_that_fills_its_share_leaves_room_for_another() -> None:
    async def main() -> None:
        deps = replace(deps_of(), connections=Connections(4))
        async with serving(deps, ANN) as port, AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(open_socket(port))
            with pytest.raises(InvalidStatus) as refused:
                await stack.enter_async_context(open_socket(port))
            assert refused.value.response.status_code == 503

    run(main())
