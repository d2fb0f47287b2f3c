"""The commands of a client for a live subscription: acknowledge, pause, slow down, another filter."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from tests.serve.clients import hear, open_socket, say
from tests.serve.fakes import FakeLog, FakeView, Reading, make_deps, run, serving

CALM = Settings(heartbeat_s=600)


def deps_of(log: FakeLog | None = None, view: FakeView | None = None) -> Deps:
    return make_deps(
        streams={"s": StreamChannel("s", log or FakeLog(1), CALM, lambda: event_schema(Reading))},
        views={"v": ViewChannel("v", view or FakeView(), CALM, key=["k"])},
    )


async def subscribed(connection: ClientConnection, **asked: Any) -> Any:
    """Subscribe under the id `1`; returns the first delivery."""
    await say(connection, op="subscribe", id="1", **asked)
    assert await hear(connection) == {"id": "1", "event": "subscribed"}
    return await hear(connection)


async def answered(connection: ClientConnection, op: str, event: str, **more: Any) -> None:
    await say(connection, op=op, id="1", **more)
    assert await hear(connection) == {"id": "1", "event": event}


async def pong(connection: ClientConnection) -> None:
    """Check that the next message is the answer to a ping: nothing else was sent before it."""
    await say(connection, op="ping")
    assert await hear(connection) == {"event": "pong"}


def test_no_more_than_the_window_goes_out_unacknowledged() -> None:
    """The third change waits until the first is acknowledged; an `ack` is for all before it too."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            cursors = [(await subscribed(connection, view="v", window=2))["cursor"]]
            for number in range(4):
                view.put({"a": number})
            cursors.append((await hear(connection))["cursor"])
            await pong(connection)
            await say(connection, op="ack", id="1", cursor=cursors[1])
            for number in (1, 2):
                change = await hear(connection)
                assert change["data"]["upserts"] == [{"k": "a", "v": number}]
                cursors.append(change["cursor"])
            await pong(connection)
            await say(connection, op="ack", id="1", cursor=cursors[1])
            await pong(connection)
            await say(connection, op="ack", id="1", cursor=cursors[0])
            assert (await hear(connection))["data"]["code"] == "bad_parameter"
            await say(connection, op="ack", id="1", cursor=cursors[2])
            assert (await hear(connection))["data"]["upserts"] == [{"k": "a", "v": 3}]

    run(main())


def test_a_paused_subscription_goes_on_where_it_was() -> None:
    """While it is paused nothing comes, not even the first delivery that it was waiting for; afterwards everything
    does."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1)
        deps = deps_of(log)
        stream = deps.streams["s"]
        assert isinstance(stream, StreamChannel)
        async with serving(deps) as port, open_socket(port) as connection, open_socket(port) as another:
            for client in (connection, another):
                first = await subscribed(client, stream="s", since="earliest")
                assert [event["n"] for event in first["data"]["events"]] == [1]
            await answered(connection, "pause", "paused")
            for number in (2, 3):
                log.write(0, number)
                stream.wake()
                assert [event["n"] for event in (await hear(another))["data"]["events"]] == [number]
                await pong(connection)
            received = list[int]()
            await answered(connection, "resume", "resumed")
            while len(received) < 2:
                received += [event["n"] for event in (await hear(connection))["data"]["events"]]
            assert received == [2, 3]

    run(main())


def test_what_comes_after_a_pace_was_set_comes_at_that_pace() -> None:
    """This includes the first delivery, for which the subscription was waiting when the pace was set."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection, open_socket(port) as another:
            for client in (connection, another):
                await subscribed(client, view="v")
            await answered(connection, "pace", "paced", every_s=600)
            for number in (1, 2):
                view.put({"a": number})
                assert (await hear(another))["data"]["upserts"] == [{"k": "a", "v": number}]
                await pong(connection)
            await answered(connection, "pace", "paced", every_s=0)
            assert [(await hear(connection))["data"]["upserts"][0]["v"] for _ in range(2)] == [1, 2]

    run(main())


def test_a_paced_view_gives_the_latest_of_each_row_now_and_then() -> None:
    """Changes that come faster than the pace are merged into one; at another pace all of them come again."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            await subscribed(connection, view="v")
            await answered(connection, "pace", "paced", every_s=0.2)
            for number in range(50):
                view.put({"a": number, str(number % 2): number})
            seen = list[Any]()
            while not seen or seen[-1].get("a") != 49:
                seen.append({row["k"]: row["v"] for row in (await hear(connection))["data"]["upserts"]})
            assert len(seen) <= 3, "the first may have been on its way"
            assert seen[-1] == {"a": 49, "0": 48, "1": 49}
            await answered(connection, "pace", "paced", every_s=0)
            view.put({"b": 1})
            view.put({"b": 2})
            assert [(await hear(connection))["data"]["upserts"][0]["v"] for _ in range(2)] == [1, 2]

    run(main())


def test_a_stream_goes_on_through_another_filter_where_it_was() -> None:
    """No event that matches the current filter is missed, and none comes twice."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, *range(10))
        async with serving(deps_of(log)) as port, open_socket(port) as connection:
            first = await subscribed(connection, stream="s", since="earliest", where="n < 3")
            assert [event["n"] for event in first["data"]["events"]] == [0, 1, 2]
            await answered(connection, "filter", "filtered", where="n >= 10 AND n <> 11", select="n + 1 AS next")
            log.write(0, 10, 11, 12)
            assert (await hear(connection))["data"]["events"] == [{"next": 11}, {"next": 13}]
            await answered(connection, "filter", "filtered")
            log.write(0, 13)
            assert (await hear(connection))["data"]["events"] == [{"n": 13, "text": ""}]

    run(main())


