"""The NATS source with servers that are away, silent, refusing or encrypted; and invalid declarations."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.collect.sources.addresses import without_secrets
from penstock.collect.sources.nats.consumer import NatsDelivery
from penstock.collect.sources.nats.inbox import ConsumerInterrupted, NatsInbox, NatsLimits
from penstock.collect.sources.nats.source import NatsLogin, NatsSource
from penstock.collect.sources.nats.subjects import Shaper, SubjectPattern
from penstock.core.contracts import SourceStatus
from penstock.core.errors import DeclarationError, SourceFailed
from tests.clocks import until
from tests.collect.sources.nats_server import (
    NatsServer,
    failure,
    is_empty,
    numbers,
    publish,
    pulling,
    read,
    stored,
    talking,
    until_async,
)
from tests.collect.support import in_loop, opened
from tests.memory_log import MemoryLog

pytest.importorskip("nats")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats").running() as started:
        yield started


@pytest.mark.parametrize(
    ("payload", "event"),
    [
        (b'{"machine":"forged","c":1}', b'{"machine":"m1","c":1}'),
        (b"[1]", b'{"c":[1],"machine":"m1"}'),
        (b"", b'{"c":"","machine":"m1"}'),
        (b"{", b"{"),
        (b"\xff", b"\xff"),
    ],
)
def test_a_payload_becomes_an_event(payload: bytes, event: bytes) -> None:
    assert Shaper([SubjectPattern.parse("plant.{machine}.t")], "c").event("plant.m1.t", payload) == event


def test_without_names_and_a_field_for_the_value_a_payload_stays_as_it_is() -> None:
    assert Shaper([SubjectPattern.parse("a.*.>")], None).event("a.b.c", b"{ }") == b"{ }"
    assert Shaper([SubjectPattern.parse("{a}")], None).event("b", b"no object") == b"no object"


@pytest.mark.parametrize(
    ("pattern", "subject", "fields"),
    [
        ("a.{x}.>", "a.b.c.d", {"x": "b"}),
        ("a.{x}.>", "a.b", None),
        ("a.{x}", "a.b.c", None),
        ("a.{x}", "b.b", None),
        ("*.{x}", "a.b", {"x": "b"}),
    ],
)
def test_a_pattern_knows_its_subjects(pattern: str, subject: str, fields: dict[str, str] | None) -> None:
    assert SubjectPattern.parse(pattern).fields(subject) == fields


def test_a_delivery_is_understood_in_both_forms() -> None:
    assert NatsDelivery.parse("$JS.ACK.S.C.1.20.3.1700000000000000000.7") == NatsDelivery(20, 3, 1700000000000000000)
    longer = "$JS.ACK.hub.ACCHASH.S.C.1.20.3.1700000000000000000.7.rand"
    assert NatsDelivery.parse(longer) == NatsDelivery(20, 3, 1700000000000000000)


@in_loop
async def test_a_server_that_comes_back_is_read_on(server: NatsServer) -> None:
    log = MemoryLog()
    async with opened(log) as rig:
        async with talking(server.url) as js:
            await js.add_stream(name="EVENTS", subjects=["e"])
            await publish(js, "e", numbers(1, 5))
        async with pulling(rig, server.url) as status:
            await until(lambda: len(stored(log)) == 5)
            server.kill()
            await until(lambda: status.reconnects >= 3)
            assert str(status.error).startswith("no connection: ")
            server.start()
            async with talking(server.url) as js:
                await publish(js, "e", numbers(6, 9))
            await until(lambda: len(stored(log)) == 9)
            assert (status.state, status.error) == ("connected", None)
    assert stored(log) == numbers(1, 9)


@in_loop
async def test_a_server_that_is_silent_is_left(server: NatsServer) -> None:
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
    async with opened(MemoryLog()) as rig, pulling(rig, server.url, silent_s=0.3, open_s=0.3) as status:
        await until(lambda: status.state == "connected")
        server.send(signal.SIGSTOP)
        await until(lambda: status.reconnects >= 2)
        server.send(signal.SIGCONT)
        await until(lambda: status.state == "connected")


@in_loop
async def test_a_consumer_that_was_deleted_is_made_anew(server: NatsServer) -> None:
    log = MemoryLog()
    async with talking(server.url) as js, opened(log) as rig:
        await js.add_stream(name="EVENTS", subjects=["e"])
        async with pulling(rig, server.url, durable="us") as status:
            await until(lambda: status.state == "connected")
            await js.delete_consumer("EVENTS", "us")
            await publish(js, "e", numbers(1, 5))
            await until(lambda: len(stored(log)) == 5)
    assert stored(log) == numbers(1, 5)


@in_loop
async def test_a_stream_that_is_not_there_ends_the_source(server: NatsServer) -> None:
    assert (await failure(server.url)).startswith("there is no stream 'EVENTS' at nats://127.0.0.1:")


@in_loop
async def test_a_filter_that_the_server_refuses_ends_the_source(server: NatsServer) -> None:
    async with talking(server.url) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
    assert "refuses read access" in await failure(server.url, subjects=("a.>", "a.b"))


USERS = """
authorization {
  users: [
    {user: boss, password: "canary-1"},
    {user: nobody, password: "canary-2", permissions: {publish: "none"}},
    {user: reader, password: "canary-4", permissions: {subscribe: "_INBOX.>", publish: [
      "$JS.API.STREAM.INFO.EVENTS", "$JS.API.STREAM.MSG.GET.EVENTS",
      "$JS.API.CONSUMER.CREATE.EVENTS", "$JS.API.CONSUMER.CREATE.EVENTS.>",
      "$JS.API.CONSUMER.INFO.EVENTS.*", "$JS.API.CONSUMER.DELETE.EVENTS.*", "$JS.API.CONSUMER.MSG.NEXT.EVENTS.*",
      "$JS.ACK.EVENTS.>",
    ]}},
    {user: half, password: "canary-3", permissions: {publish: {deny: "$JS.API.CONSUMER.MSG.NEXT.>"}}},
  ]
}
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", USERS).running() as started:
        yield started


