"""Bodies that nobody reads, floods around them, and garbage after good requests."""

from __future__ import annotations

import socket

import pytest

from penstock.http import edge as edges
from tests.collect.attacked import CHUNKED, HEAD, PATIENT, SHORT, UPGRADE, attacked, closed, drip, good
from tests.collect.served import Client, request, wait_for
from tests.collect.support import body, fix

GARBAGE = {
    "no method": b"\x00\x01\x02\x03 garbage",
    "a bad line": b"GET\r\n\r\n",
    "a bad header": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "a path that is none": b"CONNECT a:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a bad chunk": CHUNKED + b"zz\r\n",
    "a flood of chunks": CHUNKED + (b"1;" + b"e" * 3000 + b"\r\nx\r\n") * 10,
    "a head too large": request(b"", "X-A: " + "b" * 5000, line="GET /v1/app HTTP/1.1"),
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "half a head": b"GET /v1/app HT",
}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "LOOK_S", 0.02)
    monkeypatch.setattr(edges, "LINGER_S", 0.1)


def test_large_bodies_in_a_row_are_no_head_however_they_are_cut() -> None:
    """The count of a head, or of chunks, begins with the request."""
    events = [fix(number) for number in range(400)]
    sent = request(body(*events)) * 3
    cuts = [len(sent) // 3 - 5, len(sent) // 3 + 20, len(sent) // 3 + 400, 2 * len(sent) // 3 + 2]
    assert len(sent) > 10 * SHORT.head_bytes_max
    with attacked(PATIENT) as served:
        for cut in cuts:
            with Client(served) as client:
                client.send(sent[:cut], sent[cut:])
                assert [answer[:12] for answer in client.answers(3)] == [b"HTTP/1.1 200"] * 3


@pytest.mark.parametrize("line", ["POST /v1/app HTTP/1.1", "GET /v1/app HTTP/1.1"])
@pytest.mark.parametrize("sent", [b"", b"x"])
def test_a_body_that_nobody_reads_may_not_stall(line: str, sent: bytes) -> None:
    with attacked() as served, Client(served) as client:
        client.send(request(sent, line=line, length=1000))
        assert client.answer().startswith(b"HTTP/1.1 405")
        assert closed(client)


def test_a_body_that_nobody_reads_may_not_drip() -> None:
    with attacked() as served, Client(served) as client:
        client.send(request(b"", line="GET /v1/app HTTP/1.1", length=10**6))
        assert client.answer().startswith(b"HTTP/1.1 405")
        assert drip(client, b"x")[:12] in (b"HTTP/1.1 408", b"")
        assert closed(client)


@pytest.mark.parametrize("line", ["POST /v1/streams/fixes HTTP/1.1", "GET /v1/app HTTP/1.1"])
@pytest.mark.parametrize(
    "flood",
    [b"1;" + b"e" * 3000 + b"\r\nx\r\n", b"1" + b";a=b" * 700 + b"\r\nx\r\n"],
    ids=["one extension", "many extensions"],
)
def test_extensions_of_chunks_are_bounded(line: str, flood: bytes) -> None:
    head = CHUNKED.replace(b"POST /v1/streams/fixes HTTP/1.1", line.encode())
    with attacked() as served, Client(served) as client:
        client.send(head)
        answer = drip(client, flood)
        assert b"HTTP/1.1 431" in answer or b"HTTP/1.1 405" in answer or b"HTTP/1.1 408" in answer, answer
        assert closed(client)


def test_trailers_are_bounded() -> None:
    with attacked(PATIENT) as served, Client(served) as client:
        client.send(CHUNKED + b"2\r\n{}\r\n0\r\n")
        answer = drip(client, b"X-A: " + b"b" * 1000 + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431"), answer
        assert closed(client)


def test_small_chunks_are_no_flood() -> None:
    content = body(*(fix(number) for number in range(300)))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content)
    with attacked(PATIENT) as served, Client(served) as client:
        for at in range(0, len(chunks), 20_000):
            client.send((CHUNKED if not at else b"") + chunks[at : at + 20_000])
        client.send(b"0\r\n\r\n")
        assert client.answer().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("before", [1, 2], ids=["after one", "after two"])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_behind_a_good_request_does_not_cost_its_answer(name: str, before: int) -> None:
    """This holds although the good one waits for the disk when the garbage is seen: an answer before that would be
    false."""
    with attacked() as served, Client(served) as client:
        served.log.gate.clear()
        client.send(b"".join(good(1000 + number) for number in range(before)) + GARBAGE[name])
        wait_for(lambda: served.pending >= 1)
        assert client.is_silent()
        served.log.gate.set()
        for _ in range(before):
            assert client.answer().startswith(b"HTTP/1.1 200")
        assert closed(client)


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_after_an_answer_is_told(name: str) -> None:
    with attacked() as served, Client(served) as client:
        client.send(good())
        assert client.answer().startswith(b"HTTP/1.1 200")
        client.send(GARBAGE[name])
        assert client.answer()[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"HTTP/1.1 405", b"HTTP/1.1 408")
        assert closed(client)


@pytest.mark.parametrize("sent", [b"", b"POST", good()[:-5], good(), CHUNKED, UPGRADE], ids=range(6))
def test_a_client_that_closes_its_half_leaves_nothing(sent: bytes) -> None:
    with attacked() as served, Client(served) as client:
        if sent:
            client.send(sent)
        client.socket.shutdown(socket.SHUT_WR)
        assert closed(client)


def test_what_a_trailer_says_is_not_taken_for_a_header() -> None:
    trailers = b"Idempotency-Key: k\r\nContent-Encoding: zip\r\nAuthorization: Bearer x\r\n"
    content = body(fix(7))
    sent = CHUNKED + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(content), content, trailers)
    with attacked(PATIENT) as served, Client(served) as client:
        client.send(sent)
        assert client.answer().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", [b"/v1/live", b"/v1/streams/fixes/publish"])
def test_a_websocket_does_not_overtake_the_answer_to_a_request(path: bytes) -> None:
    with attacked() as served, Client(served) as client:
        served.log.gate.clear()
        client.send(good(1000) + UPGRADE.replace(b"/v1/live", path))
        wait_for(lambda: served.pending >= 1)
        assert client.is_silent()
        served.log.gate.set()
        assert client.answer().startswith(b"HTTP/1.1 200")
        assert closed(client)
