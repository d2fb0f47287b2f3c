"""A request that asks for a protocol other than WebSocket is handled as if it did not ask (RFC 9110, section 7.8)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from tests.collect.served import Client, Served, request, serving
from tests.collect.support import body, fix

LINE = "POST /v1/streams/fixes HTTP/1.1"
ASKS = {
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"),
    "an unknown protocol": ("Connection: Upgrade", "Upgrade: foo"),
    "a version": ("Connection: Upgrade", "Upgrade: TLS/1.0, HTTP/2.0"),
    "a list with WebSocket": ("Connection: Upgrade", "Upgrade: websocket, h2c"),
    "a second option of the connection": ("Connection: keep-alive, Upgrade", "Upgrade: h2c"),
    "two Connection headers": ("Connection: Upgrade", "Connection: keep-alive", "Upgrade: websocket"),
    "two Upgrade headers": ("Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c"),
    "an empty Upgrade": ("Connection: Upgrade", "Upgrade: h2c", "Upgrade:"),
    "other cases": ("CONNECTION: uPGRADE", "UpGrAdE: H2C"),
    "no word in Connection": ("Upgrade: h2c",),
}
NEXT = request(line="PATCH /next HTTP/1.1")
_numbers = itertools.count(1)


def bodies(event: bytes, *headers: str) -> dict[str, tuple[bytes, bytes]]:
    """Return the head and the body of a request with a length, and of one in chunks."""
    plain = request(event, *headers)
    chunked = request(b"", *headers, "Transfer-Encoding: chunked", length=-1)
    half = len(event) // 2
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (event[:half], event[half:]))
    return {"length": (plain.removesuffix(event), event), "chunks": (chunked, pieces + b"0\r\n\r\n")}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("asks", ASKS)
def test_the_body_of_a_request_with_an_upgrade_is_its_body(served: Served, asks: str, framing: str) -> None:
    """Its body is never parsed as a request, nor is it or the following request dropped."""
    for split in ("one packet", "head first", "head in pieces", "byte by byte"):
        event = body(fix(next(_numbers)))
        head, content = bodies(event, *ASKS[asks])[framing]
        packets = {
            "one packet": [head + content + NEXT],
            "head first": [head, content, NEXT],
            "head in pieces": [head[:40], head[40:-3], head[-3:] + content[:5], content[5:] + NEXT],
            "byte by byte": [bytes([byte]) for byte in head + content + NEXT],
        }[split]
        with Client(served) as client:
            client.send(*packets)
            assert accepted(client.answer()) == 1, split
            assert client.answer().startswith(b"HTTP/1.1 405 "), split
            client.send(request(event))
            assert accepted(client.answer()) == 0, f"{split}: it is stored already, and the connection stays usable"


def accepted(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    number: int = json.loads(answer.partition(b"\r\n\r\n")[2])["accepted"]
    return number


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("asks", ASKS)
def test_a_request_inside_of_a_body_is_not_carried_out(served: Served, asks: str, framing: str) -> None:
    event = body(fix(next(_numbers)))
    head, content = bodies(request(event), *ASKS[asks])[framing]
    for packets in ([head + content], [head, content]):
        with Client(served) as client:
            client.send(*packets, NEXT)
            assert client.answer().startswith(b"HTTP/1.1 400 ")
            assert client.answer().startswith(b"HTTP/1.1 405 ")
            assert client.is_silent()
    with Client(served) as client:
        client.send(request(event))
        assert accepted(client.answer()) == 1, "it was not stored before"


def test_a_pipeline_of_requests_with_upgrades_is_answered_in_order() -> None:
    asking = [request(body(fix(n)), *ASKS["h2c"]) for n in range(6)]
    with serving() as served, Client(served) as client:
        client.send(b"".join(asking) + NEXT)
        assert [accepted(answer) for answer in client.answers(6)] == [1] * 6
        assert client.answer().startswith(b"HTTP/1.1 405 ")


def test_a_long_pipeline_of_requests_with_upgrades_has_the_limit_of_any_other() -> None:
    asking = request(b"", *ASKS["h2c"], line="PATCH / HTTP/1.1", length=-1)
    with serving() as served, Client(served) as client:
        client.send(asking * 400)
        answers = list(iter(client.answer, b""))
        assert 0 < len(answers) < 30
        assert b"connection: close" in answers[-1]


def test_an_upgrade_behind_a_request_in_progress_waits_for_it() -> None:
    with serving() as served, Client(served) as client:
        served.log.gate.clear()
        client.send(request(body(fix(1))), request(body(fix(2)), *ASKS["h2c"]))
        served.log.gate.set()
        assert [accepted(answer) for answer in client.answers(2)] == [1, 1]


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_http_1_0_has_no_upgrades(protocol: str) -> None:
    event = body(fix(1))
    asking = request(event, "Connection: Upgrade", f"Upgrade: {protocol}", line=LINE.replace("1.1", "1.0"))
    head = asking.removesuffix(event)
    with serving() as served:
        for packets in ([asking + NEXT], [head, event + NEXT]):
            with Client(served) as client:
                client.send(*packets)
                answer = client.answer()
                assert b" 200 " in answer[:15]
                assert b"connection: close" in answer
                assert client.is_at_end()
        assert len(served.log.events("fixes")) == 1


def test_the_limits_of_heads_hold_for_requests_with_upgrades() -> None:
    with serving() as served:
        for headers, status in (
            (["Host: other"], 400),
            (["Transfer-Encoding: gzip, chunked"], 501),
            ([f"X-Long: {'x' * 40_000}"], 431),
        ):
            with Client(served) as client:
                client.send(request(b"", *headers, *ASKS["h2c"], length=-1))
                assert client.answer().startswith(b"HTTP/1.1 %d " % status)
                assert client.is_at_end()


@pytest.mark.parametrize("headers", [(), ASKS["h2c"]])
def test_connect_is_refused_and_what_follows_is_not_read(headers: tuple[str, ...]) -> None:
    hidden = request(body(fix(1)))
    with serving() as served:
        for target in ("127.0.0.1:8000", "http://127.0.0.1:8000/v1/streams/fixes"):
            with Client(served) as client:
                client.send(request(hidden, *headers, line=f"CONNECT {target} HTTP/1.1"))
                assert client.answer().startswith(b"HTTP/1.1 400 ")
                assert client.is_at_end()
        assert served.log.events("fixes") == []