@in_loop
async def test_who_is_not_let_in_is_told_so_without_the_secret(
    guarded: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = await failure(guarded.url, login=NatsLogin("boss", "canary-9"))
    assert "refuses the login" in wrong
    in_address = guarded.url.replace("//", "//boss:canary-9@")
    assert "refuses the login" in await failure(in_address)
    source = NatsSource(in_address, "EVENTS", login=NatsLogin("boss", "canary-8", "canary-7", "canary-6"))
    assert "canary" not in wrong + caplog.text + repr(source) + source.address


@pytest.mark.parametrize("way", ["options", "address"])
@in_loop
async def test_user_and_password_are_taken_from_options_or_the_address(guarded: NatsServer, way: str) -> None:
    log = MemoryLog()
    with_secret = guarded.url.replace("//", "//boss:canary-1@")
    async with talking(with_secret) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
        await publish(js, "e", numbers(1, 3))
    if way == "options":
        await read(guarded.url, log, 3, login=NatsLogin("boss", "canary-1"))
    else:
        await read(with_secret, log, 3)
    assert stored(log) == numbers(1, 3)


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
@in_loop
async def test_the_documented_rights_are_enough(guarded: NatsServer, retention: str) -> None:
    log, login = MemoryLog(), NatsLogin("reader", "canary-4")
    durable, subjects = (None, ()) if retention == "limits" else ("us", ("e",))
    async with talking(guarded.url.replace("//", "//boss:canary-1@")) as js:
        await js.add_stream(name="EVENTS", subjects=["e"], retention=retention)
        await read(guarded.url, log, 0, login=login, durable=durable, subjects=subjects)
        await publish(js, "e", numbers(1, 3))
        await read(guarded.url, log, 3, login=login, durable=durable, subjects=subjects)
        if retention != "limits":
            await until_async(lambda: is_empty(js))
    assert stored(log) == numbers(1, 3)


@pytest.mark.parametrize(("user", "password"), [("nobody", "canary-2"), ("half", "canary-3")])
@in_loop
async def test_a_right_that_is_missing_ends_the_source(guarded: NatsServer, user: str, password: str) -> None:
    async with talking(guarded.url.replace("//", "//boss:canary-1@")) as js:
        await js.add_stream(name="EVENTS", subjects=["e"])
    sentence = await failure(guarded.url, login=NatsLogin(user, password), silent_s=0.5)
    assert "denied read access" in sentence
    assert "$js.api" in sentence.lower()


class Key:
    """A key pair of NATS that signs tokens: a new one each time."""

    def __init__(self, prefix: int) -> None:
        import nkeys  # type: ignore[import-untyped]

        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = bytes(self._pair.public_key).decode()

    def token(self, subject: Key, **claims: Any) -> str:
        now = int(time.time())
        body = {"iat": now, "jti": os.urandom(8).hex(), "iss": self.public, "sub": subject.public, "name": "test"}
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = f"{_base64(json.dumps(head).encode())}.{_base64(json.dumps({**body, 'nats': claims}).encode())}"
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@in_loop
async def test_a_file_of_credentials_lets_us_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    operator, system, account, user, stranger = Key(14 << 3), Key(0), Key(0), Key(20 << 3), Key(20 << 3)
    no_limit = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    rights = operator.token(account, type="account", version=2, limits={**no_limit, **storage})
    others = operator.token(system, type="account", version=2, limits=no_limit)
    config = (
        f"operator: {operator.token(operator, type='operator', version=2)}\n"
        f"system_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {rights}, {system.public}: {others} }}\n"
    )

    def creds(name: str, key: Key) -> str:
        claims = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        path = tmp_path / name
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{account.token(user, **claims)}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{key.seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return str(path)

    log = MemoryLog()
    with NatsServer(tmp_path / "nats", config).running() as server:
        good = creds("good.creds", user)
        async with talking(server.url, credentials=good) as js:
            await js.add_stream(name="EVENTS", subjects=["e"])
            await publish(js, "e", numbers(1, 3))
        await read(server.url, log, 3, login=NatsLogin(credentials=good))
        assert stored(log) == numbers(1, 3)
        wrong = await failure(server.url, login=NatsLogin(credentials=creds("bad.creds", stranger)))
        assert "refuses the login" in wrong
    assert user.seed.decode() not in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN USER NKEY SEED-----\ncanary\n"])
@in_loop
async def test_a_file_of_credentials_that_is_none_ends_the_source(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.creds"
    if content is not None:
        path.write_bytes(content)
    source = NatsSource("nats://127.0.0.1:1", "EVENTS", login=NatsLogin(credentials=str(path)))
    async with opened(MemoryLog()) as rig:
        with pytest.raises(SourceFailed, match="cannot be used") as caught:
            await source.run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus())
    assert "canary" not in caught.value.message


@in_loop
async def test_a_server_that_does_not_encrypt_is_sent_no_secret() -> None:
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1000,"auth_required":true}\r\n')
        heard.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        login = NatsLogin("boss", "canary-1")
        assert "does not encrypt" in await failure(f"tls://127.0.0.1:{port}", login=login)
        assert "does not encrypt" in await failure(
            f"nats://127.0.0.1:{port}", login=login, tls=ssl.create_default_context()
        )
        await until(lambda: len(heard) == 2)
    assert b"canary" not in b"".join(heard)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
@in_loop
async def test_an_encrypted_server_is_read_if_its_certificate_is_good(tmp_path: Path) -> None:
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", "k.pem", "-out", "c.pem"], cwd=tmp_path, check=True, capture_output=True
    )
    trusted = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
    log = MemoryLog()
    files = f'tls {{ cert_file: "{tmp_path}/c.pem", key_file: "{tmp_path}/k.pem" }}'
    with NatsServer(tmp_path / "nats", files).running() as server:
        async with talking(server.url, tls=trusted) as js:
            await js.add_stream(name="EVENTS", subjects=["e"])
            await publish(js, "e", numbers(1, 3))
        await read(server.url, log, 3, tls=trusted)
        assert stored(log) == numbers(1, 3)
        async with opened(MemoryLog()) as rig, pulling(rig, server.url.replace("nats:", "tls:")) as status:
            await until(lambda: "certificate verify failed" in str(status.error))


