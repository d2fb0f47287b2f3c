"""Servers, proxies and networks that behave oddly, and the client's reaction to them. No test waits."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from typing import Any

import pytest
import trustme
from websockets.asyncio.server import ServerConnection

from penstock.client import Change, Client, ClientError, Events, Progress, ServerError, Snapshot, Unreachable
from penstock.core.schema import EpochMillis, Event, Record
from tests.client.scripted import Answer, Waits, page, problem, scripted, stream, websocket
from tests.serve.fakes import run

HTML = Answer(404, b"<html>", "text/html")


def change(cursor: str, *numbers: int) -> tuple[str, str, Any]:
    return ("change", cursor, {"events": [{"n": number} for number in numbers]})


async def first(client: Client, count: int, **wish: Any) -> list[int]:
    """Return the first events of the stream `x`."""
    event_numbers: list[int] = []
    async with client.follow(stream="x", **wish) as messages:
        while len(event_numbers) < count:
            message = await anext(messages)
            event_numbers += [event["n"] for event in message.events] if isinstance(message, Events) else []
    return event_numbers


def test_an_event_stream_that_ends_is_asked_for_again_from_the_last_whole_message() -> None:
    async def main() -> None:
        cut = stream(change("c2", 2), change("c3", 3))
        cut.body = cut.body[:-1]
        script = [stream(change("c1", 1)), cut, stream(change("c3", 3))]
        async with scripted(*script) as server, Client(server.url, timing=Waits().timing()) as client:
            assert await first(client, 3, since="c0", transport="sse") == [1, 2, 3]
            assert [request.query for request in server.asked] == [{"since": cursor} for cursor in ("c0", "c1", "c2")]

    run(main())


def test_failures_are_waited_out_longer_each_time_and_a_message_ends_the_series() -> None:
    async def main() -> None:
        busy = problem(503, "busy", Retry_After="7")
        broken = Answer(502, b"", "text/html")
        script = [broken, broken, busy, stream(change("c1", 1)), broken, stream(change("c2", 2))]
        waits = Waits()
        async with scripted(*script) as server, Client(server.url, timing=waits.timing()) as client:
            assert await first(client, 2, since="c0", transport="sse") == [1, 2]
        assert waits.seconds == [0.125, 0.25, 7, 0.125, 0.25]

    run(main())


@pytest.mark.parametrize("transport", ["sse", "poll", "websocket"])
def test_what_no_retry_helps_is_raised_with_its_code_and_not_tried_again(transport: Any) -> None:
    async def main() -> None:
        for refusal in (problem(401, "unauthorized"), problem(400, "bad_cursor"), problem(500, "damaged")):
            async with scripted(refusal) as server, Client(server.url, timing=Waits().timing()) as client:
                with pytest.raises(ServerError) as raised:
                    await first(client, 1, transport=transport)
                assert raised.value.status == refusal.status
                assert raised.value.detail == f"it is {raised.value.code}"
                assert len(server.asked) == 1

    run(main())


def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else() -> None:
    async def main() -> None:
        async with scripted(HTML) as elsewhere:
            moved = Answer(301, b"", headers={"Location": f"{elsewhere.url}/v1/streams/x"})
            async with scripted(moved) as server, Client(server.url, key="k", timing=Waits().timing()) as client:
                for transport in ("sse", "poll", "auto"):
                    with pytest.raises(ServerError) as raised:
                        await first(client, 1, transport=transport)
                    assert raised.value.status == 301
                with pytest.raises(Unreachable):
                    await first(client, 1, transport="websocket")
                with pytest.raises(ServerError):
                    await client.rows("x")
                assert all(request.headers["authorization"] == "Bearer k" for request in server.asked)
            assert elsewhere.asked == []

    run(main())


def test_where_nothing_but_plain_requests_gets_through_a_client_polls() -> None:
    """A proxy answers a WebSocket's handshake, and event streams too, with its own page."""

    async def main() -> None:
        script = [
            HTML,
            Answer(200, b"<html>", "text/html"),
            page(events=[], cursor="c0"),
            page(events=[{"n": 1}], cursor="c1"),
        ]
        async with scripted(*script) as server, Client(server.url, timing=Waits().timing()) as client:
            assert await first(client, 1) == [1]
        assert [request.path for request in server.asked] == ["/v1/live", "/v1/streams/x/live", *["/v1/streams/x"] * 2]
        assert [request.query for request in server.asked[2:]] == [{"since": "latest"}, {"since": "c0", "wait": "30"}]

    run(main())


