"""The WebSocket source, against a real server that behaves badly."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from penstock.collect import mqtt, nats, poll, source_buffer, websocket
from penstock.collect.sources.addresses import HIDDEN, without_secrets
from penstock.collect.sources.websocket import WebSocketSource
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, DiskFull, StorageError, SyncFailed
from penstock.core.settings import Settings
from tests.clocks import until
from tests.collect.support import Rig, at_work, body, fix, in_loop, opened
from tests.memory_log import MemoryLog
from tests.network import refusing

Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async with serve(handler, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/feed"


@asynccontextmanager
async def pulling(rig: Rig, url: str, stream: str = "raw", **options: float) -> AsyncIterator[SourceStatus]:
    source = WebSocketSource(url, backoff=Backoff(0.001, 0.01), **options)  # type: ignore[arg-type]
    async with at_work(rig, source, stream) as status:
        yield status


def stored(log: MemoryLog) -> list[bytes]:
    return [row["data"] for row in log.rows["raw"][0]]


@in_loop
async def test_each_message_is_stored_once_and_in_order_over_many_broken_connections() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    sent: list[bytes] = []
    total = 600

    async def handler(connection: ServerConnection) -> None:
        """Send some, then close properly (so that all messages arrive) or send invalid data and hang up."""
        for _ in range(draw.randrange(1, 40)):
            if len(sent) == total:
                break
            message = b"m%d" % len(sent)
            await connection.send(message if draw.random() < 0.5 else message.decode())
            sent.append(message)
        if len(sent) == total:
            await connection.wait_closed()
        elif draw.random() < 0.3:
            await connection.close(1011, "broken on purpose")

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url, pulling(rig, url) as status:
        await until(lambda: len(log.rows["raw"][0]) >= total)
        assert stored(log) == sent
        assert status.received == total
        assert status.reconnects >= 10


@in_loop
async def test_a_cut_connection_loses_only_what_never_arrived() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    numbers = iter(range(100_000))

    async def handler(connection: ServerConnection) -> None:
        for _ in range(draw.randrange(1, 30)):
            await connection.send(b"%d" % next(numbers))
        connection.transport.abort()  # a reset: bytes in transit may be lost, as with any network

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url, pulling(rig, url) as status:
        await until(lambda: status.reconnects >= 30)
    seen = [int(raw) for raw in stored(log)]
    assert seen == sorted(set(seen))
    assert len(seen) == status.received


@in_loop
async def test_a_shutdown_in_full_flow_stores_everything_the_server_sent() -> None:
    sent = 0

    async def handler(connection: ServerConnection) -> None:
        nonlocal sent
        with suppress(ConnectionClosed):
            while True:
                await connection.send(b"m%d" % sent)
                sent += 1
                await asyncio.sleep(0)

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url:
        async with pulling(rig, url):
            await until(lambda: len(log.rows["raw"][0]) > 100)
        assert stored(log) == [b"m%d" % number for number in range(sent)]


@in_loop
async def test_a_full_queue_stops_the_reading_and_nothing_is_lost() -> None:
    sent = 0

    async def handler(connection: ServerConnection) -> None:
        nonlocal sent
        with suppress(ConnectionClosed):
            for number in range(2000):
                await connection.send(b"%04d" % number + b"x" * 1000)
                sent += 1
            await connection.wait_closed()

    log = MemoryLog()
    limits = Settings(request_events_max=10, pending_events_max=10)
    async with opened(log, limits) as rig, serving(handler) as url, pulling(rig, url) as status:
        log.gate.clear()
        await until(lambda: status.received >= 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert status.received <= 21  # one group at the disk, one in the buffer, one message in hand
        log.gate.set()
        await until(lambda: len(log.rows["raw"][0]) == 2000)
        assert [int(raw[:4]) for raw in stored(log)] == list(range(2000))


@in_loop
async def test_a_full_disk_and_a_failing_log_are_waited_out_and_no_event_is_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handler(connection: ServerConnection) -> None:
        for number in range(50):
            await connection.send(body(fix(number)) if number % 10 else b"not json %d" % number)
        await connection.wait_closed()

    monkeypatch.setattr(source_buffer, "RETRY_S", 0.0)
    log = MemoryLog()
    log.faults = [DiskFull("full", retry_after_s=0), StorageError("the file is damaged")] * 3
    async with opened(log) as rig, serving(handler) as url, pulling(rig, url, "fixes") as status:
        await until(lambda: len(log.events("fixes")) == 45 and len(log.events("fixes.rejected")) == 5)
        assert status.state == "connected"
        assert [row["fix_id"] for row in log.events("fixes")] == [f"f{n}" for n in range(50) if n % 10]


@in_loop
async def test_bad_messages_are_dead_letters_and_the_feed_goes_on() -> None:
    async def handler(connection: ServerConnection) -> None:
        for message in (body(fix(1)), b"\xff\xfe", "{", body({"fix_id": 2}), body(fix(3))):
            await connection.send(message)
        await connection.wait_closed()

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url, pulling(rig, url, "fixes") as status:
        await until(lambda: len(log.events("fixes")) == 2 and len(log.events("fixes.rejected")) == 3)
        assert [row["raw"] for row in log.events("fixes.rejected")] == [b"\xff\xfe", b"{", b'{"fix_id":2}']
        assert (status.state, status.received, status.reconnects) == ("connected", 5, 0)
        assert rig.ingress.audits()["fixes"].total().rejected == 3


@in_loop
async def test_a_failed_sync_ends_the_source_with_a_sentence() -> None:
    async def handler(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await connection.send(b"x")
                await asyncio.sleep(0)

    log = MemoryLog()
    log.faults = [SyncFailed("the disk is gone")]
    async with opened(log) as rig, serving(handler) as url:
        status = SourceStatus()
        source = WebSocketSource(url)
        with pytest.raises(SyncFailed):
            await asyncio.wait_for(source.run(rig.ingress.writer_for_source("feed", "raw"), status), 60)
        assert (status.state, status.error) == ("failed", "the disk is gone")


@in_loop
async def test_a_peer_that_answers_no_ping_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open the connection as a WebSocket server would, then send nothing more."""
        from websockets.http11 import Request
        from websockets.server import ServerProtocol

        protocol = ServerProtocol()
        protocol.receive_data(await reader.readuntil(b"\r\n\r\n"))
        (request,) = protocol.events_received()
        assert isinstance(request, Request)
        protocol.send_response(protocol.accept(request))
        writer.writelines(protocol.data_to_send())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, opened(MemoryLog()) as rig, pulling(rig, url, ping_s=0.02, close_s=0.05) as status:
        await until(lambda: status.reconnects >= 2)
    reasons = [record.getMessage() for record in caplog.records if record.name == "penstock.collect"]
    assert len(reasons) >= 2
    assert all("keepalive ping timeout" in reason for reason in reasons)


