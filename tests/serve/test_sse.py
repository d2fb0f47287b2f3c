"""Server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.contracts import Delivery
from penstock.core.cursor import stream_cursor
from penstock.core.errors import Damaged
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections
from penstock.serve.sse import encode
from tests.clocks import until
from tests.serve.clients import events, read_events
from tests.serve.fakes import QUICK, FakeLog, FakeView, make_deps, run, serving


def test_an_event_has_its_kind_its_cursor_and_its_data() -> None:
    """The headers forbid caches and buffers, and tell the browser how soon to reconnect."""

    async def main() -> None:
        log = FakeLog()
        log.write(0, 7, text="héllo")
        async with serving(make_deps(streams={"x": StreamChannel("x", log, QUICK)})) as port:
            url = f"http://127.0.0.1:{port}/v1/streams/x/live?since=earliest"
            async with httpx.AsyncClient() as client, client.stream("GET", url) as response:
                assert response.status_code == 200
                assert response.headers["content-type"].startswith("text/event-stream")
                assert response.headers["cache-control"] == "no-store"
                assert response.headers["x-accel-buffering"] == "no"
                lines = response.aiter_lines()
                assert [await anext(lines) for _ in range(6)] == [
                    "retry: 1000",
                    "",
                    "event: change",
                    f"id: {stream_cursor(1, log.ends('x'))}",
                    'data: {"events":[{"n":7,"text":"héllo"}]}',
                    "",
                ]

    run(main())


def test_the_last_event_id_wins_over_since() -> None:
    """A browser that reconnects repeats its first address; its current position is in the header."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1, 2, 3)
        async with serving(make_deps(streams={"x": StreamChannel("x", log, QUICK)})) as port:
            url = f"http://127.0.0.1:{port}/v1/streams/x/live?since=earliest"
            headers = {"Last-Event-ID": stream_cursor(1, {0: log.offsets("x", 0)[1] + 1})}
            async with httpx.AsyncClient() as client, client.stream("GET", url, headers=headers) as response:
                received = await anext(read_events(response))
                assert [event["n"] for event in received.data["events"]] == [3]

    run(main())