def test_a_view_begins_anew_through_another_filter() -> None:
    """The client's rows are of the old filter: a snapshot through the new one replaces them."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1, "b": 20})
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            first = await subscribed(connection, view="v", where="v < 10")
            assert first["data"]["rows"] == [{"k": "a", "v": 1}]
            await answered(connection, "filter", "filtered", where="v >= 10")
            second = await hear(connection)
            assert (second["event"], second["data"]["rows"]) == ("snapshot", [{"k": "b", "v": 20}])
            view.put({"b": 5, "c": 30})
            change = (await hear(connection))["data"]
            assert change == {"upserts": [{"k": "c", "v": 30}], "deletes": [{"k": "b"}]}

    run(main())


def test_the_same_cursor_through_another_filter_is_acknowledged_at_once() -> None:
    """The client names the last delivery that it has processed; their number under this cursor does not matter."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            await subscribed(connection, view="v", window=3)
            view.put({"a": 1})
            change = await hear(connection)
            await answered(connection, "filter", "filtered", where="v > 0")
            snapshot = await hear(connection)
            assert snapshot["cursor"] == change["cursor"]
            await say(connection, op="ack", id="1", cursor=snapshot["cursor"])
            for number in range(2, 5):
                view.put({"a": number})
                assert (await hear(connection))["data"]["upserts"] == [{"k": "a", "v": number}]
            view.put({"a": 5})
            await say(connection, op="ack", id="1", cursor=snapshot["cursor"])
            await pong(connection)

    run(main())


def test_every_filter_is_answered_though_the_next_comes_at_once() -> None:
    """A client counts the answers to know which of its filters is in use."""

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1})
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            await say(connection, op="subscribe", id="1", view="v")
            for number in range(5):
                await say(connection, op="filter", id="1", where=f"v > {number}")
            await say(connection, op="unsubscribe", id="1")
            heard = [""]
            while heard[-1] != "unsubscribed":
                heard.append((await hear(connection))["event"])
            assert heard.count("filtered") == 5

    run(main())


def test_another_filter_lifts_neither_pause_nor_window() -> None:
    """It is answered, and its first delivery comes when it may."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            first = await subscribed(connection, view="v", window=1)
            await answered(connection, "filter", "filtered", where="v > 0")
            await pong(connection)
            await say(connection, op="ack", id="1", cursor=first["cursor"])
            snapshot = await hear(connection)
            assert snapshot["event"] == "snapshot"
            await say(connection, op="ack", id="1", cursor=snapshot["cursor"])
            await answered(connection, "pause", "paused")
            await answered(connection, "filter", "filtered")
            await pong(connection)
            await answered(connection, "resume", "resumed")
            assert (await hear(connection))["event"] == "snapshot"

    run(main())


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"op": "subscribe", "id": "2", "view": "v", "where": "v >"}, "bad_expression"),
        ({"op": "subscribe", "id": "2", "view": "v", "select": "nothing"}, "bad_expression"),
        ({"op": "subscribe", "id": "2", "view": "v", "window": 0}, "bad_parameter"),
        ({"op": "subscribe", "id": "2", "view": "v", "window": 1001}, "bad_parameter"),
        ({"op": "filter", "id": "1", "where": "k = 1"}, "bad_expression"),
        ({"op": "filter", "id": "2", "where": "k = 'a'"}, "not_found"),
        ({"op": "ack", "id": "1", "cursor": "x"}, "bad_parameter"),
        ({"op": "ack", "id": "1"}, "bad_parameter"),
        ({"op": "ack", "id": "2", "cursor": "x"}, "not_found"),
        ({"op": "pause"}, "bad_parameter"),
        ({"op": "pause", "id": "2"}, "not_found"),
        ({"op": "pace", "id": "1", "every_s": -1}, "bad_parameter"),
        ({"op": "pace", "id": "1", "every_s": 1e9}, "bad_parameter"),
    ],
)
def test_what_cannot_be_done_is_answered_and_the_subscription_goes_on(said: dict[str, Any], code: str) -> None:
    """A bad filter of a live subscription leaves it with the one it had."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            await subscribed(connection, view="v")
            await say(connection, **said)
            answer = await hear(connection)
            assert (answer["event"], answer["data"]["code"], answer["data"]["op"]) == ("error", code, said["op"])
            view.put({"a": 1})
            assert (await hear(connection))["data"]["upserts"] == [{"k": "a", "v": 1}]

    run(main())