@in_loop
async def test_a_server_that_is_away_is_tried_again_and_the_status_says_why() -> None:
    with refusing() as port:
        async with opened(MemoryLog()) as rig, pulling(rig, f"ws://127.0.0.1:{port}") as status:
            await until(lambda: status.reconnects >= 3 and status.error is not None)
            assert str(status.error).startswith("could not connect: ")
            assert "Traceback" not in str(status.error)


@in_loop
async def test_the_greeting_is_sent_after_each_connect() -> None:
    heard: list[object] = []

    async def handler(connection: ServerConnection) -> None:
        heard.append(await connection.recv())

    log = MemoryLog()
    async with opened(log) as rig, serving(handler) as url:
        source = websocket(url, hello="subscribe", backoff_s=0.001)
        task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus()))
        await until(lambda: len(heard) >= 3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert set(heard) == {"subscribe"}


NO_ADDRESSES = [
    "hidden",
    "//hidden@x",
    "ws://hidden:hid/hidden@x",
    "ws://hidden:hid?hidden@x",
    "ws://hidden:hid#hidden@x",
    "ws://x:hidden",
    "ws://hid/hidden@x",
    "ws://hidden@[",
    "ws://hidden@a\u2100b",
]


@pytest.mark.parametrize("url", ["http://x", "feed.example", "", "ws://", *NO_ADDRESSES])
def test_what_is_no_websocket_address_is_refused_when_it_is_declared(url: str) -> None:
    """Nothing is shown of it that may be a part of a password."""
    with pytest.raises(DeclarationError) as refused:
        websocket(url)
    assert "hid" not in refused.value.message


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_of_what_is_no_address_nothing_is_shown(url: str) -> None:
    assert without_secrets(url) == HIDDEN
    with pytest.raises(DeclarationError) as refused:
        mqtt(url.replace("ws:", "mqtt:"), ["topic"])
    assert "hid" not in refused.value.message
    with pytest.raises(DeclarationError) as refused:
        nats(url.replace("ws:", "nats:"), "stream")
    assert "hid" not in refused.value.message
    with pytest.raises(DeclarationError) as refused:
        poll(url.replace("ws:", "http:"), every=1)
    assert "hid" not in refused.value.message


def test_a_password_with_a_comma_is_not_shown_as_a_server() -> None:
    with pytest.raises(DeclarationError) as refused:
        nats("nats://user:hid,den@x", "stream")
    assert "den" not in refused.value.message


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (
            "ws://other.example/live?token=hidden",
            "redirects to ws://other.example/live, but redirects are not followed",
        ),
        ("ws://user:hidden@other.example/live", "redirects to ws://other.example/live, but redirects are not followed"),
        (
            "https://other.example/live?token=hidden",
            "redirects to https://other.example/live, but redirects are not followed",
        ),
        ("wss://hidden@other.example/live", "redirects to wss://other.example/live, but redirects are not followed"),
        ("wss://x:hidden/", "redirects to (an address that cannot be read), but redirects are not followed"),
        ("wss://[hidden", "redirects to (an address that cannot be read), but redirects are not followed"),
    ],
)
@in_loop
async def test_a_redirect_that_is_not_followed_is_told_without_its_secrets(
    location: str, message: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Our own address with its token is not shown either. The library refuses a redirect from TLS to plain."""

    def redirect(connection: ServerConnection, request: Request) -> Response:
        return Response(307, "Temporary Redirect", Headers(Location=location))

    async def never(connection: ServerConnection) -> None:
        raise AssertionError("no handshake succeeds")

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        async with serve(never, "127.0.0.1", 0, process_request=redirect, ssl=context) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            url = f"wss://user:hidden@127.0.0.1:{port}/feed?token=hidden"
            async with opened(MemoryLog()) as rig, pulling(rig, url) as status:
                await until(lambda: status.error is not None)
                assert str(status.error).endswith(message)
                assert "hidden" not in str(status.error)
    said = [record.getMessage() for record in caplog.records if record.name == "penstock.collect"]
    assert message in said[0]
    assert "hidden" not in "".join(said)


@in_loop
async def test_a_proxy_that_cannot_be_used_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "ftp://user:hidden@proxy.example")
    monkeypatch.delenv("no_proxy", raising=False)
    async with opened(MemoryLog()) as rig, pulling(rig, "wss://feed.example/?token=hidden") as status:
        await until(lambda: status.error is not None)
        assert str(status.error).startswith("could not connect: the proxy")
        assert "hidden" not in str(status.error)


@in_loop
async def test_an_empty_message_is_a_dead_letter_like_any_other() -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        source_writer = rig.ingress.writer_for_source("feed", "raw")
        await source_writer.put(b"")
        await source_writer.settle()
        assert [row["reason"] for row in log.events("raw.rejected")] == ["The body is empty"]


@in_loop
async def test_a_shutdown_between_connections_settles_what_was_read_before() -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.send(b"the last words")

    log = MemoryLog()
    log.gate.clear()
    async with opened(log) as rig, serving(handler) as url:
        status = SourceStatus()
        source = WebSocketSource(url, backoff=Backoff(60, 60))
        task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", "raw"), status))
        await until(lambda: status.state == "waiting")
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        log.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stored(log) == [b"the last words"]
