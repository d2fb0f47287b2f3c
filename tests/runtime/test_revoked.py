"""Pending requests of a revoked key end with it, whatever they wait for."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from penstock.runtime.acks import Acks
from penstock.runtime.states import HandlerStates
from penstock.serve.channels.stream import StreamChannel
from tests.collect.support import body
from tests.harness import wait_for
from tests.memory_log import DEADLINE_S
from tests.runtime.guarded import Running, running
from tests.runtime.hooked import QUICK, Receiver, asking, receiver, state_is

__all__ = ["receiver"]

ENDS: dict[str, Callable[[Running], object]] = {
    "revoked": lambda gateway: gateway.keys.revoke("bob"),
    "rotated for a moment": lambda gateway: gateway.keys.rotate("bob", timedelta(milliseconds=200)),
}
BODIES: dict[str, bytes] = {
    "/v1/streams/a": body({"k": "x"}),
    "/v1/query": body({"sql": "SELECT 1 AS n"}),
    "/v1/webhooks": body({"url": "https://x.example/", "stream": "a"}),
}
SLOW = "SELECT count(*) FROM range(1000000000000), range(10)"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as gateway:
        yield gateway


def end(gateway: Running, how: str = "revoked") -> None:
    ENDS[how](gateway)
    gateway.reload()


@contextmanager
def half_sent(gateway: Running, path: str, key: str) -> Iterator[socket.socket]:
    """Send a request whose body has only begun."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
        connection.sendall(f"{head}content-length: {len(BODIES[path])}\r\n\r\n".encode() + BODIES[path][:5])
        wait_for(lambda: path in gateway.asgi)
        yield connection


def answer(connection: socket.socket) -> tuple[int, Any]:
    with HTTPResponse(connection) as response:
        response.begin()
        return response.status, json.loads(response.read())


