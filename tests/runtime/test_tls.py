"""TLS: with valid, invalid and renewed certificates, client certificates, and clients that never finish."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from penstock.core.access import read_policy
from penstock.core.settings import Settings
from penstock.http import edge
from tests.collect.support import body
from tests.runtime.guarded import Running, running

TLS = '[tls]\ncertificate = "c.pem"\nkey = "k.pem"\n'
CLIENTS = """
clients = "ca.pem"
require = {require}

[clients."sensor.example"]
grants = ["produce:a"]

[clients."spiffe://example/reader"]
grants = ["consume:a"]

[clients."spiffe://example/slow"]
grants = ["consume:a"]
rate = 0.001
"""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def clients() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, certificate: trustme.LeafCert) -> None:
    (folder / "c.pem").write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(folder / "k.pem")


@contextmanager
def served(
    folder: Path,
    authority: trustme.CA,
    clients: trustme.CA | None = None,
    *,
    require: str = "true",
    settings: Settings | None = None,
    pages: str = "",
) -> Iterator[Running]:
    write(folder, authority.issue_cert("localhost", "127.0.0.1"))
    if clients is not None:
        clients.cert_pem.write_to_path(folder / "ca.pem")
    more = CLIENTS.format(require=require) if clients is not None else ""
    (folder / "access.toml").write_text(TLS + more + pages)
    with running(folder / "data", read_policy(folder / "access.toml"), settings) as gateway:
        gateway.trust(authority)
        yield gateway


def trusting(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


@contextmanager
def connected(
    gateway: Running, context: ssl.SSLContext, name: str | None = "localhost", session: ssl.SSLSession | None = None
) -> Iterator[ssl.SSLSocket]:
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as plain:
        with context.wrap_socket(plain, server_hostname=name or "127.0.0.1", session=session) as connection:
            yield connection


def ask(connection: ssl.SSLSocket, line: str = "POST /v1/streams/a HTTP/1.1", key: str = "") -> int:
    content = body({"k": "x"}) if line.startswith("POST") else b""
    named = ["Host: localhost", f"Content-Length: {len(content)}", *([f"Authorization: Bearer {key}"] if key else [])]
    connection.sendall("\r\n".join([line, *named, "", ""]).encode() + content)
    with HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
    return answer.status


def test_a_post_goes_the_short_way_and_a_websocket_opens(tmp_path: Path, authority: trustme.CA) -> None:
    with served(tmp_path, authority) as gateway:
        with connected(gateway, trusting(authority)) as connection:
            assert ask(connection) == 200
            assert (ask(connection), gateway.asgi) == (200, [])
        key = gateway.add("bob", "admin")
        with connected(gateway, trusting(authority)) as connection:
            assert [ask(connection, key=key) for _ in range(3)] == [200, 200, 200]
            assert len(gateway.asgi) == 1, "a key is asked about once"
        assert gateway.talk("/v1/live") == 401
        subscribe = {"op": "subscribe", "id": "1", "stream": "a", "since": "earliest"}
        assert gateway.talk("/v1/live", key, subscribe) == "subscribed"
        answer = gateway.get("/v1/app", key)
        assert answer.headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
def test_what_is_older_than_1_2_is_refused(tmp_path: Path, authority: trustme.CA, version: ssl.TLSVersion) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with served(tmp_path, authority) as gateway:
        if version == ssl.TLSVersion.TLSv1_2:
            with connected(gateway, context) as connection:
                assert (connection.version(), ask(connection)) == ("TLSv1.2", 200)
        else:
            with pytest.raises(ssl.SSLError, match=r"EOF|PROTOCOL_VERSION"), connected(gateway, context):
                pass


def test_plain_http_and_garbage_are_closed_and_others_go_on(tmp_path: Path, authority: trustme.CA) -> None:
    with served(tmp_path, authority) as gateway:
        for sent in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 1000, b"\x00" * 50):
            with socket.create_connection(("127.0.0.1", gateway.port), 10) as plain:
                plain.sendall(sent)
                assert b"HTTP/1.1 200" not in plain.recv(4096)
        with connected(gateway, trusting(authority)) as connection:
            assert ask(connection) == 200


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00"], ids=["nothing", "half a hello"])
def test_who_never_finishes_the_handshake_is_closed(
    tmp_path: Path, authority: trustme.CA, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "HANDSHAKE_S", 0.2)
    with served(tmp_path, authority) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), 10) as plain:
            plain.sendall(sent)
            assert _is_closed(plain)


def test_connections_are_counted_before_their_handshake(tmp_path: Path, authority: trustme.CA) -> None:
    """Silent ones take no more slots than others; when they are gone there is room again."""
    settings = Settings(sockets_per_address_max=5)
    with served(tmp_path, authority, settings=settings) as gateway, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 10)) for _ in range(12)]
        ready, _, _ = select.select(silent, [], [], 10)
        while len(ready) < 7:
            ready, _, _ = select.select(silent, [], [], 10)
            assert ready, "they are kept open, and escape the limit"
        assert all(map(_is_closed, ready))
        assert len(ready) == 7
        for client in silent:
            client.close()
        deadline = time.monotonic() + 10
        while True:
            try:
                with connected(gateway, trusting(authority)) as connection:
                    assert ask(connection) == 200
                    break
            except (ssl.SSLError, ConnectionError):
                assert time.monotonic() < deadline


def _is_closed(plain: socket.socket) -> bool:
    try:
        return plain.recv(100) == b""
    except ConnectionResetError:
        return True


ROWS = {
    "produce by DNS": (("sensor.example",), 200, 403),
    "consume by URI": (("spiffe://example/reader",), 403, 200),
    "two names": (("other.example", "sensor.example"), 200, 403),
    "another name": (("other.example",), 401, 401),
    "a name inside": (("sensor.example.evil.example",), 401, 401),
    "a wildcard": (("*.example",), 401, 401),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_certificate_gives_what_its_name_is_granted(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA, name: str
) -> None:
    names, posted, read = ROWS[name]
    with served(tmp_path, authority, clients) as gateway:
        certificate = clients.issue_cert(*names) if "://" not in names[0] else _with_uri(clients, names[0])
        with connected(gateway, trusting(authority, certificate)) as connection:
            assert ask(connection) == posted
            assert ask(connection, "GET /v1/streams/a HTTP/1.1") == read
        gateway.verify = trusting(authority, certificate)
        assert gateway.talk("/v1/streams/a/publish") == {200: 101}.get(posted, posted)
        key = gateway.add("boss", "admin")
        with connected(gateway, trusting(authority, certificate)) as connection:
            assert ask(connection, key=key) == 200, "a key counts before a certificate"


def _with_uri(clients: trustme.CA, name: str) -> trustme.LeafCert:
    """Return a certificate for a URI, as in SPIFFE; trustme cannot create one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(clients.cert_pem.bytes())
    signer = serialization.load_pem_private_key(clients.private_key_pem.bytes(), None)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sensor.example")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)]), False)
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return trustme.LeafCert(private, certificate.public_bytes(serialization.Encoding.PEM), [])