def test_where_something_makes_a_plain_request_of_a_websockets_a_client_goes_on_by_events() -> None:
    """The server itself answers then, with a problem, and that is no reason to give up."""

    async def main() -> None:
        script = [problem(426, "upgrade_required"), stream(change("c1", 1))]
        async with scripted(*script) as server, Client(server.url, timing=Waits().timing()) as client:
            assert await first(client, 1, since="c0") == [1]
        assert [request.path for request in server.asked] == ["/v1/live", "/v1/streams/x/live"]

    run(main())


def test_an_event_of_a_kind_that_is_not_known_breaks_nothing() -> None:
    async def main() -> None:
        answer = stream(change("c1", 1))
        answer.body = b"event: weather\ndata: 7\n\n" + answer.body
        script = [answer, problem(404, "not_found")]
        async with scripted(*script) as server, Client(server.url, timing=Waits().timing()) as client:
            assert await first(client, 1, since="c0", transport="sse") == [1]

    run(main())


def test_where_no_transport_gets_through_that_is_said() -> None:
    async def main() -> None:
        async with scripted(HTML) as server, Client(server.url, timing=Waits().timing()) as client:
            with pytest.raises(Unreachable, match="404"):
                await first(client, 1, transport="websocket")

    run(main())


def test_a_long_poll_that_does_not_wait_is_not_asked_without_pause() -> None:
    async def main() -> None:
        nothing = page(events=[], cursor="c0")
        waits = Waits()
        script = [nothing, nothing, nothing, page(events=[{"n": 1}], cursor="c1")]
        async with scripted(*script) as server, Client(server.url, timing=waits.timing()) as client:
            assert await first(client, 1, since="c0", transport="poll") == [1]
        assert waits.seconds == [0.125, 0.25, 0.5]

    run(main())


def test_a_silent_event_stream_is_given_up() -> None:
    async def main() -> None:
        script = [stream(change("c1", 1), hold=True), stream(change("c2", 2), hold=True)]
        timing = Waits().timing(silence_s=1.0)
        async with scripted(*script) as server, Client(server.url, timing=timing) as client:
            assert await first(client, 2, since="c0", transport="sse") == [1, 2]

    run(main())


@pytest.mark.parametrize(
    "nonsense",
    ["{", "[]", '"change"', '{"id": "1"}', '{"id": "1", "event": "change", "data": {"events": []}}',
     '{"id": "1", "event": "change", "cursor": 7, "data": {}}', '{"id": "1", "event": "change", "cursor": "c9"}'],
)  # fmt: skip
def test_what_is_no_message_breaks_a_websocket_and_changes_no_position(nonsense: str) -> None:
    heard: list[Any] = []

    async def talk(connection: ServerConnection, number: int) -> None:
        asked = json.loads(await connection.recv())
        heard.append(asked.get("since"))
        delivery = {"id": asked["id"], "event": "change", "cursor": f"c{number}", "data": {"events": [{"n": number}]}}
        await connection.send(json.dumps(delivery))
        await connection.send(nonsense.replace('"1"', json.dumps(asked["id"])))
        await connection.wait_closed()

    async def main() -> None:
        async with websocket(talk) as url, Client(url, timing=Waits().timing()) as client:
            assert await first(client, 3, since="c0", transport="websocket") == [1, 2, 3]
        assert heard == ["c0", "c1", "c2"]

    run(main())


