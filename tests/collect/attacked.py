"""A server under attack, with a well-behaved client that must be answered all the time, and the attacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.core.settings import Settings
from penstock.http.edge import Edge
from tests.collect.served import Client, Served, request, serving, wait_for
from tests.collect.support import body, fix

SHORT = Settings(head_s=0.3, body_s=0.3, idle_s=2.0, head_bytes_max=4096)
PATIENT = Settings(head_bytes_max=SHORT.head_bytes_max)
HEAD = b"POST /v1/streams/fixes HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    b"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CHUNKED = request(b"", "Transfer-Encoding: chunked", length=-1)


def good(number: int = 1) -> bytes:
    return request(body(fix(number)), "Content-Type: application/json")


def edge_of(served: Served) -> Edge:
    protocol: type = served.server.config.http_protocol_class
    edge: Edge = protocol.edge  # type: ignore[attr-defined]
    return edge


@contextmanager
def attacked(settings: Settings = SHORT) -> Iterator[Served]:
    """Run a server, and beside the test a client that must be answered all the time. No connection is left at the
    end."""
    with serving(settings=settings) as served:
        stop, answers = threading.Event(), list[bytes]()

        def behave() -> None:
            while not stop.is_set():
                with Client(served) as client, suppress(ConnectionError):
                    while not stop.is_set():
                        client.send(good(len(answers)))
                        if not (answer := client.answer()):
                            break  # it was idle for too long, because this machine was
                        answers.append(answer[:15])
                        stop.wait(0.01)

        beside = threading.Thread(target=behave)
        beside.start()
        try:
            wait_for(lambda: len(answers) > 3)
            yield served
            seen = len(answers)
            wait_for(lambda: len(answers) > seen + 3)
        finally:
            stop.set()
            beside.join(10)
        assert set(answers) == {b"HTTP/1.1 200 OK"}
        wait_for(lambda: len(edge_of(served)) == 0)
        assert not edge_of(served)._addresses


def drip(client: Client, piece: bytes) -> bytes:
    """Return the answer to a client that sends a piece repeatedly until it is answered."""
    client.socket.settimeout(0.02)
    answer = b""
    for _ in range(2000):
        try:
            client.socket.sendall(piece)
            answer += client.socket.recv(4096)
            if b"\r\n\r\n" in answer:
                break
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
    client.socket.settimeout(10)
    return answer


def closed(client: Client) -> bool:
    """Return whether the server closes the connection, whatever it sends before."""
    try:
        while client.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
