"""The WebSocket: many subscriptions on one connection."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from penstock.core.cursor import stream_cursor, view_cursor
from penstock.core.errors import Damaged
from penstock.core.settings import Settings
from penstock.http.frames import MESSAGE_BYTES_MAX
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections
from penstock.serve.deps import Deps
from penstock.serve.socket import BAD_MESSAGES_MAX
from tests.clocks import until
from tests.serve.clients import closing_code, hear, open_socket, say
from tests.serve.fakes import QUICK, FakeLog, FakeView, make_deps, run, serving

CALM = Settings(heartbeat_s=600)


def deps_of(log: FakeLog | None = None, view: FakeView | None = None, **changed: Any) -> Deps:
    return make_deps(
        streams={"s": StreamChannel("s", log or FakeLog(), CALM)},
        views={"v": ViewChannel("v", view or FakeView(), CALM, key=["k"])},
        **changed,
    )


async def problem(connection: ClientConnection) -> tuple[str | None, str]:
    """Return the next message, which must be an error: its id and its code."""
    message = await hear(connection)
    assert message["event"] == "error", message
    return message.get("id"), message["data"]["code"]


def test_subscriptions_share_a_connection_each_under_its_id() -> None:
    """A view gives its snapshot and changes, a stream its events; each message names its subscription."""

    async def main() -> None:
        log, view = FakeLog(), FakeView()
        view.put({"a": 1})
        async with serving(deps_of(log, view)) as port, open_socket(port) as connection:
            await say(connection, op="subscribe", id="rows", view="v")
            assert await hear(connection) == {"id": "rows", "event": "subscribed"}
            snapshot = await hear(connection)
            assert (snapshot["id"], snapshot["event"]) == ("rows", "snapshot")
            assert snapshot["data"] == {"rows": [{"k": "a", "v": 1}]}
            assert snapshot["cursor"]
            await say(connection, op="subscribe", id="log", stream="s", since="earliest")
            assert await hear(connection) == {"id": "log", "event": "subscribed"}
            log.write(0, 5)
            assert (await hear(connection))["data"] == {"events": [{"n": 5, "text": ""}]}
            view.put({"a": 2})
            change = await hear(connection)
            assert (change["id"], change["data"]["upserts"]) == ("rows", [{"k": "a", "v": 2}])

    run(main())


def test_nothing_comes_after_unsubscribed() -> None:
    """Once the answer is there, the subscription is over and its id can be used again."""

    async def main() -> None:
        view = FakeView()
        async with serving(deps_of(view=view)) as port, open_socket(port) as connection:
            for _ in range(3):
                await say(connection, op="subscribe", id="1", view="v")
                await say(connection, op="unsubscribe", id="1")
                for number in range(20):
                    view.put({"a": number})
                while (await hear(connection))["event"] != "unsubscribed":
                    pass
                view.put({"a": -1})
                await say(connection, op="ping")
                assert await hear(connection) == {"event": "pong"}

    run(main())


def test_a_cursor_resumes_a_subscription() -> None:
    """`since` accepts the cursor of any transport."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1, 2, 3)
        async with serving(deps_of(log)) as port, open_socket(port) as connection:
            await say(connection, op="subscribe", id="1", stream="s", since=stream_cursor(1, {0: 2}))
            await hear(connection)
            assert (await hear(connection))["data"]["events"] == [{"n": 3, "text": ""}]

    run(main())


BAD: list[tuple[str, str | None, str]] = [
    ("not json", None, "malformed_body"),
    ("[]", None, "malformed_body"),
    ("{}", None, "malformed_body"),
    ('{"op": 1}', None, "malformed_body"),
    ('{"op": "ping", "extra": 1}', None, "malformed_body"),
    ("[" * 60_000, None, "malformed_body"),
    ('"' + "x" * MESSAGE_BYTES_MAX + '"', None, "too_large"),
    ('{"op": "dance", "id": "1"}', "1", "bad_parameter"),
    ('{"op": "subscribe", "view": "v"}', None, "bad_parameter"),
    ('{"op": "subscribe", "id": "", "view": "v"}', "", "bad_parameter"),
    ('{"op": "subscribe", "id": "1"}', "1", "bad_parameter"),
    ('{"op": "subscribe", "id": "1", "view": "v", "stream": "s"}', "1", "bad_parameter"),
    ('{"op": "subscribe", "id": "1", "view": "s"}', "1", "not_found"),
    ('{"op": "subscribe", "id": "1", "stream": ""}', "1", "not_found"),
    ('{"op": "subscribe", "id": "1", "stream": "s", "since": "x"}', "1", "bad_cursor"),
    ('{"op": "subscribe", "id": "1", "stream": "s", "since": ""}', "1", "bad_cursor"),
    ('{"op": "unsubscribe", "id": "1"}', "1", "not_found"),
    ('{"op": "unsubscribe"}', None, "bad_parameter"),
]


@pytest.mark.parametrize(("raw", "id", "code"), BAD)
def test_a_bad_message_is_answered_and_the_connection_goes_on(raw: str, id: str | None, code: str) -> None:
    """Each mistake has its code, under the id if there was one; the next good message is executed."""

    async def main() -> None:
        async with serving(deps_of()) as port, open_socket(port) as connection:
            await connection.send(raw)
            assert await problem(connection) == (id, code)
            await say(connection, op="subscribe", id="1", view="v")
            assert (await hear(connection))["event"] == "subscribed"

    run(main())


