"""The publish WebSocket, against a real server, with clients that behave and clients that do not."""

from __future__ import annotations

import json
import logging
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock.app.shed import Shed
from penstock.core.errors import DiskFull, StorageError
from penstock.core.settings import Settings
from tests.collect.served import Served, serving, wait_for
from tests.collect.support import fix

POLICY, TOO_BIG, RESTART = 1008, 1009, 1012


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@contextmanager
def connected(served: Served, stream: str = "fixes", query: str = "", **options: Any) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{served.port}/v1/streams/{stream}/publish{query}"
    with connect(url, compression=None, close_timeout=1, **options) as connection:
        yield connection


@contextmanager
def publishing(served: Served, stream: str = "fixes", query: str = "") -> Iterator[ClientConnection]:
    with connected(served, stream, query) as connection:
        assert heard(connection) == {"event": "open", "window": served.window}
        yield connection


def heard(connection: ClientConnection) -> dict[str, Any]:
    return dict(json.loads(connection.recv(timeout=60)))


def say(connection: ClientConnection, seq: int, *events: Any) -> None:
    connection.send(json.dumps({"seq": seq, "events": events}))


def until_acknowledged(connection: ClientConnection, seq: int) -> list[dict[str, Any]]:
    """Return all messages received until this message is acknowledged."""
    messages = [heard(connection)]
    while messages[-1]["event"] != "ack" or messages[-1]["seq"] < seq:
        messages.append(heard(connection))
    return messages


def close_code(connection: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        connection.recv(timeout=60)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def ids(served: Served) -> list[str]:
    return [row["fix_id"] for row in served.log.events("fixes")]


def test_events_are_acknowledged_in_order_once_they_are_durable(served: Served) -> None:
    with publishing(served) as connection:
        served.log.gate.clear()
        for seq in range(5, 15):
            say(connection, seq, fix(2 * seq), fix(2 * seq + 1))
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.2)
        served.log.gate.set()
        acks = until_acknowledged(connection, 14)
    assert sum(ack["accepted"] for ack in acks) == 20
    assert [ack["seq"] for ack in acks] == sorted(ack["seq"] for ack in acks)
    assert ids(served) == [f"f{number}" for number in range(10, 30)]


def test_one_event_needs_no_list(served: Served) -> None:
    with publishing(served) as connection:
        connection.send(json.dumps({"seq": 1, "event": fix(1)}))
        assert until_acknowledged(connection, 1)[-1]["accepted"] == 1


def test_a_rejected_event_is_told_with_its_message_and_the_rest_is_taken(served: Served) -> None:
    with publishing(served) as connection:
        say(connection, 1, fix(1), {"fix_id": "x"})
        say(connection, 2, "rubbish")
        messages = until_acknowledged(connection, 2)
    rejected = [message for message in messages if message["event"] == "rejected"]
    assert [(message["seq"], message["errors"][0]["index"]) for message in rejected] == [(1, 1), (2, 0)]
    assert ids(served) == ["f1"]
    assert len(served.log.events("fixes.rejected")) == 2


def test_an_event_that_is_too_far_ahead_is_told_with_its_message_and_the_rest_is_taken() -> None:
    with serving(ahead=timedelta(hours=11)) as served, publishing(served) as connection:
        say(connection, 1, fix(1), fix(2) | {"at": "2026-01-01T11:00:01Z"}, fix(3))
        [rejected] = [message for message in until_acknowledged(connection, 1) if message["event"] == "rejected"]
        assert rejected["errors"][0]["index"] == 1
        assert "is more than 11:00:00 ahead" in rejected["errors"][0]["reason"]
        assert ids(served) == ["f1", "f3"]


def test_a_client_over_the_window_is_not_read(served: Served) -> None:
    """Nothing accumulates: the client's messages stay in its own socket, and are read once there is room."""
    served.window = 3
    with publishing(served) as connection:
        served.log.gate.clear()
        for seq in range(10):
            say(connection, seq, fix(seq))
        wait_for(lambda: served.pending >= 3)
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.2)
        assert served.pending == 3
        served.log.gate.set()
        until_acknowledged(connection, 9)
    assert ids(served) == [f"f{seq}" for seq in range(10)]


