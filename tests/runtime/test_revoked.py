"""Requests that a revoked key has under way end with it, whatever they wait for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from tests.collect.fakes import DEADLINE_S
from tests.collect.support import body
from tests.harness import wait_for
from tests.runtime.guarded import Running, running

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
    with running(tmp_path) as found:
        yield found


def end(gateway: Running, how: str = "revoked") -> None:
    ENDS[how](gateway)
    gateway.reload()


@contextmanager
def half_sent(gateway: Running, path: str, key: str) -> Iterator[socket.socket]:
    """A request of which the first bytes of the body have come."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
        connection.sendall(f"{head}content-length: {len(BODIES[path])}\r\n\r\n".encode() + BODIES[path][:5])
        wait_for(lambda: path in gateway.asgi)
        yield connection


def answer(connection: socket.socket) -> tuple[int, Any]:
    with HTTPResponse(connection) as found:
        found.begin()
        return found.status, json.loads(found.read())


def accepted(gateway: Running) -> int:
    return sum(gateway.do(lambda: gateway.gateway.log.ends("a")).values())


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_is_still_sending_its_body_ends_with_its_key(gateway: Running, path: str, how: str) -> None:
    key = gateway.add("bob", "produce:a", "consume:*")
    with half_sent(gateway, path, key) as connection:
        end(gateway, how)
        status, told = answer(connection)
        assert (status, told["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_complete_after_its_key_is_revoked_does_nothing(gateway: Running, path: str) -> None:
    """Whether or not the gateway has looked for unfinished ones since."""
    key, boss = gateway.add("bob", "produce:a", "consume:*"), gateway.add("boss", "admin")
    before = accepted(gateway)
    with half_sent(gateway, path, key) as connection:
        end(gateway)
        connection.sendall(BODIES[path][5:])
        assert answer(connection)[0] == 401
    assert accepted(gateway) == before
    assert gateway.get("/v1/webhooks", boss).json() == {"webhooks": []}


def test_a_request_that_waits_for_its_reply_ends_with_its_key(gateway: Running) -> None:
    """There is no engine here, so the reply never comes. The events are taken, and the answer says so."""
    key = gateway.add("bob", "produce:a", "consume:v")
    with gateway.client(key) as client, ThreadPoolExecutor(1) as thread:
        posted = thread.submit(client.post, "/v1/streams/a?reply=v&timeout=60", json={"k": "x"})
        wait_for(lambda: gateway.gateway.acks._replies == 1)
        end(gateway)
        found = posted.result(DEADLINE_S)
    assert (found.status_code, found.json()["code"]) == (401, "unauthorized")
    assert "the events are taken" in found.json()["detail"]
    assert gateway.gateway.acks._replies == 0


def test_a_query_that_runs_ends_with_its_key(gateway: Running) -> None:
    key = gateway.add("bob", "consume:*")
    with gateway.client(key) as client, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(client.post, "/v1/query", json={"sql": SLOW})
        wait_for(lambda: "/v1/query" in gateway.asgi)
        end(gateway)
        found = asked.result(DEADLINE_S)
    assert (found.status_code, found.json()["code"]) == (401, "unauthorized")


def test_a_body_that_is_complete_while_its_key_is_valid_is_taken(gateway: Running) -> None:
    """Others may be revoked beside it."""
    key, other = gateway.add("eve", "produce:a"), gateway.add("bob", "produce:a")
    with half_sent(gateway, "/v1/streams/a", key) as mine, half_sent(gateway, "/v1/streams/a", other) as theirs:
        end(gateway)
        assert answer(theirs)[0] == 401
        mine.sendall(BODIES["/v1/streams/a"][5:])
        assert answer(mine)[0] == 200
