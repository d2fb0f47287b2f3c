"""A published message that has to wait, for its caller's rate or for room in the queue, is held as it arrived, counts
for its caller, and is dropped if its client disconnects."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from penstock.collect.decode import BodyDecoder
from penstock.collect.group_commit import IngressRequest
from penstock.core.access import Caller, Gate
from penstock.core.access.caller import Bucket
from penstock.core.access.grants import ALL
from penstock.core.settings import Settings
from tests.collect.served import Served, serving, wait_for
from tests.collect.support import fix
from tests.collect.test_unfinished import FINAL_TEXT, LATER, POLICY, frame, opened, pending, rest

KIB = 1024
CLOSE = 0x88
TINY = frame(0x82, b"")


def message(seq: int, *events: Any, size: int = 0) -> bytes:
    return frame(FINAL_TEXT, json.dumps({"seq": seq, "events": events}).encode().ljust(max(size, 200)))


@contextmanager
def slow_caller(**settings: Any) -> Iterator[tuple[Served, Caller]]:
    """Run a server with one caller. Its rate is enough for a few messages, and does not recover during the test."""
    gate, bucket = Gate(), Bucket(0.001)
    bucket._most = bucket._left = 100.0
    gate.anyone = Caller("key:slow", ALL, bucket)
    with serving(gate=gate, settings=Settings(**settings)) as served:
        yield served, gate.anyone


def spend(served: Served, caller: Caller) -> None:
    """Use up a caller's rate, while its sessions are waiting for their next message."""
    wait_for(lambda: all(protocol.queue.empty() for protocol in served.connections))
    served.loop.call_soon_threadsafe(caller.spend, 1000)
    wait_for(lambda: caller.wait_s() > 0)


def test_a_message_that_waits_for_the_rate_is_counted_and_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded, it can take thirty times the memory."""
    decoded: list[bytes] = []
    whole = BodyDecoder._whole

    def observed(self: BodyDecoder, decode: Any, body: bytes) -> Any:
        decoded.append(body)
        return whole(self, decode, body)

    monkeypatch.setattr(BodyDecoder, "_whole", observed)
    with slow_caller() as (served, caller), opened(served) as (one, _), opened(served) as (two, protocol):
        one.sendall(message(1, fix(1)))
        assert b'"ack"' in one.recv(4096)
        spend(served, caller)
        two.sendall(message(1, fix(2), size=100 * KIB))
        wait_for(lambda: pending(served)._own["key:slow"] >= 100 * KIB)
        two.sendall(message(2, fix(3), size=90 * KIB))
        wait_for(lambda: pending(served)._own["key:slow"] >= 190 * KIB)
        wait_for(lambda: protocol.read_paused)
        assert len(decoded) == 1
    wait_for(lambda: not served.connections)
    assert not pending(served)._held


@pytest.mark.parametrize("more", [b"", message(2, fix(3)) * 3 + b"half a frame", frame(CLOSE, b"")])
def test_a_session_that_waits_for_the_rate_ends_with_its_connection(more: bytes) -> None:
    """Also if the server has not read everything that the client sent, and so not the end of it either."""
    with slow_caller() as (served, caller), opened(served) as (client, _):
        spend(served, caller)
        client.sendall(message(1, fix(1), size=100 * KIB) + more)
        client.close()
        wait_for(lambda: not served.server.server_state.tasks)
        wait_for(lambda: not served.connections)
        assert not pending(served)._held
        assert not served.log.events("fixes")


def test_frames_of_one_read_wait_as_they_are() -> None:
    """A frame of 6 bytes would become a message of 400 bytes in a queue."""
    with slow_caller() as (served, caller), opened(served) as (client, protocol):
        spend(served, caller)
        client.sendall(message(1, fix(1)) + TINY * 20_000)
        wait_for(lambda: pending(served)._held > 20_000)
        assert protocol.queue.qsize() <= 1


def test_frames_of_one_read_are_taken_in_order_up_to_the_close() -> None:
    with serving() as served, opened(served) as (client, _):
        sent = [message(seq, fix(seq)) for seq in range(500)]
        client.sendall(b"".join(sent) + frame(CLOSE, b""))
        rest(client)
        client.close()
        wait_for(lambda: len(served.log.events("fixes")) == 500)
        assert [row["fix_id"] for row in served.log.events("fixes")] == [f"f{seq}" for seq in range(500)]


def test_a_connection_that_is_refused_ends_at_once_though_messages_wait_behind_the_bad_one() -> None:
    with serving() as served, opened(served) as (client, protocol):
        client.sendall(message(1, fix(1)) + message(7, fix(2)) + message(8, fix(3)) * 3 + frame(CLOSE, POLICY))
        assert POLICY in rest(client)
        assert protocol.close_timer is None, "the client's close was read"
        assert not protocol.conn.reader.buffer


def test_messages_that_wait_for_room_in_the_queue_are_decoded_one_at_a_time() -> None:
    with serving(settings=Settings(pending_events_max=10)) as served, ExitStack() as stack:
        clients = [stack.enter_context(opened(served))[0] for _ in range(6)]
        served.log.gate.clear()
        clients[0].sendall(message(1, *(fix(number) for number in range(10))))
        wait_for(lambda: served.pending == 10)
        for number, client in enumerate(clients[1:], start=2):
            client.sendall(message(1, *(fix(100 * number + event) for event in range(5)), size=10 * KIB))
        wait_for(lambda: pending(served)._held >= 50 * KIB)
        assert sum(type(known) is IngressRequest and len(known.events) == 5 for known in gc.get_objects()) <= 1
        served.log.gate.set()
        for client in clients:
            assert b'"ack"' in client.recv(4096)
        assert len(served.log.events("fixes")) == 35


def test_a_session_that_waits_for_room_in_the_queue_ends_with_its_connection() -> None:
    with serving(settings=Settings(pending_events_max=10)) as served, ExitStack() as stack:
        one, two = (stack.enter_context(opened(served))[0] for _ in range(2))
        served.log.gate.clear()
        one.sendall(message(1, *(fix(number) for number in range(10))))
        wait_for(lambda: served.pending == 10)
        two.sendall(message(1, *(fix(number) for number in range(20, 25))) * 2)
        wait_for(lambda: pending(served)._held > 0)
        two.close()
        wait_for(lambda: len(served.connections) == 1)
        wait_for(lambda: len(served.server.server_state.tasks) == 1)


def test_a_session_with_a_full_window_ends_with_its_connection() -> None:
    with serving() as served:
        served.window = 1
        with opened(served) as (client, _):
            served.log.gate.clear()
            client.sendall(message(1, fix(1)) + message(2, fix(2)) + message(3, fix(3)))
            wait_for(lambda: served.pending == 1)
            client.close()
            wait_for(lambda: not served.server.server_state.tasks)


def test_waiting_messages_have_the_room_of_incomplete_bodies() -> None:
    with slow_caller(pending_bytes_max=500 * KIB) as (served, caller), ExitStack() as stack:
        clients: list[socket.socket] = [stack.enter_context(opened(served))[0] for _ in range(3)]
        spend(served, caller)
        for client in clients[:2]:
            client.sendall(message(1, fix(1), size=100 * KIB))
        wait_for(lambda: pending(served)._held >= 200 * KIB)
        clients[2].sendall(message(1, fix(1), size=100 * KIB))
        assert LATER in rest(clients[2]), "the caller's half is used up"
        clients[2].close()
        wait_for(lambda: len(served.connections) == 2 and pending(served)._held < 210 * KIB)
