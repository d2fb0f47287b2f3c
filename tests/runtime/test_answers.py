"""Answers of the gateway as HTTP: answers to HTTP/1.0, refused WebSockets, and compression."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.access import CALLER, Caller
from penstock.core.access.grants import ALL
from penstock.core.settings import Settings
from penstock.http.compression import compressed
from tests.runtime.guarded import Running, running

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
ANSWER_S = 20.0
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("answers"), settings=Settings(heartbeat_s=0.05)) as gateway:
        gateway.post("a", events=[{"k": f"row {number}", "n": number} for number in range(200)]).raise_for_status()
        yield gateway


def raw(gateway: Running, line: str, *headers: str, until: bytes = b"", host: str = "localhost") -> bytes:
    """Return the data that a connection receives for one request, up to its end or to these bytes."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=ANSWER_S) as client:
        client.sendall("\r\n".join([line, f"Host: {host}", *headers, "", ""]).encode())
        received = b""
        while not (until and until in received) and (piece := client.recv(65536)):
            received += piece
        return received


def refusal(gateway: Running, line: str, *headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    head, _, body = raw(gateway, line, *headers).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    sent = [header.lower().split(": ", 1) for header in lines]
    named = dict(sent)
    assert len(named) == len(sent), f"a header occurs twice: {head.decode()}"
    assert named["content-type"] == "application/problem+json", head
    assert int(named["content-length"]) == len(body)
    return int(first.split()[1]), named, json.loads(body)


def test_a_live_channel_of_http_1_0_has_no_chunks_and_ends_with_its_connection(gateway: Running) -> None:
    answer = raw(gateway, "GET /v1/streams/a/live?since=latest HTTP/1.0", until=b"event: progress")
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert rest.startswith(b"retry: 1000\n\n")


def test_an_answer_of_known_length_is_the_same_in_http_1_0(gateway: Running) -> None:
    head, _, rest = raw(gateway, "GET /v1/streams/a HTTP/1.0").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert json.loads(rest)["events"]
    assert rest == raw(gateway, "GET /v1/streams/a HTTP/1.1", "Connection: close").partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("headers", "status", "detail"),
    [
        ((*UPGRADE, KEY, "Sec-WebSocket-Version: 8"), 426, "version"),
        ((*UPGRADE, KEY), 426, "version"),
        ((*UPGRADE, "Sec-WebSocket-Version: 13"), 400, "Sec-WebSocket-Key"),
        ((*UPGRADE, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: short"), 400, "Sec-WebSocket-Key"),
    ],
    ids=["an old version", "no version", "no key", "a bad key"],
)
def test_a_bad_handshake_is_a_problem(gateway: Running, headers: tuple[str, ...], status: int, detail: str) -> None:
    answer_status, named, problem = refusal(gateway, "GET /v1/live HTTP/1.1", *headers)
    assert (answer_status, problem["status"]) == (status, status)
    assert detail.lower() in problem["detail"].lower()
    assert problem["code"] == ("upgrade_required" if status == 426 else "request")
    assert (named.get("sec-websocket-version") == "13") == (status == 426)
    assert named["connection"] == "close"


@pytest.mark.parametrize(
    ("host", "status"), [("localhost", 400), ("evil.example", 403)], ids=["the Host differs", "the Host is the same"]
)
def test_an_absolute_target_on_another_host_is_refused(gateway: Running, host: str, status: int) -> None:
    """Without keys, the gateway has only loopback names."""
    line = "GET http://evil.example/v1/health HTTP/1.1"
    head, _, body = raw(gateway, line, "Connection: close", host=host).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert "evil.example" in json.loads(body)["detail"]


def test_a_strict_http_client_can_read_a_refused_handshake(gateway: Running) -> None:
    """httpx rejects a response with two different lengths."""
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "8"}
    with gateway.client() as client:
        answer = client.get("/v1/live", headers=headers | {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert (answer.status_code, answer.json()["code"]) == (426, "upgrade_required")
    assert answer.headers.get_list("content-type") == ["application/problem+json"]
    assert answer.headers.get_list("content-length") == [str(len(answer.content))]


def test_a_handshake_by_post_is_a_problem(gateway: Running) -> None:
    status, named, problem = refusal(
        gateway, "POST /v1/live HTTP/1.1", *UPGRADE, KEY, "Sec-WebSocket-Version: 13", "Content-Length: 0"
    )
    assert (status, named["allow"], problem["code"]) == (405, "get", "method_not_allowed")


def test_a_websocket_to_a_path_that_is_none_is_404_with_a_problem(gateway: Running) -> None:
    status, _, problem = refusal(gateway, "GET /v1/nowhere HTTP/1.1", *UPGRADE, KEY, "Sec-WebSocket-Version: 13")
    assert (status, problem["code"]) == (404, "not_found")
    assert "/v1/nowhere" in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/app/", "/v1/health/", "/v1/streams/a/", "/metrics/"])
def test_a_slash_more_is_another_path_and_no_redirect(gateway: Running, path: str) -> None:
    """A redirect would name the Host that the client sent."""
    status, named, problem = refusal(gateway, f"GET {path} HTTP/1.1", "Connection: close")
    assert (status, problem["code"]) == (404, "not_found")
    assert "location" not in named


@pytest.mark.parametrize("path", ["/penstock.js", "/assets/main.js", "/", "/assets/style/base.css"])
def test_files_are_compressed_for_those_who_take_it(gateway: Running, path: str) -> None:
    """The two forms have different tags, by which each is recognised."""
    with gateway.client() as client:
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        packed = client.get(path, headers={"Accept-Encoding": "br, gzip;q=0.5"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        assert int(packed.headers["content-length"]) < 0.6 * int(plain.headers["content-length"])
        assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
        assert plain.headers["etag"] != packed.headers["etag"]
        again = client.get(path, headers={"If-None-Match": packed.headers["etag"]})
        assert (again.status_code, again.headers["etag"]) == (304, packed.headers["etag"])


@pytest.mark.parametrize("path", ["/v1/streams/a", "/v1/app", "/v1/openapi.json", "/metrics"])
def test_long_answers_are_compressed_for_those_who_take_it(gateway: Running, path: str) -> None:
    with gateway.client() as client:
        plain = client.get(path, headers={"Accept-Encoding": "gzip;q=0"})
        packed = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in plain.headers["vary"]
    assert "Accept-Encoding" in packed.headers["vary"]
    assert packed.num_bytes_downloaded < 0.6 * plain.num_bytes_downloaded
    if path == "/v1/streams/a":
        assert packed.json() == plain.json()


def test_a_query_is_compressed_and_a_short_answer_is_not(gateway: Running) -> None:
    with gateway.client() as client:
        query = client.post("/v1/query", json={"sql": "SELECT * FROM a"})
        short = client.get("/v1/health")
    assert (query.status_code, query.headers["content-encoding"], len(query.json()["rows"])) == (200, "gzip", 200)
    assert "content-encoding" not in short.headers


def test_a_page_that_is_known_is_304_whichever_form_it_had(gateway: Running) -> None:
    with gateway.client() as client:
        tag = client.get("/v1/views/v").headers["etag"]
        assert tag.startswith("W/")
        assert client.get("/v1/views/v", headers={"If-None-Match": tag}).status_code == 304


def test_a_live_channel_is_never_compressed(gateway: Running) -> None:
    """Each event must leave at once."""
    answer = raw(gateway, "GET /v1/streams/a/live HTTP/1.1", "Accept-Encoding: gzip", until=b"event: progress")
    assert b"content-encoding" not in answer.partition(b"\r\n\r\n")[0]


def test_those_who_are_known_by_their_certificate_alone_get_no_compressed_answers() -> None:
    """A browser shows its certificate to any page that sends a request; the length of an answer with both a text of
    that page and data that the caller may read would reveal the data."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"5000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * 5000})

    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    def asked(name: str) -> bytes:
        sent.clear()
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"accept-encoding", b"gzip")]}
        asyncio.run(compressed(answer, 1024)(scope | {CALLER: Caller(name, ALL)}, None, send))  # type: ignore[arg-type]
        return b"".join(message.get("body", b"") for message in sent)

    assert asked("certificate:desk") == b"x" * 5000
    assert gzip.decompress(asked("key:desk")) == b"x" * 5000


def test_compression_can_be_turned_off(tmp_path: Path) -> None:
    with running(tmp_path, settings=Settings(compress_bytes_min=0)) as gateway:
        assert "content-encoding" not in gateway.get("/v1/openapi.json").headers
