"""Callers side by side: refusals, limits, names and leftovers of one caller do not affect another."""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from penstock.core.settings import Settings
from tests.collect.support import body
from tests.harness import wait_for
from tests.memory_log import DEADLINE_S
from tests.runtime.guarded import Running, running

EVENT = {"k": "x"}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as gateway:
        yield gateway


@dataclass
class Raw:
    """One connection, on which each request is sent in one piece, so that it can take the fast path."""

    gateway: Running
    connection: socket.socket

    def post(self, *headers: tuple[str, str], stream: str = "a") -> tuple[int, str, bool]:
        """Post, and return status and code of the answer, and whether it took the fast path."""
        before, content = len(self.gateway.asgi), body(EVENT)
        named = [("host", "127.0.0.1"), ("content-length", str(len(content))), *headers]
        lines = [f"POST /v1/streams/{stream} HTTP/1.1", *(f"{name}: {value}" for name, value in named), "", ""]
        self.connection.sendall("\r\n".join(lines).encode() + content)
        with HTTPResponse(self.connection) as answer:
            answer.begin()
            response = json.loads(answer.read())
        return answer.status, response.get("code", ""), len(self.gateway.asgi) == before


@pytest.fixture
def client(gateway: Running) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
        yield Raw(gateway, connection)


def bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


def test_the_short_way_refuses_as_the_long_way_does_whether_a_key_is_known_or_not(
    gateway: Running, client: Raw
) -> None:
    key, other = gateway.add("bob", "produce:a"), gateway.add("eve", "produce:a", rate=0.001)
    for _ in range(2):
        assert client.post() == (401, "unauthorized", False)
        assert client.post(bearer(key[:-1] + "x")) == (401, "unauthorized", False)
        assert client.post(("authorization", f"Basic {key}")) == (401, "unauthorized", False)
        assert client.post(bearer(key), stream="b") == (403, "forbidden", False)
        assert client.post(bearer(key))[0] == 200
    assert client.post(bearer(key)) == (200, "", True), "a key that is known takes the short way"
    for pair in (
        (bearer(key), bearer(key)),
        (bearer(key), bearer("x")),
        (bearer("x"), bearer(key)),
        (bearer(key), ("authorization", "Basic x")),
        (("authorization", "Basic x"), bearer(key)),
        (bearer(key), ("sec-websocket-protocol", f"penstock.key.{key}")),
    ):
        assert client.post(*pair) == (401, "unauthorized", False)
    assert client.post(("sec-websocket-protocol", f"penstock.key.{key}")) == (200, "", False)
    assert client.post(("origin", "http://evil.example"), bearer(key)) == (403, "forbidden", False)
    assert [client.post(bearer(other))[0] for _ in range(4)] == [200, 200, 429, 429]
    assert client.post(bearer(other)) == (429, "rate_limited", False)
    gateway.keys.revoke("bob")
    gateway.reload()
    assert client.post(bearer(key)) == (401, "unauthorized", False)


def test_the_first_key_closes_the_short_way_to_others(gateway: Running, client: Raw) -> None:
    assert client.post() == (200, "", True)
    gateway.add("bob", "admin")
    assert client.post() == (401, "unauthorized", False)


def ended(socket: ClientConnection) -> tuple[int, str]:
    with suppress(ConnectionClosed):
        while True:
            socket.recv(60)
    return socket.protocol.close_code or 0, socket.protocol.close_reason or ""


