"""A WebSocket message that is not complete has a deadline, and counts as an incomplete body of its caller."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.core.settings import Settings
from penstock.http.pending import PendingBytes
from tests.collect.attacked import edge_of
from tests.collect.served import Served, serving, wait_for
from tests.collect.support import fix
from tests.collect.test_publish import OPENING

KIB = 1024
FINAL_TEXT, FIRST_TEXT, MORE, PING = 0x81, 0x01, 0x00, 0x89
POLICY, LATER = (1008).to_bytes(2, "big"), (1013).to_bytes(2, "big")


def frame(kind: int, data: bytes) -> bytes:
    """Return a client's frame, masked with zeros."""
    size = len(data)
    if size < 126:
        return bytes([kind, 0x80 | size]) + bytes(4) + data
    return bytes([kind, 0xFF]) + size.to_bytes(8, "big") + bytes(4) + data


def message(seq: int) -> bytes:
    return frame(FINAL_TEXT, json.dumps({"seq": seq, "events": [fix(seq)]}).encode().ljust(200))


@contextmanager
def opened(served: Served) -> Iterator[tuple[socket.socket, Any]]:
    """Open a publishing WebSocket. Gives the client's socket and the server's protocol."""
    before = served.connections
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(OPENING)
        received = b""
        while b'"open"' not in received:
            received += client.recv(4096)
        [protocol] = [connection for connection in served.connections if connection not in before]
        yield client, protocol


def rest(client: socket.socket) -> bytes:
    """Return everything until the server says no more."""
    with client.makefile("rb") as reader:
        return reader.read()


def pending(served: Served) -> PendingBytes:
    return edge_of(served).pending


UNFINISHED = {
    "a frame": [frame(FINAL_TEXT, b" " * 1000)[:-1]],
    "the header of a frame and a byte": [frame(FINAL_TEXT, b" " * 1000)[:15]],
    "a fragment": [frame(FIRST_TEXT, b" " * 1000)],
    "an empty fragment": [frame(FIRST_TEXT, b"")],
    "fragments among pings": [frame(FIRST_TEXT, b" "), frame(PING, b"a"), frame(MORE, b" "), frame(PING, b"b")],
    "after a whole message": [message(1) + message(2)[:-1]],
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_message_that_does_not_become_complete_ends_its_connection(name: str) -> None:
    with serving(settings=Settings(body_s=0.2)) as served, opened(served) as (client, _):
        for packet in UNFINISHED[name]:
            client.sendall(packet)
        assert POLICY + b"the message did not arrive within 0.2 s" in rest(client)
        client.close()
        wait_for(lambda: not len(edge_of(served)))
        assert not pending(served)._held


def test_a_connection_between_messages_has_no_deadline() -> None:
    with serving() as served, opened(served) as (client, protocol):
        client.sendall(message(1)[:50])
        wait_for(lambda: protocol.overdue_at > 0)
        client.sendall(message(1)[50:])
        assert b'"ack"' in client.recv(4096)
        wait_for(lambda: protocol.overdue_at == 0)
        assert not pending(served)._held


def test_each_message_has_its_own_time() -> None:
    """The end of one message can arrive together with the beginning of the next, again and again."""
    with serving() as served, opened(served) as (client, protocol):
        client.sendall(message(1)[:50])
        wait_for(lambda: protocol.overdue_at > 0)
        before = protocol.overdue_at
        client.sendall(message(1)[50:] + message(2)[:50])
        wait_for(lambda: protocol.overdue_at > before)
        client.sendall(message(2)[50:])
        wait_for(lambda: protocol.overdue_at == 0)


def test_the_time_does_not_run_while_nothing_is_read() -> None:
    """The client cannot complete its message then, however much it wants to."""
    with serving() as served:
        served.window = 1
        with opened(served) as (client, protocol):
            served.log.gate.clear()
            client.sendall(message(1) + message(2) + message(3)[:50])
            wait_for(lambda: pending(served)._held > 0)
            wait_for(lambda: served.pending == 1)
            assert (protocol.read_paused, protocol.overdue_at) == (True, 0)
            served.log.gate.set()
            wait_for(lambda: protocol.overdue_at > 0)
            client.sendall(message(3)[50:])
            wait_for(lambda: protocol.overdue_at == 0)


@pytest.mark.parametrize("kind", [FIRST_TEXT, FINAL_TEXT])
def test_incomplete_messages_have_the_room_of_incomplete_bodies(kind: int) -> None:
    part = frame(kind, b" " * 100 * KIB)
    part = part if kind == FIRST_TEXT else part[:-1]
    with serving(settings=Settings(pending_bytes_max=250 * KIB)) as served:
        with opened(served) as (one, _), opened(served) as (two, _):
            one.sendall(part)
            two.sendall(part)
            wait_for(lambda: pending(served)._held >= 199 * KIB)
            with opened(served) as (three, _):
                three.sendall(part)
                assert LATER in rest(three)
            wait_for(lambda: pending(served)._held <= 200 * KIB)
        wait_for(lambda: not pending(served)._held)
        assert not pending(served)._own
