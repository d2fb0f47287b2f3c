"""Heads that RFC 9112 requires to be refused, on the fast path and on the ASGI path."""

from __future__ import annotations

import json

import pytest

from tests.collect.served import Client, serving
from tests.collect.support import body, fix

EVENT = body(fix(1))
LINE = "POST /v1/streams/fixes HTTP/1.1"


def sent(line: str, *headers: str) -> bytes:
    """Return a request with one event, with these headers and no others but its length."""
    return "\r\n".join([line, *headers, f"Content-Length: {len(EVENT)}", "", ""]).encode() + EVENT


def target(address: str) -> bytes:
    return sent(f"POST {address} HTTP/1.1", "Host: localhost")


def chunked(coding: str, version: str = "1.1") -> bytes:
    head = [f"POST /v1/streams/fixes HTTP/{version}", "Host: localhost", *coding.split("\n"), "", ""]
    return "\r\n".join(head).encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENT), EVENT)


REFUSED = {
    "no Host": (sent(LINE), 400, "Host"),
    "an empty Host": (sent(LINE, "Host:"), 400, "Host"),
    "a blank Host": (sent(LINE, "Host:   "), 400, "Host"),
    "two Hosts": (sent(LINE, "Host: localhost", "Host: localhost"), 400, "Host"),
    "a Host that is none": (sent(LINE, "Host: a b"), 400, "Host"),
    "an empty Host of HTTP/1.0": (sent("POST /v1/streams/fixes HTTP/1.0", "Host:"), 400, "Host"),
    "no Host for a WebSocket": (
        sent("GET /v1/live HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        400,
        "Host",
    ),
    "a WebSocket with a body": (
        sent("GET /v1/live HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"),
        400, "not have a body",
    ),
    "a WebSocket with a body in chunks": (
        chunked("Transfer-Encoding: chunked\nConnection: Upgrade\nUpgrade: websocket"), 400, "not have a body",
    ),
    "a target on another host": (target("http://other.example/v1/streams/fixes"), 400, "other.example"),
    "a target on another port": (target("http://localhost:1/v1/streams/fixes"), 400, "localhost:1"),
    "a target with a user": (target("http://me@localhost/v1/streams/fixes"), 400, "Host"),
    "a target of another protocol": (target("ftp://localhost/v1/streams/fixes"), 400, "ftp"),
    "a target without a path, on another host": (target("http://other.example"), 400, "other"),
    "an unknown coding": (chunked("Transfer-Encoding: squeeze, chunked"), 501, "squeeze"),
    "a coding that we do not take": (chunked("Transfer-Encoding: gzip, chunked"), 501, "gzip"),
    "a coding in a line of its own": (chunked("Transfer-Encoding: gzip\nTransfer-Encoding: chunked"), 501, "gzip"),
    "a coding that hides the length": (chunked("Transfer-Encoding: identity"), 501, "identity"),
    "a coding that is unknown and all there is": (chunked("Transfer-Encoding: squeeze"), 501, "squeeze"),
    "chunks twice": (chunked("Transfer-Encoding: chunked, chunked"), 400, "not an HTTP/1.1 request"),
    "chunks inside of something": (chunked("Transfer-Encoding: chunked, gzip"), 400, "not an HTTP/1.1 request"),
    "chunks in HTTP/1.0": (chunked("Transfer-Encoding: chunked", "1.0"), 400, "HTTP/1.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_the_standard_forbids_is_refused_with_the_reason(name: str) -> None:
    given, status, reason = REFUSED[name]
    with serving() as served, Client(served) as client:
        client.send(given)
        head, _, problem = client.answer().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), head
        assert b"application/problem+json" in head
        assert b"connection: close" in head
        assert reason in json.loads(problem)["detail"]
        assert client.is_at_end()
        assert served.log.admits == []


@pytest.mark.parametrize(
    "given",
    [
        sent(LINE, "Host: localhost"),
        sent(LINE, "Host: [::1]:8000"),
        sent("POST /v1/streams/fixes HTTP/1.0"),
        sent("POST http://LOCALHOST:8000/v1/streams/fixes HTTP/1.1", "Host: localhost:8000"),
        chunked("Transfer-Encoding: Chunked"),
    ],
    ids=["plain", "IPv6", "HTTP/1.0 without a Host", "our own name in the target", "chunks"],
)
def test_a_head_that_the_standard_allows_is_taken(given: bytes) -> None:
    with serving() as served, Client(served) as client:
        client.send(given)
        assert client.answer().startswith(b"HTTP/1.1 200 OK")
