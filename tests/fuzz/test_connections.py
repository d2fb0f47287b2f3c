"""A connection with more requests than can be answered: the queue is bounded, and a disconnect leaves nothing
behind."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.fuzz.attackers import POST
from tests.fuzz.bodies import GOOD
from tests.fuzz.books import Books
from tests.fuzz.gateway import RunningGateway, gateway
from tests.fuzz.good import good_client
from tests.harness import wait_for

ONE = POST + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
BAD = POST + b"Content-Length: 4\r\n\r\nnull"
WAITING = 16


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway(tmp_path_factory.mktemp("connections") / "data") as running:
        yield running
        running.require_sound()


def answers(served: RunningGateway, sent: bytes, count: int) -> list[bytes]:
    """Return the statuses of `count` answers, or of all until the end."""
    received = b""
    with served.connect() as client:
        client.sendall(sent)
        while len(re.findall(rb"HTTP/1.1 (\d+)", received)) < count and (piece := client.recv(65536)):
            received += piece
    return re.findall(rb"HTTP/1.1 (\d+)", received)


@pytest.mark.parametrize("kind", [ONE, BAD], ids=["good", "bad"])
def test_17_requests_at_once_are_all_answered(served: RunningGateway, kind: bytes) -> None:
    assert len(answers(served, kind * (WAITING + 1), WAITING + 1)) == WAITING + 1


@pytest.mark.parametrize("kind", [ONE, BAD], ids=["good", "bad"])
def test_of_a_thousand_requests_at_once_those_are_taken_that_are_answered(served: RunningGateway, kind: bytes) -> None:
    """The rest is not read: nobody can fill the memory with waiting requests."""
    books = Books(served, "things")
    statuses = answers(served, kind * 1000, 1000)
    assert len(statuses) <= WAITING + 2
    events, letters = books.new()
    assert len(events) + len(letters) == len(statuses)


def test_a_client_that_does_not_wait_for_answers_costs_no_memory(served: RunningGateway) -> None:
    before = served.forget_peak()
    with good_client(served):
        for _ in range(20):
            with served.connect() as client:
                client.settimeout(0.2)
                try:
                    client.sendall(BAD * 20_000)
                except OSError:
                    continue
    assert served.peak_mib < before + 50


def test_a_client_that_leaves_with_requests_waiting_leaves_nothing_in_the_log(served: RunningGateway) -> None:
    """There is not even a traceback: the client that was being answered has disconnected."""
    sockets = served.descriptors("socket:")
    for count in range(60):
        with served.connect() as client:
            client.sendall(BAD * (count // 3 + 1))
            if count % 3:
                client.recv(100)  # so that the first one is answered, and others wait
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: served.descriptors("socket:") <= sockets, 30, "the end of all connections")
    served.require_sound()
