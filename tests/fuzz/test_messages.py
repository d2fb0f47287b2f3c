"""Garbage by WebSocket and by datagram: clear errors, at most one connection lost, and the same accounting as for
bodies."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.fuzz.bodies import BAD, GOOD, MALFORMED, MIB, ORDERS, THINGS, VALUES, mangled
from tests.fuzz.books import Books
from tests.fuzz.gateway import RunningGateway, gateway
from tests.harness import wait_for

SEED = int(os.environ["TEST_SEED"])
FEW = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
POLICY, NOT_UTF_8, TOO_BIG = 1008, 1007, 1009


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway(tmp_path_factory.mktemp("messages") / "data") as running:
        yield running
        running.require_sound()


def socket_to(served: RunningGateway, path: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{served.port}{path}", compression=None, max_size=None, open_timeout=20)


def heard(client: ClientConnection, until: str) -> tuple[list[dict[str, Any]], int | None]:
    """Return all messages until one of that kind, or until the end with its code."""
    messages: list[dict[str, Any]] = []
    try:
        while not messages or messages[-1]["event"] != until:
            messages.append(json.loads(client.recv(20)))
    except ConnectionClosed as closed:
        return messages, closed.rcvd.code if closed.rcvd else None
    return messages, None


def publish(served: RunningGateway, message: bytes, *, text: bool = False) -> tuple[list[dict[str, Any]], int | None]:
    """Publish one message on a separate connection."""
    with socket_to(served, "/v1/streams/things/publish") as client:
        assert json.loads(client.recv(20))["event"] == "open"
        client.send(message, text=text)
        return heard(client, "ack")


@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if len(bad.body) < MIB])
def test_a_bad_event_by_websocket_is_rejected_or_ends_the_connection(served: RunningGateway, name: str) -> None:
    """An event that is JSON is judged alone; one that is not makes the whole message invalid."""
    bad, books = BAD[name], Books(served, "things")
    replies, code = publish(served, b'{"seq":1,"events":[%b,%b]}' % (GOOD, bad.body))
    events, letters = books.new()
    if code is not None:
        assert (replies[-1]["event"], code) == ("error", POLICY)
        assert replies[-1]["problem"]["code"] in (MALFORMED, "too_large")
        assert (events, letters) == ([], [])
    else:
        assert [reply["event"] for reply in replies] == ["rejected", "ack"]
        assert (len(events), letters) == (1, [bad.body])


def test_any_message_that_publishes_is_accounted_for(served: RunningGateway) -> None:
    books = Books(served, "things")
    event = THINGS | VALUES | ORDERS
    one = event.map(lambda value: b'{"seq":1,"event":%b}' % value)
    many = st.lists(event, max_size=3).map(lambda values: b'{"seq":1,"events":[%b]}' % b",".join(values))

    @seed(SEED)
    @FEW
    @given(mangled(one | many) | st.binary(max_size=50))
    def attack(message: bytes) -> None:
        replies, code = publish(served, message)
        events, letters = books.new()
        if code is not None:
            assert (replies[-1]["event"], code, events) == ("error", POLICY, [])
            return
        assert replies[-1]["accepted"] == len(events)
        assert sum(len(reply["errors"]) for reply in replies if reply["event"] == "rejected") == len(letters)

    attack()


@pytest.mark.parametrize("path", ["/v1/live", "/v1/streams/things/publish"])
def test_text_that_is_not_utf_8_ends_a_websocket(served: RunningGateway, path: str) -> None:
    with socket_to(served, path) as client:
        client.send(b"\xff\xfe", text=True)
        assert heard(client, "nothing")[1] == NOT_UTF_8


@pytest.mark.parametrize(("path", "size"), [("/v1/live", MIB), ("/v1/streams/things/publish", 8 * MIB)])
def test_a_message_that_is_too_large_ends_a_websocket(served: RunningGateway, path: str, size: int) -> None:
    with socket_to(served, path) as client:
        with suppress(ConnectionClosed):  # it may end before all is sent
            client.send(b" " * size)
        assert heard(client, "nothing")[1] in (TOO_BIG, None)  # unread data may cost the client the last message


def test_a_live_websocket_answers_rubbish_and_goes_on(served: RunningGateway) -> None:
    with socket_to(served, "/v1/live") as client:

        @seed(SEED)
        @FEW
        @given(
            st.one_of(mangled(st.just(b'{"op":"subscribe","id":"a","view":"none"}')), VALUES, st.binary(max_size=50))
        )
        def attack(message: bytes) -> None:
            client.send(message)
            client.send('{"op":"ping"}')
            replies, code = heard(client, "pong")
            assert code is None
            assert {reply["event"] for reply in replies} <= {"error", "pong", "unsubscribed"}

        attack()
        for _ in range(20):
            client.send(BAD["100,000 levels"].body[:60_000])
        assert heard(client, "nothing")[1] == POLICY


RUBBISH = st.one_of(
    st.binary(max_size=200),
    mangled(
        ORDERS | st.sampled_from([b"a:1|c", b"b:2:3|ms|@0.1|#x:y", b"name 1.5 1700000000", b"a:nan|g", b"a inf -1"])
    ),
    st.sampled_from([BAD["NaN"].body, b"x:" + b"9" * 5000 + b"|c", b"\n" * 1000, b"a:1|c\n" * 2000, bytes(65_000)]),
)


def test_datagrams_of_rubbish_are_counted_and_what_follows_is_taken(served: RunningGateway) -> None:
    """Each datagram was put or lost; each event is accepted, a duplicate or a dead letter. Then a good one is
    accepted."""
    count = 0
    with socket.socket(type=socket.SOCK_DGRAM) as sender:

        @seed(SEED)
        @FEW
        @given(RUBBISH, st.sampled_from([served.udp, served.statsd, served.graphite]))
        def attack(datagram: bytes, port: int) -> None:
            nonlocal count
            count += 1
            sender.sendto(datagram, ("127.0.0.1", port))

        attack()
        mark = f"last{random.random()}"
        wait_for(lambda: settled(served), 30, "all datagrams to be taken")
        for port, good in (
            (served.udp, f'{{"order":"{mark}","buyer":"b"}}'),
            (served.statsd, f"{mark}:1|c"),
            (served.graphite, f"{mark} 1 -1"),
        ):
            sender.sendto(good.encode(), ("127.0.0.1", port))
    wait_for(lambda: mark in {event["order"] for event in served.read("datagrams")[0]}, 30, "the good order")
    wait_for(
        lambda: len([event for event in served.read("metrics")[0] if event["name"] == mark]) == 2, 30, "good metrics"
    )
    for stream in ("datagrams", "metrics"):
        figures = served.figures(stream)
        assert len(served.read(stream)[0]) == figures["accepted"]
        assert len(served.read(f"{stream}.rejected")[0]) == figures["rejected"]
        assert figures["received"] == figures["accepted"] + figures["duplicates"] + figures["rejected"]


def settled(served: RunningGateway) -> bool:
    """Return whether the figures are the same at two consecutive looks."""
    looks = [[served.figures(name)["received"] for name in ("datagrams", "metrics")] for _ in range(3)]
    return looks[0] == looks[1] == looks[2]