@in_loop
async def test_without_its_library_the_source_names_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[NatsSource.__module__], "find_spec", lambda name: None)
    source = NatsSource("nats://127.0.0.1", "EVENTS")
    async with opened(MemoryLog()) as rig:
        with pytest.raises(SourceFailed, match=r"pip install 'penstock\[nats\]'"):
            await source.run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus())


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://x"},
        {"url": "nats://"},
        {"url": "nats://a, b"},
        {"stream": "a.b"},
        {"stream": ""},
        {"durable": "a b"},
        {"domain": "*"},
        {"since": "yesterday"},
        {"pending_max": 0},
        {"subjects": ("a..b",)},
        {"subjects": ("a.>.b",)},
        {"subjects": ("a.{x}.{x}",)},
        {"subjects": ("a.x{x}",)},
        {"subjects": ("a b",)},
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        NatsSource(**{"url": "nats://127.0.0.1", "stream": "EVENTS", **wrong})


def test_an_address_is_shown_without_secrets() -> None:
    assert without_secrets("nats://u:p@a") == "nats://a"


@in_loop
async def test_a_stop_in_the_moment_in_which_something_comes_is_not_lost() -> None:
    """The cancellation is seen at whichever turn of the loop it comes: a source that missed it would never end."""

    async def unheard(*_: Any) -> None:
        pass

    for turns in range(6):
        client: Any = SimpleNamespace(max_payload=1, new_inbox=lambda: "inbox", publish=unheard)
        inbox = NatsInbox(client, "", "", "", NatsLimits(2, 2, 60.0))
        await inbox.request()
        reading = asyncio.create_task(inbox.next())
        await asyncio.sleep(0)  # the task begins at the next turn of the loop, and runs until it waits
        inbox.end()
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled() is not is_over
        if is_over:
            assert isinstance(reading.exception(), ConsumerInterrupted)