CHANGES: dict[str, Callable[[Running], object]] = {
    "revoked": lambda gateway: gateway.keys.revoke("bob"),
    "rotated": lambda gateway: gateway.keys.rotate("bob", timedelta(0)),
    "rotated for a moment": lambda gateway: gateway.keys.rotate("bob", timedelta(milliseconds=200)),
    "deleted": lambda gateway: gateway.keys.path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", ["/v1/live", "/v1/streams/a/publish"])
def test_a_websocket_ends_with_its_key_and_others_go_on(gateway: Running, path: str, change: str) -> None:
    key, other = gateway.add("bob", "admin"), gateway.add("eve", "admin")
    with gateway.socket(path, key) as socket, gateway.socket("/v1/live", other) as beside:
        gateway.reload()
        if path == "/v1/live":
            socket.send(json.dumps({"op": "subscribe", "id": "1", "stream": "a"}))
            assert json.loads(socket.recv(60))["event"] == "subscribed"
        CHANGES[change](gateway)
        gateway.reload()
        assert ended(socket) == (1008, "the key that opened this connection has been revoked or has expired")
        if change != "deleted":
            beside.send(json.dumps({"op": "ping"}))
            assert json.loads(beside.recv(60)) == {"event": "pong"}
    wait_for(lambda: gateway.gateway.connections.open == 0)


@pytest.mark.parametrize("change", CHANGES)
def test_server_sent_events_end_with_their_key(gateway: Running, change: str) -> None:
    key = gateway.add("bob", "consume:a")
    with gateway.client(key) as client, client.stream("GET", "/v1/streams/a/live") as response:
        pieces = response.iter_raw()
        assert next(pieces)
        CHANGES[change](gateway)
        gateway.reload()
        for _ in pieces:
            pass
    wait_for(lambda: gateway.gateway.connections.open == 0)
    assert gateway.get("/v1/streams/a", key).status_code in (401,)


def test_connections_of_nobody_end_with_the_first_key(gateway: Running) -> None:
    with gateway.socket("/v1/live") as socket, gateway.socket("/v1/streams/a/publish") as publisher:
        assert json.loads(publisher.recv(60))["event"] == "open"
        gateway.add("bob", "admin")
        assert ended(socket)[0] == ended(publisher)[0] == 1008


def test_a_client_that_takes_nothing_is_let_go_with_its_key(gateway: Running) -> None:
    """Its key has ended, whether it reads that or not: it never gets messages sent from here on."""
    key, boss = gateway.add("bob", "consume:a"), gateway.add("boss", "admin")
    with gateway.socket("/v1/live", key, max_queue=1, close_timeout=0.1) as socket:
        for number in range(40):
            socket.send(json.dumps({"op": "subscribe", "id": str(number), "stream": "a", "since": "earliest"}))
        for _ in range(5):
            gateway.post("a", boss, [{"k": "y" * 50_000} for _ in range(10)])
        gateway.keys.revoke("bob")
        gateway.reload()
        wait_for(lambda: gateway.gateway.connections.open == 0)


def test_who_is_over_its_rate_is_told_for_how_long_and_it_is_true(gateway: Running) -> None:
    key = gateway.add("bob", "produce:a", "consume:a", rate=2)
    with gateway.client(key) as client:
        assert client.post("/v1/streams/a", json=[EVENT] * 12).status_code == 200, "it may go into debt, by seconds"
        answer = client.post("/v1/streams/a", json=EVENT)
        assert answer.status_code == 429
        for _ in range(20):
            again = client.post("/v1/streams/a", json=EVENT)
            assert (again.status_code, again.json()["code"]) == (429, "rate_limited")
        assert client.get("/v1/streams/a").status_code == 429, "reading counts too"
        told_s = int(again.headers["retry-after"])
        assert told_s == again.json()["retry_after_s"] <= int(answer.headers["retry-after"]) + 1
        time.sleep(told_s)  # the guarantee is a time
        assert client.post("/v1/streams/a", json=EVENT).status_code == 200


def test_a_rate_is_not_got_around_by_many_bodies_that_are_held_back(gateway: Running) -> None:
    """Each of them was let in when its head came; the count applies when its events come."""
    key = gateway.add("bob", "produce:a", rate=0.001)
    content = body([EVENT] * 10)
    head = f"POST /v1/streams/a HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
    with ExitStack() as stack:
        address = ("127.0.0.1", gateway.port)
        held = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(20)]
        for connection in held:
            connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content[:5])
        wait_for(lambda: len(gateway.asgi) == len(held))
        statuses = []
        for connection in held:
            connection.sendall(content[5:])
            statuses.append(connection.recv(4096)[9:12])
    assert statuses == [b"200", *([b"429"] * 19)]