def test_a_producer_that_sends_again_on_another_connection_is_known(served: Served) -> None:
    """This includes events that have no id: they are identified by the producer and the number of the message."""
    for _ in range(2):
        with publishing(served, "raw", "?producer=meter-7") as connection:
            for seq in range(3):
                say(connection, seq, {"reading": seq})
            acks = until_acknowledged(connection, 2)
    assert (sum(ack["accepted"] for ack in acks), sum(ack["duplicates"] for ack in acks)) == (0, 3)
    with publishing(served, "raw", "?producer=meter-8") as connection:
        say(connection, 0, {"reading": 0})
        assert until_acknowledged(connection, 0)[-1]["accepted"] == 1
    assert len(served.log.events("raw")) == 4


def posted(served: Served, lines: bytes, key: bytes) -> dict[str, Any]:
    """Send lines to `raw` by POST, under an idempotency key, and return the receipt."""
    headers = {b"Content-Type": b"application/x-ndjson", b"Idempotency-Key": key}
    url = f"http://127.0.0.1:{served.port}/v1/streams/raw"
    return dict(httpx.post(url, content=lines, headers=headers, trust_env=False).raise_for_status().json())


@pytest.mark.parametrize("producer", ["meter-7", "x" * 100])
def test_a_message_is_known_when_it_is_repeated_by_post(served: Served, producer: str) -> None:
    """The name of its producer can be short, or so long that it is hashed."""
    with publishing(served, "raw", f"?producer={producer}") as connection:
        say(connection, 7, {"reading": 1})
        assert until_acknowledged(connection, 7)[-1]["accepted"] == 1
    receipt = posted(served, b"1", f"{producer}/7".encode())
    assert (receipt["accepted"], receipt["duplicates"]) == (0, 1)


def test_a_long_name_of_a_request_is_not_stored_with_each_of_its_events(served: Served) -> None:
    """Otherwise, a name that is sent once takes as much space as it has characters, times the number of events."""
    assert posted(served, b"1\n" * 1_000, b"\xe9" * 255)["accepted"] == 1_000
    with publishing(served, "raw", f"?producer={'x' * 100}") as connection:
        say(connection, 10**1000, {"reading": 1})
        assert until_acknowledged(connection, 10**1000)[-1]["accepted"] == 1
    stored = [row["_id"] for row in served.log.events("raw")]
    assert len(set(stored)) == 1_001
    assert max(len(name.encode()) for name in stored) < 70


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("rubbish", "malformed_body"),
        ("[]", "malformed_body"),
        ('{"seq": 1}', "bad_parameter"),
        ('{"seq": -1, "events": []}', "bad_parameter"),
        ('{"seq": "1", "events": []}', "malformed_body"),
        ('{"seq": 1, "event": {}, "events": []}', "bad_parameter"),
        ('{"seq": 1, "events": [], "more": 1}', "malformed_body"),
        ("[" * 100_000, "malformed_body"),
        (b"\xff\xfe", "malformed_body"),
    ],
)
def test_what_is_no_message_is_answered_and_the_connection_closed(
    served: Served, message: str | bytes, code: str
) -> None:
    with publishing(served) as connection:
        connection.send(message)
        assert heard(connection)["problem"]["code"] == code
        assert close_code(connection) == POLICY


def test_a_gap_in_the_numbers_is_refused_and_what_was_before_it_is_kept(served: Served) -> None:
    with publishing(served) as connection:
        say(connection, 1, fix(1))
        until_acknowledged(connection, 1)
        say(connection, 3, fix(3))
        assert "expected 2" in heard(connection)["problem"]["detail"]
    assert ids(served) == ["f1"]


@pytest.mark.parametrize("query", ["?producer=", "?x=1", "?producer=a&producer=b", f"?producer={'x' * 101}"])
def test_a_bad_parameter_is_told(served: Served, query: str) -> None:
    with connected(served, query=query) as connection:
        assert heard(connection)["problem"]["code"] == "bad_parameter"


def test_a_stream_that_is_not_there_is_told(served: Served) -> None:
    with connected(served, "none") as connection:
        assert heard(connection)["problem"]["code"] == "not_found"


