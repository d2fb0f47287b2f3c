"""A webhook never leads into the internal network: not by its URL, its host's addresses, or a redirect."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from penstock.core.access import ANYONE
from penstock.core.errors import BadParameter, DeclarationError
from penstock.serve.webhooks.address import Allowed, endpoint, is_public
from penstock.serve.webhooks.transport import WebhookTransport, WebhookUnreachable
from tests.clocks import until
from tests.serve.fakes import run
from tests.serve.webhooks.receiver import Received, Receiver, receiving, status
from tests.serve.webhooks.rig import replaced, rigged, wanted

NONE = Allowed()
PRIVATE = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.8.8.8", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.0.170", "192.0.2.1", "192.88.99.1",
    "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::7f00:1", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:2::1",
    "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1", "fc00::1",
    "fd00:ec2::254", "fe80::1", "fe80::1%2", "fec0::1", "ff02::1", "ff0e::1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "172.32.0.1", "2001:4860:4860::8888", "2a00:1450::1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_of_the_internet_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


BAD_URLS = [
    "", "x", "//host/", "http://example.com/", "ftp://example.com/", "HTTPX://example.com", "file:///etc/passwd",
    "https://", "https:///path", "https://:443/", "https://user@example.com/", "https://user:hunter2@example.com/",
    "https://example.com@127.0.0.1/", "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
    "http://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://0x7f.1/", "https://0x7f000001/",
    "https://2130706433/", "https://127.1/", "https://0177.0.0.1/", "https://127.0.0.1./", "https://0/",
    "https://169.254.169.254/latest/meta-data/", "https://localhost/", "https://localhost./", "https://LOCALHOST/",
    "https://a.localhost/", "https://[fe80::1%25eth0]/", "https://[::1%25lo]/", "https://exam ple.com/",
    "https://example.com/a b", "https://example.com/\r\nX: y", "https://example.com\\@127.0.0.1/", "https://ex%61mple.com/",
    "https://example.com#@127.0.0.1/", "https://exämple.com/", "https://1.1.1.1.1.256/", "https://a..b/", "https://-a.com/",
    "https://example.com:22/", "https://example.com:25/", "https://example.com:99999/", "https://example.com:x/",
    "https://" + "a" * 64 + ".com/", "https://example.com/" + "a" * 2000, "https://[1.1.1.1]/", "https://[]/", "https://[",
    "https://127。0。0。1/", "https://①②⑦.0.0.1/", "https://user:hunter2/x@example.com/", "https://user:hunter2?@example.com/",
    "https://[2001:4860:4860::8888]x:8443/", "https://[2001:4860:4860::8888]x/", "https://[2001:4860:4860::8888]8443/",
    "https://x[2001:4860:4860::8888]/", "https://[2001:4860:4860::8888]:8443]/", "https://[2001:4860:4860::8888].a.com/",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_a_webhook_may_not_have_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(BadParameter) as caught:
        endpoint(url, NONE)
    assert caught.value.fields == {"parameter": "url"}
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "shown", "authority", "target"),
    [
        ("https://example.com", "https://example.com:443", "example.com", "/"),
        ("https://Example.COM:8443/a?b=c", "https://example.com:8443", "example.com:8443", "/a?b=c"),
        ("https://1.1.1.1/", "https://1.1.1.1:443", "1.1.1.1", "/"),
        ("https://[2a00:1450::1]:4430/x", "https://[2a00:1450::1]:4430", "[2a00:1450::1]:4430", "/x"),
        ("https://xn--bcher-kva.example./", "https://xn--bcher-kva.example:443", "xn--bcher-kva.example", "/"),
        ("https://a_b.example.com/", "https://a_b.example.com:443", "a_b.example.com", "/"),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(url: str, shown: str, authority: str, target: str) -> None:
    parts = endpoint(url, NONE)
    assert (parts.shown, parts.authority, parts.target) == (shown, authority, target)


def test_plain_http_is_for_networks_that_are_allowed() -> None:
    allowed = Allowed.of("127.0.0.0/8, ::1/128")
    assert endpoint("http://127.0.0.1:8080/x", allowed).port == 8080
    assert endpoint("http://[::1]/", allowed).port == 80
    for url in ("http://1.1.1.1/", "https://10.0.0.1/", "https://[::ffff:127.0.0.1]/", "https://1.1.1.1:22/"):
        with pytest.raises(BadParameter):
            endpoint(url, allowed)


@pytest.mark.parametrize("text", ["x", "127.0.0.1/7", "10.0.0.0/99", "127.0.0.0/8;::1"])
def test_a_setting_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="PENSTOCK_WEBHOOK_PRIVATE"):
        Allowed.of(text)


STRANGE = "127.0.0.77"
"""A loopback address that nobody uses by default: a port of the usual one may have been used before."""


@contextmanager
def counting(address: str = "127.0.0.1") -> Iterator[tuple[int, list[int]]]:
    """Open a listening socket on loopback that counts connections."""
    listener = socket.create_server((address, 0))
    seen: list[int] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            seen.append(1)
            connection.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["fe80::1%1"], []]
)  # fmt: skip
def test_a_name_with_any_address_that_is_not_public_is_not_connected_to(addresses: list[str]) -> None:
    async def main() -> None:
        async def resolve(host: str, port: int) -> list[str]:
            return addresses

        with counting() as (port, seen):
            transport = WebhookTransport(NONE, timeout_s=2, resolver=resolve)
            target = endpoint(f"https://inside.example:{port}/", NONE)
            with pytest.raises(WebhookUnreachable, match="address"):
                await transport.post(target, {}, b"{}")
            assert seen == []

    run(main())


def test_a_name_that_changes_its_address_between_tries_is_checked_on_each(tmp_path: Path) -> None:
    """Rebinding: the name is public when it is checked, and is loopback a moment later."""
    answers = ["198.18.0.5", "127.0.0.1", "198.18.0.5", "127.0.0.1"]
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return [answers[len(asked) % 2]]

    async def main() -> None:
        allowed = Allowed.of("198.18.0.0/15")  # stands for the internet: nothing answers there
        with counting() as (port, seen):
            transport = WebhookTransport(allowed, timeout_s=0.2, resolver=resolve)
            settings = replaced(webhook_private="198.18.0.0/15", webhook_tries_max=3)
            async with rigged(tmp_path, settings, transport=transport) as rig:
                url = f"https://rebinding.example:{port}/"
                webhooks = [(await rig.registry.register(ANYONE, wanted(url), "latest"))[0] for _ in range(2)]
                twice = [webhook["id"] for webhook in webhooks for _ in range(2)]  # a third attempt would have to wait
                reasons = [(await rig.registry.verify(ANYONE, id))["reason"] for id in twice]
                assert any("not public" in reason for reason in reasons)
                assert not all("not public" in reason for reason in reasons)
            assert len(asked) >= 4
            assert seen == []

    run(main())


def test_the_connection_goes_to_the_address_that_was_checked_whatever_the_name_is_by_then() -> None:
    """The name is resolved once a try: there is no second look-up with another result."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.99"]

    async def main() -> None:
        allowed = Allowed.of("127.0.0.1/32")
        async with receiving() as receiver:
            transport = WebhookTransport(allowed, timeout_s=5, resolver=resolve)
            target = endpoint(f"http://name.example:{receiver.port}/hook", allowed)
            body = b'{"type": "webhook.challenge", "data": {"challenge": "x"}}'
            answer = await transport.post(target, {}, body)
            assert answer.status == 200
            assert receiver.challenges[0].headers["host"] == f"name.example:{receiver.port}"
            with pytest.raises(WebhookUnreachable, match="not public"):
                await transport.post(target, {}, body)
            assert receiver.connections == 1
        assert asked == ["name.example"] * 2

    run(main())