@pytest.mark.parametrize("text", ["a\n\nevent: x\ndata: {}", "a\r\rid: 9", "\u2028\u2029\x85\x0b", "\x00"])
def test_no_text_of_an_event_can_make_an_event_of_its_own(text: str) -> None:
    """Line breaks inside values stay inside values."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1, text=text)
        async with serving(make_deps(streams={"x": StreamChannel("x", log, QUICK)})) as port:
            async with events(port, "stream", "earliest") as deliveries:
                first = await anext(deliveries)
                assert first.data["events"][0]["text"] == text
                assert (await anext(deliveries)).kind == "progress"

    run(main())


def test_data_with_line_breaks_between_values_is_put_on_one_line() -> None:
    """JSON written over several lines, whoever wrote it, stays one event with the same value."""
    raw = b"".join(encode(Delivery("change", b'{"upserts":\r\n[],\n"deletes":[]}', "c\nid: x")))
    kind, id, data, *rest = raw.split(b"\n")
    assert (kind, id, rest) == (b"event: change", b"id: c id: x", [b"", b""])
    assert json.loads(data.removeprefix(b"data: ")) == {"upserts": [], "deletes": []}


def test_a_large_snapshot_arrives_whole() -> None:
    """A delivery of many slices is one event."""

    async def main() -> None:
        view = FakeView()
        view.put({str(number): "x" * 1000 for number in range(2000)})
        async with serving(make_deps(views={"x": ViewChannel("x", view, QUICK, key=["k"])})) as port:
            async with events(port, "view", None) as deliveries:
                assert len((await anext(deliveries)).data["rows"]) == 2000

    run(main())


def test_connections_over_the_limit_are_told_to_come_back() -> None:
    """503 with `busy` and Retry-After; a slot that becomes free can be used."""

    async def main() -> None:
        connections = Connections(2)
        deps = make_deps(streams={"x": StreamChannel("x", FakeLog(), QUICK)}, connections=connections)
        async with serving(deps) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            async with events(port, "stream", None) as one, events(port, "stream", None) as two:
                await anext(one), await anext(two)
                answer = await client.get("/v1/streams/x/live")
                assert (answer.status_code, answer.json()["code"]) == (503, "busy")
                assert int(answer.headers["retry-after"]) >= 1
            await until(lambda: connections.open == 0)
            async with events(port, "stream", None) as again:
                assert (await anext(again)).kind == "progress"

    run(main())


def test_a_shutdown_ends_live_responses_properly() -> None:
    """When the gateway closes, the response ends completely, at once, without waiting for a heartbeat."""

    async def main() -> None:
        deps = make_deps(streams={"x": StreamChannel("x", FakeLog(), replace(QUICK, heartbeat_s=600))})
        async with serving(deps) as port:
            async with events(port, "stream", None) as deliveries:
                assert (await anext(deliveries)).kind == "progress"
                deps.closing.set()
                assert [delivery async for delivery in deliveries] == []
            assert deps.connections.open == 0

    run(main())


def test_a_failure_on_the_way_is_the_last_event() -> None:
    """Damage found while following is reported as `error` with its code, and the response ends."""

    async def main() -> None:
        log = FakeLog(1)
        source = StreamChannel("x", log, replace(QUICK, heartbeat_s=600))
        async with serving(make_deps(streams={"x": source})) as port:
            async with events(port, "stream", None) as deliveries:
                await anext(deliveries)
                log.error = Damaged("bad bytes in /secret/path", file="/secret/path")
                log.write(0, 1)
                source.wake()
                rest = [delivery async for delivery in deliveries]
                assert [(delivery.kind, delivery.data["code"]) for delivery in rest] == [("error", "damaged")]
                assert "file" not in rest[0].data

    run(main())


def test_a_bug_in_a_channel_is_told_without_its_details() -> None:
    """An unexpected error is `internal`, and its text stays in the log."""

    async def main() -> None:
        log = FakeLog()
        log.error = ValueError("a secret")
        async with serving(make_deps(streams={"x": StreamChannel("x", log, QUICK)})) as port:
            async with events(port, "stream", None) as deliveries:
                await anext(deliveries)
                log.write(0, 1)
                last = [delivery async for delivery in deliveries][-1]
                assert (last.kind, last.data["code"]) == ("error", "internal")
                assert "secret" not in json.dumps(last.data)

    run(main())


def test_a_client_that_goes_is_noticed_without_a_write() -> None:
    """A closed connection frees its slot and its follower at once, however quiet the stream is."""

    async def main() -> None:
        source = StreamChannel("x", FakeLog(), replace(QUICK, heartbeat_s=600))
        deps = make_deps(streams={"x": source})
        async with serving(deps) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /v1/streams/x/live HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: deps.connections.open == 1)
            writer.close()
            await writer.wait_closed()
            await until(lambda: deps.connections.open == 0)
            assert source._tail.row_filters.readers == 0

    run(main())


def test_a_head_request_gets_the_headers_and_an_end() -> None:
    """HEAD does not hold a connection open."""

    async def main() -> None:
        deps = make_deps(streams={"x": StreamChannel("x", FakeLog(), QUICK)})
        async with serving(deps) as port, httpx.AsyncClient() as client:
            answer = await client.head(f"http://127.0.0.1:{port}/v1/streams/x/live")
            assert answer.status_code == 200
            assert deps.connections.open == 0

    run(main())


def parsed(raw: bytes) -> list[tuple[str, str, str]]:
    """Return type, last id and data of each event, by the rules of the HTML standard for a stream of events."""
    messages, last, kind, data = list[tuple[str, str, str]](), "", "", list[str]()
    lines = re.split("\r\n|\n|\r", raw.decode())
    for line in lines[:-1]:  # anything after the last line break is not dispatched
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                messages.append((kind or "message", last, "\n".join(data)))
            kind, data = "", []
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id" and "\0" not in value:
            last = value
    return messages


TEXTS = st.text() | st.lists(
    st.sampled_from(["\n", "\r", "\r\n", "event: x", "data:", "id: 1", ":", "\ufeff", "\u2028"])
).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=5
)


@given(st.dictionaries(TEXTS, VALUES), st.sampled_from([None, 1, "\t"]), TEXTS.filter(lambda text: "\0" not in text))
def test_any_delivery_is_one_event_with_its_kind_its_id_and_its_data(value: Any, indent: Any, cursor: str) -> None:
    """This holds for all values and keys, on any number of lines; for a cursor too, though ours have no breaks."""
    raw = b"".join(encode(Delivery("change", json.dumps(value, indent=indent).encode(), cursor)))
    [(kind, last, data)] = parsed(raw)
    assert (kind, last) == ("change", cursor.replace("\r", " ").replace("\n", " "))
    assert json.loads(data) == value