@pytest.mark.parametrize("transport", ["sse", "poll", "websocket"])
@pytest.mark.parametrize("lacking", [{}, {"upserts": []}, {"deletes": []}, {"upserts": None, "deletes": []}])
def test_a_change_that_lacks_its_lists_is_asked_for_again(transport: Any, lacking: Any) -> None:
    whole = {"upserts": [{"k": "a"}], "deletes": []}

    async def talk(connection: ServerConnection, number: int) -> None:
        asked = json.loads(await connection.recv())
        said = {"id": asked["id"], "event": "change", "cursor": "v2", "data": lacking if number == 1 else whole}
        await connection.send(json.dumps(said))
        await connection.wait_closed()

    async def main() -> None:
        pages = [page(changes=[data], cursor="v2") for data in (lacking, whole)]
        events = [stream(("change", "v2", data), hold=True) for data in (lacking, whole)]
        async with scripted(*(pages if transport == "poll" else events)) as server, websocket(talk) as url:
            chosen = url if transport == "websocket" else server.url
            async with Client(chosen, timing=Waits().timing()) as client:
                async with client.follow(view="x", since="v1", transport=transport) as messages:
                    assert await anext(messages) == Change([{"k": "a"}], [], "v2")

    run(main())


def test_a_message_over_the_bound_is_an_error_and_not_asked_for_for_ever() -> None:
    async def talk(connection: ServerConnection, _: int) -> None:
        await connection.recv()
        await connection.send("x" * 2000)
        await connection.wait_closed()

    async def main() -> None:
        async with websocket(talk) as url, Client(url, timing=Waits().timing(), message_bytes_max=1000) as client:
            with pytest.raises(ServerError) as raised:
                await first(client, 1, transport="websocket")
            assert raised.value.code == "too_large"
        async with scripted(stream(change("c1", *range(200)))) as server:
            async with Client(server.url, timing=Waits().timing(), message_bytes_max=1000) as client:
                with pytest.raises(ServerError) as raised:
                    await first(client, 1, transport="sse")
                assert raised.value.code == "too_large"

    run(main())


def test_a_websocket_that_is_refused_for_now_is_tried_again_when_the_server_says() -> None:
    async def talk(connection: ServerConnection, _: int) -> None:
        asked = json.loads(await connection.recv())
        await connection.send(json.dumps({"id": asked["id"], "event": "progress", "cursor": "c1", "data": {}}))
        await connection.wait_closed()

    async def main() -> None:
        waits = Waits()
        busy = problem(503, "busy", Retry_After="5")
        async with websocket(talk, lambda number: busy if number < 3 else None) as url:
            async with Client(url, timing=waits.timing()) as client:
                async with client.follow(stream="x", transport="websocket") as messages:
                    assert await anext(messages) == Progress("c1")
        assert waits.seconds == [5, 5]

    run(main())


@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_what_is_refused_for_now_within_a_connection_is_asked_for_when_the_server_says(transport: Any) -> None:
    """There is no header then: the problem has the time."""
    busy = {"status": 503, "code": "busy", "detail": "later", "retry_after_s": 5}

    async def talk(connection: ServerConnection, _: int) -> None:
        for _ in range(2):
            asked = json.loads(await connection.recv())
            await connection.send(json.dumps({"id": asked["id"], "event": "error", "data": busy}))
        asked = json.loads(await connection.recv())
        kind, cursor, data = change("c1", 1)
        await connection.send(json.dumps({"id": asked["id"], "event": kind, "cursor": cursor, "data": data}))
        await connection.wait_closed()

    async def main() -> None:
        waits, refusal = Waits(), stream(("error", "", busy))
        async with scripted(refusal, refusal, stream(change("c1", 1), hold=True)) as server, websocket(talk) as url:
            chosen = url if transport == "websocket" else server.url
            async with Client(chosen, timing=waits.timing()) as client:
                assert await first(client, 1, since="c0", transport=transport) == [1]
        assert waits.seconds == [5, 5]

    run(main())