def test_a_producer_that_holds_back_bodies_leaves_room_for_those_of_another(tmp_path: Path) -> None:
    part = b"[" + b" " * 40_000
    with running(tmp_path, settings=Settings(pending_bytes_max=5 * len(part))) as gateway, ExitStack() as stack:
        bob, eve = gateway.add("bob", "produce:a"), gateway.add("eve", "produce:a")

        def sent(key: str) -> socket.socket:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 10))
            head = f"POST /v1/streams/a HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            connection.sendall(f"{head}content-length: {len(part) + 100}\r\n\r\n".encode() + part)
            return connection

        held = [sent(bob) for _ in range(4)]
        refused, _, _ = select.select(held, [], [], 10)
        assert {connection.recv(4096)[9:12] for connection in refused} == {b"429"}
        mine = sent(eve)
        mine.sendall(b'{"k": "x"}]'.rjust(100))
        assert mine.recv(4096)[9:12] == b"200"


def test_events_that_are_rejected_or_too_many_count_as_well(gateway: Running) -> None:
    key = gateway.add("bob", "produce:a", rate=10)
    with gateway.client(key) as client:
        assert client.post("/v1/streams/a", json=[{"k": 7}] * 500).status_code == 422
        answer = client.post("/v1/streams/a", json=EVENT)
        assert answer.status_code == 429
        assert 40 <= int(answer.headers["retry-after"]) <= 50


def test_a_noisy_key_costs_another_nothing(gateway: Running) -> None:
    noisy, quiet = gateway.add("noisy", "admin", rate=1), gateway.add("quiet", "admin", rate=1000)
    with gateway.client(noisy) as loud, gateway.client(quiet) as calm:
        for _ in range(100):
            loud.post("/v1/streams/a", json=[EVENT] * 10)
            assert calm.post("/v1/streams/a", json=EVENT).status_code == 200
        assert loud.get("/v1/app").status_code == 429


def test_a_publisher_over_its_rate_waits_and_loses_nothing(gateway: Running) -> None:
    key = gateway.add("bob", "produce:a", rate=50)
    with gateway.socket("/v1/streams/a/publish", key) as socket:
        assert json.loads(socket.recv(60))["event"] == "open"
        for number in range(130):
            socket.send(json.dumps({"seq": number, "event": EVENT}))
        last, accepted = -1, 0
        while last < 129:
            ack = json.loads(socket.recv(60))
            assert ack["event"] == "ack"
            last, accepted = ack["seq"], accepted + ack["accepted"]
    assert accepted == 130


def stored(gateway: Running) -> int:
    return gateway.gateway.log.events_appended("a")


def test_the_same_word_of_two_callers_is_no_repetition(gateway: Running) -> None:
    one, two = gateway.add("one", "admin"), gateway.add("two", "admin")
    for key in (one, two, one, two):
        gateway.post("a", key, **{"Idempotency-Key": "k"})
    assert stored(gateway) == 2
    for key in (one, two, one, two):
        with gateway.socket("/v1/streams/a/publish?producer=p", key) as socket:
            socket.send(json.dumps({"seq": 1, "event": EVENT}))
            while json.loads(socket.recv(60))["event"] != "ack":
                pass
    assert stored(gateway) == 4


def test_the_id_of_an_event_names_its_sender_as_the_page_on_security_says(gateway: Running) -> None:
    """The id is visible in a query and nowhere else; the class of these events has no id."""
    gateway.post("a", events=[{"k": "open"}], **{"Idempotency-Key": "k"})
    key = gateway.add("till-7", "admin")
    gateway.post("a", key, events=[{"k": "plain"}])
    gateway.post("a", key, events=[{"k": "first"}, {"k": "second"}], **{"Idempotency-Key": "order-1"})
    with gateway.socket("/v1/streams/a/publish?producer=door", key) as socket:
        socket.send(json.dumps({"seq": 4, "event": {"k": "published"}}))
        while json.loads(socket.recv(60))["event"] != "ack":
            pass
    with gateway.client(key) as client:
        rows = client.post("/v1/query", json={"sql": "SELECT k, _id FROM a"}).json()["rows"]
        assert {row["k"]: row["_id"] for row in rows} == {
            "open": "k/0",
            "plain": None,
            "first": "key:till-7/order-1/0",
            "second": "key:till-7/order-1/1",
            "published": "key:till-7/door/4/0",
        }
        page = client.get("/v1/streams/a").text
        assert '"published"' in page
        assert "_id" not in page
        assert "till-7" not in page
        assert client.get("/v1/streams/a", params={"select": "_id"}).status_code == 400


