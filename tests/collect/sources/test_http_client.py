"""Behaviour common to the sources over HTTP: secrets, redirects, compressed answers, servers that are down."""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
import subprocess
import sys

import httpx
import pytest

from penstock.collect.sources.http.client import _require_success
from penstock.collect.sources.http.ndjson import ndjson
from penstock.collect.sources.http.positions import is_after, items_at, position_at, value_at
from penstock.collect.sources.http.response import PIECE_BYTES, RETRY_AFTER_S_MAX, ResponseLost, _Gzip
from penstock.core.errors import SourceFailed
from tests.clocks import until
from tests.collect.sources.origin import (
    QUICK,
    Reply,
    outcome,
    pulling,
    sending,
    serving,
    stored,
)
from tests.collect.support import in_loop, opened
from tests.memory_log import MemoryLog
from tests.network import Asked, refusing


def test_gzip_is_unpacked_in_pieces_that_are_bounded_and_lose_nothing() -> None:
    content = random.Random(1).randbytes(200_000) + b"x" * 20_000_000
    packed = gzip.compress(content[:100_000]) + gzip.compress(content[100_000:])
    for size in (len(packed), 1000, 7919):
        unpack = _Gzip()
        pieces = [piece for at in range(0, len(packed), size) for piece in unpack.pieces(packed[at : at + size])]
        assert b"".join(pieces) == content
        assert max(map(len, pieces)) <= PIECE_BYTES
        assert unpack.complete
    unpack = _Gzip()
    list(unpack.pieces(packed[:-4]))
    assert not unpack.complete


@in_loop
async def test_packed_lines_are_read_and_other_packings_are_refused() -> None:
    log = MemoryLog()
    lines = b"".join(b"line %d\n" % number for number in range(20_000))
    async with opened(log) as rig, serving(sending(gzip.compress(lines), Content_Encoding="gzip")) as url:
        async with pulling(rig, ndjson(url, **QUICK)):
            await until(lambda: len(stored(log)) == 20_000)
    assert stored(log) == lines.splitlines()
    assert isinstance(await outcome(sending(b"x", Content_Encoding="br"), "ndjson"), SourceFailed)


@in_loop
async def test_a_server_that_is_away_is_tried_again_and_the_status_says_why() -> None:
    with refusing() as port:
        async with (
            opened(MemoryLog()) as rig,
            pulling(rig, ndjson(f"http://u:hidden@127.0.0.1:{port}/x?k=hidden", **QUICK)) as status,
        ):
            await until(lambda: status.reconnects >= 3 and status.error is not None)
            assert str(status.error).startswith("could not connect: ")
            assert "hidden" not in str(status.error)


@in_loop
async def test_what_is_not_http_and_what_is_not_tls_is_tried_again() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, opened(MemoryLog()) as rig:
        for scheme in ("http", "https"):
            async with pulling(rig, ndjson(f"{scheme}://127.0.0.1:{port}", **QUICK)) as status:
                await until(lambda: status.reconnects >= 2 and status.error is not None)
                assert "SSH" not in str(status.error)


@in_loop
async def test_secrets_are_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Asked] = []

    async def handler(asked: Asked, reply: Reply) -> None:
        seen.append(asked)
        await reply.all(status=500)

    async with opened(MemoryLog()) as rig, serving(handler) as url:
        secret = url.replace("http://", "http://user:hidden@") + "/feed?token=hidden"
        source = ndjson(secret, headers={"X-Key": "hidden"}, **QUICK)
        async with pulling(rig, source) as status:
            await until(lambda: status.reconnects >= 2)
            assert "hidden" not in f"{status} {source} {source.address}"
    assert seen[0].headers["x-key"] == "hidden"
    assert seen[0].query == {"token": "hidden"}
    assert seen[0].headers["authorization"] == "Basic dXNlcjpoaWRkZW4="
    assert "hidden" not in caplog.text
    assert "returned 500" in caplog.text


@in_loop
async def test_redirects_are_followed_only_if_asked_for_and_secrets_stay_with_their_server() -> None:
    seen: list[Asked] = []
    log = MemoryLog()
    async with opened(log) as rig, serving(sending(b"there\n", seen=seen)) as other:

        async def here(asked: Asked, reply: Reply) -> None:
            seen.append(asked)
            await reply.all(status=307, Location="/again" if asked.path == "/" else f"{other}/there?x=1")

        async with serving(here) as url:
            async with pulling(rig, ndjson(f"{url}/?k=1", headers={"X-Key": "hidden"}, redirects_max=2, **QUICK)):
                await until(lambda: len(stored(log)) >= 1)
            assert [(request.path, "x-key" in request.headers) for request in seen[:3]] == [
                ("/", True),
                ("/again", True),
                ("/there", False),
            ]
            for most in (0, 1):
                error = await outcome(here, "ndjson", redirects_max=most)
                assert isinstance(error, SourceFailed)
                assert "redirects_max" in error.message


@in_loop
@pytest.mark.parametrize(
    ("location", "message"),
    [("/moved?key=hidden", "to http://127.0.0.1:PORT/moved:"), ("http://[", "to an invalid address:")],
)
async def test_an_unfollowed_redirect_is_told_with_the_whole_address(location: str, message: str) -> None:
    ports = list[str]()

    async def here(asked: Asked, reply: Reply) -> None:
        ports.append(asked.headers["host"].rpartition(":")[2])
        await reply.all(status=301, Location=location)

    error = await outcome(here, "ndjson", redirects_max=0)
    assert isinstance(error, SourceFailed)
    assert message.replace("PORT", ports[0]) in error.message
    assert "hidden" not in error.message


@in_loop
async def test_a_file_of_certificates_that_is_not_there_ends_the_source() -> None:
    error = await outcome(sending(), "ndjson", ca_file="/no/such/file")
    assert isinstance(error, SourceFailed)


@pytest.mark.parametrize(("text", "wait_s"), [("120", 120), ("99999999999", RETRY_AFTER_S_MAX), ("soon", 0)])
def test_a_server_may_ask_for_an_hour_at_most(text: str, wait_s: float) -> None:
    with pytest.raises(ResponseLost) as lost:
        _require_success(httpx.Response(503, headers={"retry-after": text}))
    assert lost.value.after_s == wait_s


def test_values_are_found_by_their_path() -> None:
    raw = b'{"a": {"b": [1, {"c": 2}]}, "n": 1.50, "t": "x\\u00e9", "z": null}'
    assert value_at(raw, "a.b") == b'[1, {"c": 2}]'
    assert value_at(raw, "") == raw
    assert items_at(raw, "a.b") == [b"1", b'{"c": 2}']
    assert [value_at(raw, path) for path in ("a.x", "n.x", "x")] == [None] * 3
    assert [items_at(document, "n") for document in (raw, b"[", b'"')] == [None] * 3
    assert (position_at(raw, "n"), position_at(raw, "t"), position_at(raw, "z")) == ("1.50", "xé", None)


def test_numbers_are_compared_as_numbers_and_texts_as_texts() -> None:
    assert is_after("10", "9", "number")
    assert not is_after("10", "9", "text")
    assert is_after("9007199254740993", "9007199254740992", "number")
    assert is_after("a", None, "number")
    assert not is_after("1.0", "1", "number")
    with pytest.raises(SourceFailed):
        is_after("NaN", "1", "number")


def test_a_declared_source_loads_no_http_library() -> None:
    code = "import sys; from penstock.collect.sources.http import ndjson, poll, sse; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
