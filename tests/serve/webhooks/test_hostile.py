"""Hostile URLs and hostile answers of a receiver are refused or accepted, and nothing else happens."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

import httpx
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.core.errors import BadParameter
from penstock.serve.webhooks.address import Allowed, as_address, endpoint, is_public
from penstock.serve.webhooks.transport import ANSWER_BYTES_MAX, WebhookResponse, WebhookTransport, WebhookUnreachable
from tests.serve.fakes import run

PIECES = st.sampled_from(
    [
        "https://", "http://", "//", "@", ":", "/", "?", "#", ".", "[", "]", "%", "\\", "::ffff:", "127.0.0.1", "0x7f",
        "0177", "localhost", "example", ".com", "1", "443", "8443", "xn--", "user", "%00", "%2f", " ", "\t", "\n", "。",
        "ﬀ", "a" * 70,
    ]
)  # fmt: skip


@settings(deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.lists(PIECES, max_size=9).map("".join), st.text(max_size=40).map("https://{}".format)))
@example("https://a@b@127.0.0.1/")
@example("https://Example.com.:8443/x?y")
@example("https://xn--https://")
def test_a_url_is_refused_or_means_the_same_to_another_parser_and_leads_nowhere_inside(url: str) -> None:
    try:
        parts = endpoint(url, Allowed())
    except BadParameter:
        return
    other = httpx.URL(url)
    assert (parts.scheme, parts.port) == ("https", other.port or 443)
    assert parts.host == other.raw_host.decode().lower().removesuffix(".")  # `host` may be decoded for display
    assert other.userinfo == b""
    address = as_address(parts.host)
    assert address is None or is_public(address)


@settings(deadline=None, max_examples=1000)
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_python_knows_as_not_global_is_never_public(address: Any) -> None:
    assert not is_public(address) or (address.is_global and not address.is_multicast and not address.is_reserved)


@settings(deadline=None, max_examples=500)
@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:{}", "::{}", "64:ff9b::{}", "2002:{hex}::1", "2001:0:{hex}::1"]))
def test_an_address_with_another_one_inside_is_never_public(inner: ipaddress.IPv4Address, form: str) -> None:
    digits = f"{int(inner):08x}"
    text = form.format(inner, hex=f"{digits[:4]}:{digits[4:]}")
    assert not is_public(ipaddress.ip_address(text))


GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX: y\r\n\r\nbody"


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Return garbage, or a good answer with some bytes changed, doubled, left out or cut off."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    answer = bytearray(GOOD)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(answer) - 1)) if answer else 0
        answer[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(answer[: draw(st.integers(0, 2 * len(GOOD)))])


def test_a_receiver_that_answers_rubbish_is_unreachable_and_nothing_worse() -> None:
    said = [b""]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said[0])
        writer.close()

    async def ask(port: int) -> WebhookResponse | None:
        allowed = Allowed.of("127.0.0.0/8")
        try:
            return await WebhookTransport(allowed, timeout_s=5).post(
                endpoint(f"http://127.0.0.1:{port}/", allowed), {}, b"{}"
            )
        except WebhookUnreachable:
            return None

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop, outcomes = asyncio.get_running_loop(), list[bool]()

        @settings(deadline=None, max_examples=300, database=None, suppress_health_check=list(HealthCheck))
        @given(answers())
        @example(GOOD)
        @example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n")
        @example(b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n")
        @example(b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + GOOD)
        @example(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        @example(b"HTTP/2 200 OK\r\n\r\n")
        def attack(response: bytes) -> None:
            said[0] = response
            got = asyncio.run_coroutine_threadsafe(ask(port), loop).result(20)
            outcomes.append(got is not None)
            assert got is None or (100 <= got.status <= 999 and len(got.body) <= ANSWER_BYTES_MAX)

        await asyncio.to_thread(attack)
        assert {True, False} == set(outcomes)
        server.close()

    run(main())