def test_a_page_opens_a_websocket_with_its_key_as_a_protocol(gateway: Running) -> None:
    key = gateway.add("bob", "consume:a", "produce:a")
    both: Any = ["penstock.v1", f"penstock.key.{key}"]
    for path in ("/v1/live", "/v1/streams/a/publish"):
        with gateway.socket(path, subprotocols=both) as socket:
            assert socket.subprotocol == "penstock.v1"
            assert socket.response is not None
            assert key not in str(socket.response.headers)
        assert gateway.opened(path, subprotocols=["penstock.v1"]) == 401
        assert gateway.opened(path, subprotocols=["penstock.v1", "penstock.key.rubbish"]) == 401
        assert gateway.opened(path, key, subprotocols=both) == 401, "one key, not two"
    assert gateway.opened("/v1/streams/b/publish", subprotocols=both) == 403


def test_a_page_of_another_site_opens_nothing_though_it_has_a_key(gateway: Running) -> None:
    key = gateway.add("bob", "admin")
    for path in ("/v1/live", "/v1/streams/a/publish"):
        assert gateway.opened(path, key, origin="http://evil.example") == 403
        assert gateway.opened(path, key, origin=f"http://127.0.0.1:{gateway.port}") == 101


def test_who_is_refused_leaves_no_line_in_the_log(gateway: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Anyone may be refused, as often as they like: they must not fill the disk of the log."""
    caplog.set_level(logging.WARNING)
    gateway.add("bob", "consume:a")
    for path in ("/v1/live", "/v1/streams/a/publish", "/v1/streams/b/publish", "/none"):
        assert gateway.opened(path) == 401
        assert gateway.get(path).status_code == 401
    assert gateway.post("a").status_code == 401
    assert caplog.text == ""


def test_a_rate_is_not_got_around_by_many_requests_at_once(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted before they are accepted: here the first waits for its commit while the others come."""
    key = gateway.add("bob", "produce:a", rate=0.001)
    stream_ingress = gateway.gateway.ingress.stream_ingress("a")
    offer, held, go = stream_ingress.group_commit.offer, threading.Event(), threading.Event()

    def slow(request: Any) -> Any:
        async def later() -> Any:
            held.set()
            await asyncio.to_thread(go.wait, DEADLINE_S)
            return await offer(request)

        return later()

    monkeypatch.setattr(stream_ingress.group_commit, "offer", slow)
    events = [EVENT] * 1000
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(gateway.post, "a", key, events, **{"Idempotency-Key": "1"})
        try:
            assert held.wait(DEADLINE_S)
            statuses = [gateway.post("a", key, events, **{"Idempotency-Key": "2"}).status_code for _ in range(3)]
        finally:
            go.set()
        assert (first.result(DEADLINE_S).status_code, statuses) == (200, [429, 429, 429])


def test_keys_that_cannot_be_read_are_a_problem_until_they_can(gateway: Running) -> None:
    key = gateway.add("ops", "admin")
    content = gateway.keys.path.read_bytes()
    gateway.keys.path.write_text("{")
    gateway.reload()
    assert gateway.get("/v1/app", key).status_code == 401
    problems = gateway.do(gateway.gateway.status.health)["problems"]
    assert [(problem["kind"], problem["level"]) for problem in problems] == [("access", "red")]
    assert "no key is accepted: " in problems[0]["message"]
    gateway.keys.path.write_bytes(content)
    gateway.reload()
    assert gateway.get("/v1/app", key).json()["problems"] == []