def test_registering_an_address_inside_is_refused_and_connects_to_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        with counting() as (port, seen):
            async with rigged(tmp_path, replaced(webhook_private="")) as rig:
                for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433", "localhost.", "u@127.0.0.1"):
                    for scheme in ("http", "https"):
                        with pytest.raises(BadParameter):
                            await rig.registry.register(ANYONE, wanted(f"{scheme}://{host}:{port}/"), "latest")
                assert rig.registry.listed(ANYONE) == []
            assert seen == []

    run(main())


def test_a_redirect_into_the_network_is_not_followed(tmp_path: Path) -> None:
    async def main() -> None:
        with counting() as (port, seen):

            async def redirect(receiver: Receiver, received: Received, writer: asyncio.StreamWriter) -> bytes | None:
                return status(307, f"location: http://127.0.0.1:{port}/")

            async with receiving(redirect) as receiver, rigged(tmp_path, replaced(webhook_tries_max=2)) as rig:
                id = await rig.add(receiver)
                rig.write(1)
                await until(lambda: rig.get(id)["dead"] == 1)
            assert seen == []

    run(main())


def test_proxies_and_passwords_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def main() -> None:
        with counting(STRANGE) as (port, seen):
            for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://{STRANGE}:{port}")
            (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password word\n")
            monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
            async with receiving() as receiver, rigged(tmp_path) as rig:
                await rig.add(receiver)
                rig.write(1)
                await until(lambda: len(receiver.taken) == 1)
            assert "authorization" not in receiver.requests[0].headers
            assert seen == []

    run(main())


def test_tls_verifies_the_name_though_the_connection_goes_to_an_address() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("good.example").configure_cert(server)
    named: list[str | None] = []
    server.sni_callback = lambda connection, name, context: named.append(name)
    client = ssl.create_default_context()
    authority.configure_trust(client)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def main() -> None:
        allowed = Allowed.of("127.0.0.0/8")
        async with receiving(tls=server) as receiver:
            transport = WebhookTransport(allowed, timeout_s=5, resolver=resolve, tls=client)
            body = b'{"type": "webhook.challenge", "data": {"challenge": "x"}}'
            good = endpoint(f"https://good.example:{receiver.port}/", allowed)
            assert (await transport.post(good, {}, body)).status == 200
            other = endpoint(f"https://other.example:{receiver.port}/", allowed)
            with pytest.raises(WebhookUnreachable, match="certificate"):
                await transport.post(other, {}, body)
            assert len(receiver.challenges) == 1
        assert named == ["good.example", "other.example"]

    run(main())


def test_an_unknown_certificate_is_refused() -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(server)

    async def main() -> None:
        allowed = Allowed.of("127.0.0.0/8")
        async with receiving(tls=server) as receiver:
            transport = WebhookTransport(allowed, timeout_s=5)
            with pytest.raises(WebhookUnreachable, match="certificate"):
                await transport.post(endpoint(receiver.url, allowed), {}, b"{}")
            assert receiver.challenges == receiver.requests == []

    run(main())
