"""Frames that no good client sends. The Autobahn suite is in `tests/soak/test_autobahn.py`."""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.http import protocol
from penstock.http.protocol import FRAGMENTS_MAX
from penstock.serve.channels.view import ViewChannel
from tests.clocks import until
from tests.serve.fakes import QUICK, FakeView, make_deps, run, serving
from tests.serve.test_slow import frame, request

TEXT, CONTINUED, CLOSE, PING, PONG, COMPRESSED = 0x81, 0x00, 0x88, 0x89, 0x8A, 0xC1
PROTOCOL, POLICY, TOO_BIG = 1002, 1008, 1009
OFFER = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n"


@contextmanager
def upgraded(port: int, extra: bytes = b"") -> Iterator[tuple[socket.socket, bytes]]:
    """Open a WebSocket; yields it, and the bytes after the head of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        asked = request("websocket", "view")
        client.sendall(asked.removesuffix(b"\r\n") + extra if extra else asked)
        head = client.recv(4096)
        assert head.startswith(b"HTTP/1.1 101")
        yield client, head


def received(client: socket.socket) -> list[tuple[int, bytes]]:
    """Return the frames of the server until it ends the connection: opcode and data, each of less than 64 KiB."""
    data = b""
    while piece := client.recv(65536):
        data += piece
    frames = []
    while data:
        long = data[1] == 126
        size, begin = (int.from_bytes(data[2:4], "big"), 4) if long else (data[1], 2)
        frames.append((data[0], data[begin : begin + size]))
        data = data[begin + size :]
    return frames


def code(closing: tuple[int, bytes]) -> int:
    assert closing[0] == CLOSE
    return int.from_bytes(closing[1][:2], "big")


@pytest.mark.parametrize("data", [b"", b" "], ids=["empty", "one byte"])
def test_a_hundred_thousand_fragments_are_not_gathered(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed with the reason when there are too many; later ones are discarded."""

    def attack(port: int, count: int) -> list[tuple[int, bytes]]:
        with upgraded(port) as (client, _):
            client.sendall(frame(0x01, data) + frame(CONTINUED, data) * count)
            return received(client)

    async def main() -> None:
        deps = make_deps()
        async with serving(deps) as port:
            for count in (FRAGMENTS_MAX + 1, 100_000):
                [closing] = await asyncio.to_thread(attack, port, count)
                assert code(closing) == POLICY
                assert b"fragments" in closing[1]
            await until(lambda: deps.connections.open == 0)

    run(main())
    assert caplog.records == []


def test_pings_behind_what_ends_the_connection_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """They were read together with it, so they may be answered before the close, and nothing comes after that."""

    def attack(port: int) -> list[tuple[int, bytes]]:
        with upgraded(port) as (client, _):
            client.sendall(frame(TEXT, b"\xff") + frame(PING, b"x") * 3)
            return received(client)

    async def main() -> None:
        async with serving(make_deps()) as port:
            *pongs, closing = await asyncio.to_thread(attack, port)
            assert {opcode for opcode, _ in pongs} <= {PONG}
            assert code(closing) == 1007

    run(main())
    assert caplog.records == []


def test_a_client_that_goes_on_sending_still_reads_why_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message too large is refused by its head. The client has sent megabytes of it before it reads the answer;
    one that never ends is cut off after a while."""
    head = b"\x81\xff" + (1 << 30).to_bytes(8, "big") + bytes(4)

    def attack(port: int) -> list[tuple[int, bytes]]:
        with upgraded(port) as (client, _):
            client.sendall(head + bytes(8_000_000))
            return received(client)

    def endless(port: int) -> None:
        with upgraded(port) as (client, _):
            client.sendall(head)
            while True:
                client.sendall(bytes(100_000))

    async def main() -> None:
        deps = make_deps()
        async with serving(deps) as port:
            [closing] = await asyncio.to_thread(attack, port)
            assert code(closing) == TOO_BIG
            monkeypatch.setattr(protocol, "LINGER_S", 0.5)
            with pytest.raises(ConnectionError):
                await asyncio.to_thread(endless, port)
            await until(lambda: deps.connections.open == 0)

    run(main())


def test_nothing_is_obeyed_or_sent_after_a_close() -> None:
    """A client that closes and continues to send is answered with its own code, and nothing else."""
    subscribe = json.dumps({"op": "subscribe", "id": "1", "view": "x"}).encode()

    def attack(port: int) -> list[tuple[int, bytes]]:
        with upgraded(port) as (client, _):
            client.sendall(frame(CLOSE, (1001).to_bytes(2, "big")) + frame(TEXT, subscribe) * 10)
            return received(client)

    async def main() -> None:
        view = FakeView()
        view.put({"a": 1})
        deps = make_deps(views={"x": ViewChannel("x", view, QUICK, key=["k"])})
        async with serving(deps) as port:
            [closing] = await asyncio.to_thread(attack, port)
            assert code(closing) == 1001
            await until(lambda: deps.connections.open == 0)

    run(main())


def test_a_client_may_leave_in_the_middle_of_a_message() -> None:
    """A close between two fragments is not an error: it is answered with its own code."""

    def leave(port: int) -> list[tuple[int, bytes]]:
        with upgraded(port) as (client, _):
            client.sendall(frame(0x01, b'{"op":') + frame(CLOSE, (1000).to_bytes(2, "big")) + frame(0x80, b'"ping"}'))
            return received(client)

    async def main() -> None:
        async with serving(make_deps()) as port:
            [closing] = await asyncio.to_thread(leave, port)
            assert code(closing) == 1000

    run(main())


def test_compression_is_not_agreed_on_and_a_bomb_is_not_opened() -> None:
    """A client that offers it gets none; a compressed frame ends the connection."""
    packer = zlib.compressobj(wbits=-15)
    bomb = packer.compress(bytes(1024 * 1024)) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert len(bomb) < 2000

    def attack(port: int) -> tuple[bytes, list[tuple[int, bytes]]]:
        with upgraded(port, OFFER) as (client, head):
            client.sendall(bytes([COMPRESSED, 0x80 | 126]) + len(bomb).to_bytes(2, "big") + bytes(4) + bomb)
            return head, received(client)

    async def main() -> None:
        async with serving(make_deps()) as port:
            head, [closing] = await asyncio.to_thread(attack, port)
            assert b"sec-websocket-extensions" not in head.lower()
            assert code(closing) == PROTOCOL

    run(main())