def test_a_call_is_tried_again_for_its_time_and_then_raises_what_was_last() -> None:
    async def main() -> None:
        async with scripted(problem(503, "stopping"), page(rows=[], cursor="v1")) as server:
            async with Client(server.url, timing=Waits().timing()) as client:
                assert (await client.rows("x")).cursor == "v1"
        async with scripted(problem(503, "busy", Retry_After="60")) as server:
            async with Client(server.url, timing=Waits().timing(call_s=30)) as client:
                with pytest.raises(ServerError) as raised:
                    await client.rows("x")
                assert raised.value.code == "busy"
        async with Client("http://127.0.0.1:1", timing=Waits().timing(call_s=0.1)) as client:
            with pytest.raises(Unreachable):
                await client.rows("x")

    run(main())


def test_a_publish_is_tried_again_under_the_same_key_with_the_same_body() -> None:
    async def main() -> None:
        broken = Answer(502, b"", "text/html")
        done = page(accepted=0, duplicates=1, rejected=0, cursor="c1", errors=[], ack="a")
        async with scripted(broken, broken, done) as server, Client(server.url, timing=Waits().timing()) as client:
            receipt = await client.publish("x", b"")
            assert (receipt.duplicates, receipt.cursor, receipt.ack) == (1, "c1", "a")
        assert len(server.asked) == 3
        assert len({request.headers["idempotency-key"] for request in server.asked}) == 1

    run(main())


def test_an_address_with_a_secret_in_it_is_refused_and_a_key_is_not_shown() -> None:
    for url in (
        "http://user:hidden@host",
        "http://host?key=hidden",
        "http://host#hidden",
        "ws://host",
        "host:80",
        "http://user:hidden/x@host",
    ):
        with pytest.raises(ValueError, match="a client's URL") as raised:
            Client(url)
        assert "hidden" not in str(raised.value)
    assert "secret" not in repr(Client("http://host", key="secret"))


def test_the_key_of_each_connection_is_asked_for_anew() -> None:
    async def main() -> None:
        keys = iter("abc")
        script = [stream(change("c1", 1)), stream(change("c2", 2)), stream(change("c3", 3))]
        async with scripted(*script) as server:
            async with Client(server.url, key=lambda: next(keys), timing=Waits().timing()) as client:
                await first(client, 3, since="c0", transport="sse")
            assert [request.headers["authorization"] for request in server.asked] == [
                "Bearer a",
                "Bearer b",
                "Bearer c",
            ]

    run(main())


def test_a_query_is_followed_by_its_text() -> None:
    async def talk(connection: ServerConnection, number: int) -> None:
        asked = json.loads(await connection.recv())
        assert (asked["query"], asked.get("since")) == ("SELECT 1 AS one", [None, "q1"][number - 1])
        data = {"columns": [{"name": "one", "type": "INTEGER"}], "rows": [{"one": number}]}
        delivery = {"id": asked["id"], "event": "snapshot", "cursor": f"q{number}", "data": data}
        await connection.send(json.dumps(delivery))

    async def main() -> None:
        async with websocket(talk) as url, Client(url, timing=Waits().timing()) as client:
            async with client.follow(query="SELECT 1 AS one") as messages:
                assert [await anext(messages), await anext(messages)] == [
                    Snapshot([{"one": 1}], "q1"),
                    Snapshot([{"one": 2}], "q2"),
                ]
            with pytest.raises(Unreachable, match="cannot be polled"):
                await anext(client.follow(query="SELECT 1", transport="poll"))
            with pytest.raises(TypeError):
                client.follow(query="SELECT 1", where="one > 0")
        event: tuple[str, str, Any] = ("snapshot", "q1", {"columns": [], "rows": []})
        async with scripted(stream(event)) as server, Client(server.url, timing=Waits().timing()) as client:
            assert await anext(client.follow(query="SELECT 1", since="q0", transport="sse")) == Snapshot([], "q1")
            assert (server.asked[0].path, server.asked[0].query) == (
                "/v1/query/live",
                {"sql": "SELECT 1", "since": "q0"},
            )

    run(main())