def test_an_id_in_use_and_one_subscription_too_many_are_refused() -> None:
    """The existing subscriptions continue."""

    async def main() -> None:
        deps = deps_of(settings=replace(CALM, subscriptions_max=2))
        async with serving(deps) as port, open_socket(port) as connection:
            for id in ("1", "2"):
                await say(connection, op="subscribe", id=id, view="v")
                assert [(await hear(connection))["event"] for _ in range(2)] == ["subscribed", "snapshot"]
            await say(connection, op="subscribe", id="1", view="v")
            assert await problem(connection) == ("1", "bad_parameter")
            await say(connection, op="subscribe", id="3", view="v")
            assert await problem(connection) == ("3", "bad_parameter")
            await say(connection, op="unsubscribe", id="1")
            assert (await hear(connection))["event"] == "unsubscribed"
            await say(connection, op="subscribe", id="3", view="v")
            assert (await hear(connection))["event"] == "subscribed"

    run(main())


def test_nothing_but_bad_messages_ends_the_connection() -> None:
    """Too many in a row close it with 1008; a good one between them restarts the count."""

    async def main() -> None:
        async with serving(deps_of()) as port, open_socket(port) as connection:
            for _ in range(2):
                for _ in range(BAD_MESSAGES_MAX - 1):
                    await connection.send("?")
                    await problem(connection)
                await say(connection, op="ping")
                assert (await hear(connection))["event"] == "pong"
            for _ in range(BAD_MESSAGES_MAX):
                await connection.send("?")
            assert await closing_code(connection) == 1008

    run(main())


def test_a_binary_message_is_read_like_text() -> None:
    """Clients that can only send bytes are served."""

    async def main() -> None:
        async with serving(deps_of()) as port, open_socket(port) as connection:
            await connection.send(b'{"op": "ping"}')
            assert await hear(connection) == {"event": "pong"}
            await connection.send(b"\xff\xfe")
            assert await problem(connection) == (None, "malformed_body")

    run(main())


def test_sockets_count_as_connections() -> None:
    """Above the limit the handshake is answered with 503 and Retry-After; a closed socket frees its slot."""

    async def main() -> None:
        connections = Connections(1)
        async with serving(deps_of(connections=connections)) as port:
            async with open_socket(port):
                with pytest.raises(InvalidStatus) as refused:
                    async with open_socket(port):
                        pass
                response = refused.value.response
                assert (response.status_code, json.loads(response.body or b"")["code"]) == (503, "busy")
                assert response.headers["retry-after"]
            await until(lambda: connections.open == 0)

    run(main())


def test_a_shutdown_closes_sockets_with_a_reason() -> None:
    """1012 tells a client to reconnect to the gateway that starts next."""

    async def main() -> None:
        deps = deps_of()
        async with serving(deps) as port, open_socket(port) as connection:
            await say(connection, op="subscribe", id="1", stream="s")
            await hear(connection)
            deps.closing.set()
            assert await closing_code(connection) == 1012
            await until(lambda: deps.connections.open == 0)

    run(main())


def busy_view() -> ViewChannel:
    """A view with so many changes that a test does not come to their end."""
    view = FakeView()
    for _ in range(5_000):
        view.put({"a": "x" * 1000})
    return ViewChannel("busy", view, replace(CALM, buffered_changes=10_000), key=["k"])


def test_a_busy_subscription_does_not_starve_the_others() -> None:
    """With three that never pause, each gets its turn, a quiet one is served, and commands are executed."""

    async def main() -> None:
        log = FakeLog(1)
        source = StreamChannel("s", log, CALM)
        deps = make_deps(streams={"s": source}, views={"busy": busy_view()})
        async with serving(deps) as port, open_socket(port) as connection:
            await say(connection, op="subscribe", id="quiet", stream="s")
            for number in range(3):
                await say(connection, op="subscribe", id=f"busy{number}", view="busy", since=view_cursor(1, 0))
            heard: list[str] = []
            while len(set(heard)) < 4:
                heard.append(json.loads(await connection.recv())["id"])
            log.write(0, 1)
            source.wake()
            while True:
                message = json.loads(await connection.recv())
                heard.append(message["id"])
                if message["id"] == "quiet" and message["event"] == "change":
                    break
            await say(connection, op="unsubscribe", id="busy0")
            while json.loads(await connection.recv()) != {"id": "busy0", "event": "unsubscribed"}:
                pass
            latest = [json.loads(await connection.recv())["id"] for _ in range(40)]
            assert latest.count("busy1") >= 10
            assert latest.count("busy2") >= 10
            assert "busy0" not in latest

    run(main())


def test_a_subscription_that_fails_leaves_the_others_alone() -> None:
    """The client learns which one failed, without internal details, and can subscribe again."""

    async def main() -> None:
        log, view = FakeLog(1), FakeView()
        async with serving(deps_of(log, view, settings=QUICK)) as port, open_socket(port) as connection:
            await say(connection, op="subscribe", id="rows", view="v")
            await say(connection, op="subscribe", id="log", stream="s")
            for _ in range(3):
                await hear(connection)
            log.error = Damaged("bad", file="/secret")
            log.write(0, 1)
            message = await hear(connection)
            assert (message["id"], message["data"]["code"]) == ("log", "damaged")
            assert "file" not in message["data"]
            view.put({"a": 1})
            assert (await hear(connection))["id"] == "rows"
            log.error = None
            await say(connection, op="subscribe", id="log", stream="s")
            assert await hear(connection) == {"id": "log", "event": "subscribed"}

    run(main())