def accepted(gateway: Running) -> int:
    return sum(gateway.do(lambda: gateway.gateway.log.ends("a")).values())


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_is_still_sending_its_body_ends_with_its_key(gateway: Running, path: str, how: str) -> None:
    key = gateway.add("bob", "produce:a", "consume:*")
    with half_sent(gateway, path, key) as connection:
        end(gateway, how)
        status, problem = answer(connection)
        assert (status, problem["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_complete_after_its_key_is_revoked_does_nothing(gateway: Running, path: str) -> None:
    """This holds whether or not the gateway has looked for unfinished ones since."""
    key, boss = gateway.add("bob", "produce:a", "consume:*"), gateway.add("boss", "admin")
    before = accepted(gateway)
    with half_sent(gateway, path, key) as connection:
        end(gateway)
        connection.sendall(BODIES[path][5:])
        assert answer(connection)[0] == 401
    assert accepted(gateway) == before
    assert gateway.get("/v1/webhooks", boss).json() == {"webhooks": []}


def test_a_request_that_waits_for_its_reply_ends_with_its_key(gateway: Running) -> None:
    """There is no engine here, so the reply never comes. The events are accepted, and the answer says so."""
    key = gateway.add("bob", "produce:a", "consume:v")
    with gateway.client(key) as client, ThreadPoolExecutor(1) as thread:
        posted = thread.submit(client.post, "/v1/streams/a?reply=v&timeout=60", json={"k": "x"})
        wait_for(lambda: gateway.gateway.acks._replies == 1)
        end(gateway)
        response = posted.result(DEADLINE_S)
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    assert "the events were accepted" in response.json()["detail"]
    assert gateway.gateway.acks._replies == 0


def test_a_query_that_runs_ends_with_its_key(gateway: Running) -> None:
    key = gateway.add("bob", "consume:*")
    with gateway.client(key) as client, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(client.post, "/v1/query", json={"sql": SLOW})
        wait_for(lambda: "/v1/query" in gateway.asgi)
        end(gateway)
        response = asked.result(DEADLINE_S)
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")


def test_a_body_that_is_complete_while_its_key_is_valid_is_taken(gateway: Running) -> None:
    """Other keys may be revoked meanwhile."""
    key, other = gateway.add("eve", "produce:a"), gateway.add("bob", "produce:a")
    with half_sent(gateway, "/v1/streams/a", key) as mine, half_sent(gateway, "/v1/streams/a", other) as theirs:
        end(gateway)
        assert answer(theirs)[0] == 401
        mine.sendall(BODIES["/v1/streams/a"][5:])
        assert answer(mine)[0] == 200


class Held:
    """A blocking method that waits for `go`; `begun` is set once it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        original = getattr(cls, name)

        def held(*given: Any) -> Any:
            self.begun.set()
            self.go.wait(DEADLINE_S)
            return original(*given)

        monkeypatch.setattr(cls, name, held)


READS: dict[str, tuple[type, str, str]] = {
    "page": (StreamChannel, "_find", "/v1/streams/a"),
    "latest events": (StreamChannel, "_find_last", "/v1/streams/a?last=5"),
    "page with wait": (StreamChannel, "_find", "/v1/streams/a?since=latest&wait=20"),
    "state": (HandlerStates, "_get", "/v1/handlers/h/state/x"),
    "ack": (Acks, "_logged", "/v1/acks/{ack}"),
}


@contextmanager
def reading(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, which: str, count: int = 1
) -> Iterator[tuple[Held, Callable[[], list[tuple[int, str]]]]]:
    """Send requests that are being answered in threads; yields what holds them up, and a function that waits for their
    statuses and codes."""
    cls, name, path = READS[which]
    ack = gateway.post("a", gateway.add("boss", "admin")).json()["ack"]
    key, held = gateway.add("bob", "consume:*"), Held(monkeypatch, cls, name)
    with ThreadPoolExecutor(count) as threads:
        before = len(gateway.asgi)
        asked = [threads.submit(gateway.get, path.format(ack=ack), key) for _ in range(count)]
        wait_for(lambda: held.begun.is_set() and len(gateway.asgi) == before + count)

        def answers() -> list[tuple[int, str]]:
            responses = [one.result(DEADLINE_S) for one in asked]
            return [(response.status_code, response.json().get("code", "")) for response in responses]

        try:
            yield held, answers
        finally:
            held.go.set()


@pytest.mark.parametrize("which", READS)
def test_a_read_that_takes_long_ends_with_its_key(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """It is answered although the thread that does its work is still busy."""
    with reading(gateway, monkeypatch, which) as (held, answers):
        end(gateway)
        assert answers() == [(401, "unauthorized")]
        assert not held.go.is_set()


def test_pages_that_wait_for_a_thread_end_with_their_key(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller gets two threads, so most of its pages are queued."""
    with reading(gateway, monkeypatch, "page", 12) as (_, answers):
        end(gateway)
        assert answers() == [(401, "unauthorized")] * 12


@pytest.mark.parametrize("which", READS)
def test_a_read_that_is_complete_after_its_key_is_revoked_shows_nothing(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """This holds even if the gateway has not looked for such requests since."""
    monkeypatch.setattr("penstock.http.arriving.LOOK_S", 2 * DEADLINE_S)
    with reading(gateway, monkeypatch, which) as (held, answers):
        end(gateway)
        held.go.set()
        assert answers() == [(401, "unauthorized")]


def test_a_read_goes_on_while_its_key_is_valid(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other keys may be revoked meanwhile."""
    gateway.add("eve", "consume:a")
    with reading(gateway, monkeypatch, "page") as (held, answers):
        gateway.keys.revoke("eve")
        gateway.reload()
        held.go.set()
        assert answers() == [(200, "")]


def test_a_challenge_continues_but_the_request_for_it_ends_with_its_key(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The webhook belongs to another key, so it becomes active: the outcome is neither lost nor applied in part."""
    receiver.willing = False
    with running(tmp_path, settings=QUICK) as gateway:
        mine, boss = gateway.add("mine", "consume:a"), gateway.add("bob", "admin")
        with asking(gateway, mine) as ask, gateway.client(boss) as client, ThreadPoolExecutor(1) as thread:
            id = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)["id"]
            begun, go = threading.Event(), gateway.do(asyncio.Event)

            async def challenge(*_: Any) -> None:
                begun.set()
                await go.wait()

            monkeypatch.setattr("penstock.serve.webhooks.dispatcher.challenge", challenge)
            asked = thread.submit(client.post, f"/v1/webhooks/{id}/verify")
            assert begun.wait(DEADLINE_S)
            wait_for(lambda: f"/v1/webhooks/{id}/verify" in gateway.asgi)
            end(gateway)
            response = asked.result(DEADLINE_S)
            assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
            gateway.do(go.set)
            state_is(ask, id, "active")


def test_a_new_secret_is_not_shown_to_a_key_that_ended_meanwhile(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, settings=QUICK) as gateway:
        with asking(gateway, gateway.add("bob", "consume:a")) as ask:
            id = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)["id"]
            monkeypatch.setattr("penstock.serve.webhooks.routes.has_ended", lambda _: True)
            refused = ask("POST", f"/{id}/rotate", expect=401)
            assert "the request was accepted" in refused["detail"]
            assert "secret" not in refused
            assert "secret" not in ask("POST", body={"url": receiver.url, "stream": "a"}, expect=401)