def refused(gateway: Running, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> bool:
    """Return whether TLS refuses everyone. In 1.3 a client learns it after its first message."""
    try:
        with connected(gateway, context, session=session) as connection:
            ask(connection)
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        return True
    return False


def test_without_a_good_certificate_there_is_no_connection(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA
) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    with served(tmp_path, authority, clients) as gateway:
        assert refused(gateway, trusting(authority))
        assert refused(gateway, trusting(authority, trustme.CA().issue_cert("sensor.example")))
        assert refused(gateway, trusting(authority, authority.issue_cert("sensor.example")))
        assert refused(gateway, trusting(authority, clients.issue_cert("sensor.example", not_after=past)))
        assert not refused(gateway, trusting(authority, clients.issue_cert("sensor.example")))
        assert [path for path in gateway.asgi if path != "/v1/streams/a"] == []


def test_without_one_there_may_be_a_connection_and_a_bad_one_is_refused(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA
) -> None:
    with served(tmp_path, authority, clients, require="false") as gateway:
        with connected(gateway, trusting(authority)) as connection:
            assert ask(connection) == 401
            assert ask(connection, "GET / HTTP/1.1") == 200
        assert refused(gateway, trusting(authority, trustme.CA().issue_cert("sensor.example")))
        with connected(gateway, trusting(authority, clients.issue_cert("sensor.example"))) as connection:
            assert ask(connection) == 200


def test_a_rate_belongs_to_the_certificate_and_not_to_its_connection(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA
) -> None:
    with served(tmp_path, authority, clients) as gateway:
        certificate, statuses = _with_uri(clients, "spiffe://example/slow"), []
        for _ in range(4):
            with connected(gateway, trusting(authority, certificate)) as connection:
                statuses.append(ask(connection, "GET /v1/streams/a HTTP/1.1"))
        assert statuses == [200, 200, 429, 429]


def serial(connection: ssl.SSLSocket) -> object:
    shown = connection.getpeercert()
    assert shown is not None
    return shown["serialNumber"]


@pytest.mark.parametrize("name", ["localhost", None], ids=["by name", "by address"])
def test_a_renewed_certificate_is_for_the_next_connection_and_open_ones_go_on(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA, name: str | None
) -> None:
    mine = clients.issue_cert("sensor.example")
    with served(tmp_path, authority, clients) as gateway:
        with connected(gateway, trusting(authority, mine), name) as before:
            assert ask(before) == 200
            write(tmp_path, authority.issue_cert("localhost", "127.0.0.1"))
            gateway.reload()
            with connected(gateway, trusting(authority, mine), name) as after:
                assert serial(after) != serial(before)
                assert ask(after) == ask(before) == 200
            assert refused(gateway, trusting(authority)), "and clients are asked for theirs as before"


def test_a_certificate_that_is_half_renewed_changes_nothing(tmp_path: Path, authority: trustme.CA) -> None:
    """The certificate is written first, and its key a moment later."""
    with served(tmp_path, authority) as gateway:
        with connected(gateway, trusting(authority)) as connection:
            first = serial(connection)
        certificate = authority.issue_cert("localhost")
        (tmp_path / "c.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
        for _ in range(2):
            gateway.reload()
            with connected(gateway, trusting(authority)) as connection:
                assert (serial(connection), ask(connection)) == (first, 200)
        write(tmp_path, certificate)
        gateway.reload()
        with connected(gateway, trusting(authority)) as connection:
            assert serial(connection) != first


def test_those_who_sign_certificates_can_be_changed_while_it_runs(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA
) -> None:
    other = trustme.CA()
    with served(tmp_path, authority, clients) as gateway:
        other.cert_pem.write_to_path(tmp_path / "ca.pem")
        gateway.reload()
        assert refused(gateway, trusting(authority, clients.issue_cert("sensor.example")))
        assert not refused(gateway, trusting(authority, other.issue_cert("sensor.example")))


@pytest.mark.parametrize("require", ["true", "false"])
def test_connections_do_not_outlive_an_authority_that_is_removed(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA, require: str
) -> None:
    """An open WebSocket is closed and the next request refused; one more authority, or a new certificate of the
    gateway, closes nothing."""
    other = trustme.CA()
    context = trusting(authority, clients.issue_cert("sensor.example"))
    with served(tmp_path, authority, clients, require=require) as gateway:
        url = f"wss://127.0.0.1:{gateway.port}/v1/streams/a/publish"
        options: Any = {"ssl": context, "server_hostname": "localhost", "proxy": None}

        async def until_closed() -> int:
            async with connect(url, **options) as live:
                (tmp_path / "ca.pem").write_bytes(clients.cert_pem.bytes() + other.cert_pem.bytes())
                write(tmp_path, authority.issue_cert("localhost", "127.0.0.1"))
                await asyncio.to_thread(gateway.reload)
                await (await live.ping())
                other.cert_pem.write_to_path(tmp_path / "ca.pem")
                await asyncio.to_thread(gateway.reload)
                await asyncio.wait_for(live.wait_closed(), 20)
                return live.close_code or 0

        with connected(gateway, context) as connection:
            assert ask(connection) == 200
            assert asyncio.run(until_closed()) == 1008
            assert ask(connection) == 401


def test_a_key_does_not_keep_a_connection_whose_certificate_is_not_trusted_any_more(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA
) -> None:
    """This applies if a certificate is required, also on the fast path of a POST."""
    context = trusting(authority, clients.issue_cert("nobody.example"))
    with (
        served(tmp_path, authority, clients) as gateway,
        gateway.client(gateway.add("bob", "admin"), verify=context) as bob,
    ):
        for _ in range(2):
            assert bob.post("/v1/streams/a", json={"k": "v"}).status_code == 200
        trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
        gateway.reload()
        answer = bob.post("/v1/streams/a", json={"k": "v"})
        assert (answer.status_code, answer.headers["connection"]) == (401, "close")


LISTED = "https://shop.example"
PAGES = f'\n[pages]\norigins = ["{LISTED}"]\n'


def statuses(gateway: Running, context: ssl.SSLContext, **headers: str) -> list[int]:
    """Return the statuses of a POST, a read and a WebSocket with these headers."""

    async def upgraded() -> int:
        options: Any = {"ssl": context, "server_hostname": "localhost", "proxy": None, "additional_headers": headers}
        try:
            async with connect(f"wss://127.0.0.1:{gateway.port}/v1/streams/a/publish", **options):
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    with gateway.client(verify=context) as client:
        posted = client.post("/v1/streams/a", json={"k": "v"}, headers=headers)
        read = client.get("/v1/streams/a", headers=headers)
    return [posted.status_code, read.status_code, asyncio.run(asyncio.wait_for(upgraded(), 20))]


@pytest.mark.parametrize("require", ["true", "false"])
def test_a_page_of_another_origin_cannot_use_the_certificate_of_its_visitor(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA, require: str
) -> None:
    """A browser sends the certificate with the requests of any page. A listed page can read our answers, so it needs a
    key of its own. A program and the gateway's own page are identified by the certificate."""
    context = trusting(authority, clients.issue_cert("sensor.example"))
    with served(tmp_path, authority, clients, require=require, pages=PAGES) as gateway:
        own = f"https://127.0.0.1:{gateway.port}"
        assert statuses(gateway, context) == [200, 403, 101]
        assert statuses(gateway, context, **{"Origin": own, "Sec-Fetch-Site": "same-origin"}) == [200, 403, 101]
        for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-origin"}):
            assert statuses(gateway, context, Origin=LISTED, **site) == [401, 401, 401]
        assert statuses(gateway, context, Origin="https://evil.example") == [403, 403, 403]
        with gateway.client(verify=context) as page:
            refusal = page.get("/v1/streams/a", headers={"Origin": LISTED})
            assert "send a key as well" in refusal.json()["detail"]
            assert refusal.headers["access-control-allow-origin"] == LISTED, "the page can show the reason"
        key = f"Bearer {gateway.add('bob', 'admin')}"
        assert statuses(gateway, context, Origin=LISTED, Authorization=key) == [200, 200, 101]


def test_a_page_with_a_key_still_needs_a_certificate_that_is_trusted(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA
) -> None:
    """With `require`, that its certificate does not identify the page does not make the connection trusted."""
    context = trusting(authority, clients.issue_cert("sensor.example"))
    with served(tmp_path, authority, clients, pages=PAGES) as gateway:
        with gateway.client(gateway.add("bob", "admin"), verify=context) as page:
            assert page.get("/v1/streams/a", headers={"Origin": LISTED}).status_code == 200
            trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
            gateway.reload()
            assert page.get("/v1/streams/a", headers={"Origin": LISTED}).status_code == 401


@pytest.mark.parametrize(("require", "closed"), [("true", True), ("false", False)])
def test_a_key_does_not_keep_a_live_connection_whose_certificate_is_not_trusted_any_more(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA, require: str, closed: bool
) -> None:
    """This applies if a certificate is required. If it is not, the key alone was enough to open it, and still is."""
    context = trusting(authority, clients.issue_cert("nobody.example"))
    with served(tmp_path, authority, clients, require=require) as gateway:
        headers = {"Authorization": f"Bearer {gateway.add('bob', 'admin')}"}
        url = f"wss://127.0.0.1:{gateway.port}/v1/live"
        options: Any = {"ssl": context, "server_hostname": "localhost", "proxy": None, "additional_headers": headers}

        async def after_removal() -> tuple[int | None, str | None]:
            async with connect(url, **options) as live:
                await (await live.ping())
                trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
                await asyncio.to_thread(gateway.reload)
                if closed:
                    await asyncio.wait_for(live.wait_closed(), 20)
                else:
                    await (await live.ping())
                return live.close_code, live.close_reason

        code, reason = asyncio.run(after_removal())
        assert code == (1008 if closed else None)
        assert "authority" in (reason or "") or not closed


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_those_who_signed_its_certificate(
    tmp_path: Path, authority: trustme.CA, clients: trustme.CA, version: ssl.TLSVersion
) -> None:
    """A client that resumes a session shows no certificate: nothing would check who signed it."""
    context = trusting(authority, clients.issue_cert("sensor.example"))
    context.maximum_version = version
    with served(tmp_path, authority, clients) as gateway:
        with connected(gateway, context) as connection:
            assert ask(connection) == 200
            session = connection.session
        trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
        gateway.reload()
        assert refused(gateway, context, session)


def test_a_caller_ends_with_its_certificate(tmp_path: Path, authority: trustme.CA, clients: trustme.CA) -> None:
    """This includes an open connection: the next request is refused, and a WebSocket is closed."""
    ends = datetime.now(UTC) + timedelta(seconds=4)
    context = trusting(authority, clients.issue_cert("sensor.example", not_after=ends))
    with served(tmp_path, authority, clients) as gateway:
        url = f"wss://127.0.0.1:{gateway.port}/v1/streams/a/publish"
        options: Any = {"ssl": context, "server_hostname": "localhost", "proxy": None}

        async def until_closed() -> int:
            async with connect(url, **options) as live:
                await asyncio.wait_for(live.wait_closed(), 20)
                return live.close_code or 0

        with connected(gateway, context) as connection:
            assert ask(connection) == 200
            assert asyncio.run(until_closed()) == 1008
            assert ask(connection) == 401