def test_a_page_of_another_site_is_refused(served: Served) -> None:
    with pytest.raises(InvalidStatus) as refused, connected(served, origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("fault", [DiskFull("full", retry_after_s=1), StorageError("broken")])
def test_after_a_failed_commit_nothing_of_it_is_acknowledged(served: Served, fault: Exception) -> None:
    with publishing(served) as connection:
        served.log.faults = [fault]
        say(connection, 1, fix(1))
        assert heard(connection)["problem"]["code"] in ("disk_full", "storage")
        assert close_code(connection) == RESTART
    with publishing(served) as connection:
        say(connection, 1, fix(1))
        assert until_acknowledged(connection, 1)[-1]["accepted"] == 1


def test_a_message_of_the_largest_size_is_taken_and_a_larger_one_is_not() -> None:
    with serving(settings=Settings(event_bytes_max=2_000_000)) as served, publishing(served, "raw") as connection:
        say(connection, 1, "x" * 1_000_000)
        assert until_acknowledged(connection, 1)[-1]["accepted"] == 1
        with suppress(ConnectionClosed):
            say(connection, 2, "x" * 2_000_000)
        assert close_code(connection) == TOO_BIG


OPENING = b"""GET /v1/streams/fixes/publish HTTP/1.1\r
Host: localhost\r
Upgrade: websocket\r
Connection: Upgrade\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r
\r
"""


def test_an_event_before_a_message_that_is_too_large_is_kept_and_nothing_is_logged(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """It becomes durable after its connection has failed: nobody is left to acknowledge it to."""
    message = json.dumps({"seq": 1, "events": [fix(1)]}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(OPENING)
        assert client.recv(4096).startswith(b"HTTP/1.1 101")
        served.log.gate.clear()
        client.sendall(b"\x81\xfe" + len(message).to_bytes(2, "big") + bytes(4) + message)  # masked with zeros
        wait_for(lambda: served.pending == 1)
        client.sendall(b"\x81\xff" + (1 << 30).to_bytes(8, "big") + bytes(4))
        assert TOO_BIG.to_bytes(2, "big") in client.makefile("rb").read(), "until the server says no more"
        served.log.gate.set()
        wait_for(lambda: ids(served) == ["f1"])
        wait_for(lambda: not served.server.server_state.tasks)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_gateway_that_stops_says_so(served: Served) -> None:
    with publishing(served) as connection:
        served.loop.call_soon_threadsafe(served.closing.set)
        assert close_code(connection) == RESTART


def test_what_a_producer_sends_is_there_once_though_connections_break(served: Served) -> None:
    """Connections end at any moment, and a client resends everything not acknowledged."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    following, total, connections = 0, 300, 0
    while following < total:
        connections += 1
        with publishing(served, "raw", "?producer=p") as connection:
            upcoming = range(following, min(following + chance.randrange(1, 40), total))
            for seq in upcoming:
                say(connection, seq, {"number": seq})
            if chance.random() < 0.7:
                following = until_acknowledged(connection, chance.choice(upcoming))[-1]["seq"] + 1
            if chance.random() < 0.5:
                connection.socket.close()
    numbers = [json.loads(row["data"])[0]["number"] for row in served.log.events("raw")]
    assert sorted(numbers) == list(range(total))
    assert connections > 3


def test_an_acknowledgement_says_how_many_events_were_shed() -> None:
    with serving(shed=Shed(unless="vehicle = 'ambulance'")) as served, publishing(served) as connection:
        served.strain("is 11 events ahead of till")
        say(connection, 1, fix(1, "ambulance"), fix(2))
        first = until_acknowledged(connection, 1)[-1]
        assert (first["accepted"], first["shed"]) == (1, 1)
        say(connection, 2, fix(3), fix(4))
        assert until_acknowledged(connection, 2)[-1]["shed"] == 2
        served.strain(None)
        say(connection, 3, fix(5))
        assert "shed" not in until_acknowledged(connection, 3)[-1]
        assert ids(served) == ["f1", "f5"]
        assert served.rig.ingress.audits()["fixes"].of("WS").shed == 3