def test_a_query_is_answered_with_rows_columns_and_cursors() -> None:
    async def main() -> None:
        answer = page(columns=[{"name": "n", "type": "BIGINT"}], rows=[{"n": 1}], cursors={"x": "c1"}, elapsed_ms=3)
        async with scripted(answer) as server, Client(server.url, timing=Waits().timing()) as client:
            table = await client.query("SELECT n FROM x", limit=5)
            assert (table.rows, table.cursors, table.truncated) == ([{"n": 1}], {"x": "c1"}, False)
            assert [(column.name, column.type) for column in table.columns] == [("n", "BIGINT")]
            assert server.asked[0].path == "/v1/query"

    run(main())


@pytest.mark.parametrize("transport", ["sse", "poll", "websocket", "auto"])
def test_a_certificate_that_is_not_trusted_is_told_and_not_waited_out(transport: Any) -> None:
    async def main() -> None:
        authority, served, trusting = (
            trustme.CA(),
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
            ssl.create_default_context(),
        )
        authority.issue_cert("localhost").configure_cert(served)
        authority.configure_trust(trusting)
        async with scripted(problem(404, "not_found"), tls=served) as server:
            async with Client(server.url, timing=Waits().timing()) as client:
                with pytest.raises(Unreachable, match="certificate"):
                    await first(client, 1, transport=transport)
                with pytest.raises(Unreachable, match="certificate"):
                    await client.rows("x")
            async with Client(server.url, tls=trusting, timing=Waits().timing()) as client:
                with pytest.raises(ServerError, match="not_found"):
                    await first(client, 1, transport=transport)

    run(main())


def test_the_key_is_in_no_log_however_much_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(connection: ServerConnection, _: int) -> None:
        await connection.recv()
        await connection.wait_closed()

    async def main() -> None:
        async with scripted(problem(503, "busy"), problem(404, "not_found")) as server:
            async with Client(server.url, key="a-secret-key", timing=Waits().timing()) as client:
                for transport in ("websocket", "sse", "poll"):
                    with pytest.raises(ServerError):
                        await first(client, 1, transport=transport)
        async with websocket(talk) as url, Client(url, key="a-secret-key", timing=Waits().timing()) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await first(client, 1, transport="websocket")

    caplog.set_level(logging.INFO, "websockets.server")  # it belongs to the test
    caplog.set_level(logging.DEBUG)
    run(main())
    assert "retrying" in caplog.text
    assert "a-secret-key" not in caplog.text


class Place(Record):
    seen: EpochMillis


class Trip(Event):
    at: EpochMillis
    places: list[Place]
    last: Place | None = None


def test_an_event_is_sent_with_its_epochs_as_milliseconds_and_read_back_from_times() -> None:
    from datetime import UTC, datetime

    from penstock.client.encoding import encode
    from penstock.client.messages import reader

    at = datetime(2026, 1, 1, tzinfo=UTC)
    trip = Trip(at=at, places=[Place(seen=at)], last=Place(seen=at))
    millis = 1767225600000
    sent = {"at": millis, "places": [{"seen": millis}], "last": {"seen": millis}}
    assert json.loads(encode(trip)) == sent
    assert json.loads(encode([trip, {"at": 1}])) == [sent, {"at": 1}]
    served = {"at": "2026-01-01T00:00:00Z", "places": [{"seen": "2026-01-01T00:00:00Z"}], "last": None}
    assert reader(Trip)([served]) == [Trip(at=at, places=[Place(seen=at)])]
    with pytest.raises(ClientError, match="does not match Trip"):
        reader(Trip)([{"at": 7}])
