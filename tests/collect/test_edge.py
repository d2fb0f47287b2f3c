"""The cost of a connection: clients that drip heads, stall and pile up, beside a good one that must be answered."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from penstock.core.settings import Settings
from penstock.http import edge as edges
from tests.collect.attacked import CHUNKED, HEAD, PATIENT, UPGRADE, attacked, closed, drip, edge_of, good
from tests.collect.served import Client, Served, request, wait_for
from tests.collect.support import body, fix


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "LOOK_S", 0.02)
    monkeypatch.setattr(edges, "LINGER_S", 0.1)


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"", b"P"),
        (b"P", b"O"),
        (HEAD, b"X-A: b\r\n"),
        (HEAD + b"X-A: ", b"b"),
        (b"GET /", b"a"),
        (b"", b"\r\n"),
        (good(), b"\r\n"),
        (good(), b"G"),
    ],
)
def test_a_head_that_drips_is_answered_and_closed(begun: bytes, piece: bytes) -> None:
    with attacked() as served, Client(served) as client:
        client.send(begun)
        if begun == good():
            assert client.answer().startswith(b"HTTP/1.1 200")
        answer = drip(client, piece)
        assert answer[:12] in (b"HTTP/1.1 408", b"HTTP/1.1 400", b"HTTP/1.1 431"), answer
        assert b"application/problem+json" in answer
        assert b"connection: close" in answer
        assert closed(client)


@pytest.mark.parametrize("begun", [b"P", b"POST /v1/streams/fixes HTTP/1.1\r\n", HEAD, HEAD + b"X-A", b"\r\n"])
def test_half_a_head_is_408_and_closed(begun: bytes) -> None:
    with attacked() as served, Client(served) as client:
        client.send(begun)
        assert client.answer().startswith(b"HTTP/1.1 408 Request Timeout")
        assert client.is_at_end()


def test_who_says_nothing_is_closed_without_a_word() -> None:
    with attacked() as served, Client(served) as first, Client(served) as second:
        wait_for(lambda: len(edge_of(served)) == 3)
        assert first.is_at_end()
        assert second.is_at_end()


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X-A: " + b"b" * 400_000,
        HEAD + b"".join(b"X-%d: b\r\n" % number for number in range(40_000)),
        b"GET /" + b"a" * 400_000,
        b"G" * 400_000,
        b"\r\n" * 200_000,
        HEAD + b"X" * 400_000,
    ],
    ids=["one header", "many headers", "a long URL", "no method", "empty lines", "no colon"],
)
def test_a_head_without_end_is_refused(head: bytes) -> None:
    with attacked() as served, Client(served) as client:
        for at in range(0, len(head), 2000):
            try:
                client.socket.sendall(head[at : at + 2000])
            except (BrokenPipeError, ConnectionResetError):
                break
        assert client.answer()[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
        assert closed(client)


@pytest.mark.parametrize(
    "head",
    [
        request(b"", "X-A: " + "b" * 5000, line="GET /v1/app HTTP/1.1"),
        request(b"", *(f"X-{number}: b" for number in range(1000)), line="GET /v1/app HTTP/1.1"),
        request(b"", line=f"GET /v1/app?{'a' * 5000} HTTP/1.1"),
        request(body(fix(1)), "X-A: " + "b" * 5000),
    ],
    ids=["one header", "many headers", "a long URL", "a post"],
)
def test_a_whole_head_that_is_too_large_is_431_however_it_comes(head: bytes) -> None:
    with attacked(PATIENT) as served:
        asked = len(served.asgi)
        for packets in ([head], [head[:3000], head[3000:]], [head[:10], head[10:]]):
            with Client(served) as client:
                client.send(*packets)
                assert client.answer().startswith(b"HTTP/1.1 431 Request Header Fields Too Large")
                assert client.is_at_end()
        assert len(served.asgi) == asked


def test_too_many_connections_are_told_and_those_that_are_open_go_on() -> None:
    with attacked(Settings(sockets_max=5)) as served, ExitStack() as stack:
        open_ones = [stack.enter_context(Client(served)) for _ in range(4)]
        wait_for(lambda: len(edge_of(served)) == 5)
        for _ in range(20):
            with Client(served) as late:
                assert late.answer().startswith(b"HTTP/1.1 503 Service Unavailable")
                assert late.is_at_end()
        for client in open_ones:
            client.send(good())
            assert client.answer().startswith(b"HTTP/1.1 200")
        open_ones[0].__exit__()
        wait_for(lambda: len(edge_of(served)) == 4)
        with Client(served) as late:
            late.send(good())
            assert late.answer().startswith(b"HTTP/1.1 200")


def connect_from(served: Served, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 10, (address, 0))


@pytest.mark.parametrize("most", [2, 0])
def test_one_address_has_its_share_and_another_has_its_own(most: int) -> None:
    with attacked(Settings(sockets_per_address_max=most)) as served, ExitStack() as stack:
        for number in range(2):
            for _ in range(2):
                stack.enter_context(connect_from(served, f"127.0.0.{number + 2}"))
        wait_for(lambda: len(edge_of(served)) == 5)
        with connect_from(served, "127.0.0.2") as third:
            if most:
                assert b"127.0.0.2 already has 2 connections" in third.recv(4096)
                assert third.recv(1) == b""
            else:
                third.sendall(good())
                assert third.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_websocket_is_counted_until_it_ends() -> None:
    with attacked(Settings(sockets_max=3)) as served, ExitStack() as stack:
        sockets = [stack.enter_context(Client(served)) for _ in range(2)]
        for client in sockets:
            client.send(UPGRADE)
            assert client.answer().startswith(b"HTTP/1.1 101")
        with Client(served) as late:
            assert late.answer().startswith(b"HTTP/1.1 503")
        sockets[0].reset()
        wait_for(lambda: len(edge_of(served)) == 2)
        with Client(served) as late:
            late.send(UPGRADE)
            assert late.answer().startswith(b"HTTP/1.1 101")


def test_a_websocket_outlives_the_time_of_an_idle_connection() -> None:
    settings = Settings(head_s=0.05, body_s=0.05, idle_s=0.3)
    with attacked(settings) as served, Client(served) as client, Client(served) as idle:
        client.send(UPGRADE)
        assert client.answer().startswith(b"HTTP/1.1 101")
        assert idle.is_at_end()
        wait_for(lambda: len(edge_of(served)) == 2)
        client.send(b"\x89\x80\x00\x00\x00\x00")
        assert client.socket.recv(2) == b"\x8a\x00"


def test_many_who_do_harm_at_once_leave_nothing() -> None:
    """Half heads, stalled bodies, silent connections and floods, a hundred of each."""
    kinds: list[Callable[[Client], None]] = [
        lambda client: client.send(b"POST /v1/str"),
        lambda client: client.send(request(b"[", length=100)),
        lambda client: None,
        lambda client: client.send(CHUNKED + b"5;" + b"e" * 2000),
    ]
    with attacked() as served, ExitStack() as stack:
        clients = [stack.enter_context(Client(served)) for _ in range(100) for _ in kinds]
        for number, client in enumerate(clients):
            kinds[number % len(kinds)](client)
        assert all(closed(client) for client in clients)
