"""One try of one message: resolve, check, connect to what was checked, send, and read a bounded answer.

Nothing is taken from the environment (no proxy, no netrc), nothing is followed (no redirect), and no connection is used
twice: each try resolves and checks anew. The name of the host, not its address, is what TLS verifies and what the
receiver reads in `Host`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import certifi
import httpcore

from penstock import __version__
from penstock.serve.webhooks.address import Address, Allowed, Endpoint, as_address

ANSWER_BYTES_MAX = 64 * 1024
LOOK_UPS_MAX = 8
"""Names that are looked up at once. A name server that does not answer must not hold up anything but webhooks."""
CONNECTS_MAX = 2
"""Addresses of a host that one try goes to."""
Resolver = Callable[[str, int], Awaitable[list[str]]]
_USER_AGENT = f"Penstock/{__version__}"


@dataclass(frozen=True)
class Answer:
    """What the receiver said: status, headers by small letters, and as much of the body as is read."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unreachable(Exception):
    """There was no answer. The message says why, for the owner of the webhook; it holds no secret."""


class Transport:
    """Sends messages. Belongs to one event loop."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        timeout_s: float,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._resolver = resolver or self._resolve
        self._look_ups = asyncio.Semaphore(LOOK_UPS_MAX)
        self._tls = tls

    async def post(self, target: Endpoint, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send, and return the answer, whatever its status. `Unreachable` if there is none in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await self._checked(target)
                return await self._exchange(target, addresses, headers, body)
        except TimeoutError:
            raise Unreachable(f"no whole answer within {self._timeout_s:g} seconds") from None
        except ValueError as error:
            raise Unreachable(str(error)) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise Unreachable(f"{type(error).__name__}: {_without_addresses(error)}") from None

    async def _checked(self, target: Endpoint) -> list[Address]:
        """The addresses of the host, all of which may be connected to. `ValueError` if one may not."""
        literal = as_address(target.host)
        if literal is not None:
            found = [literal]
        else:
            found = [ipaddress.ip_address(each) for each in await self._resolver(target.host, target.port)]
        self._allowed.require(target, found)
        return found

    async def _resolve(self, host: str, port: int) -> list[str]:
        """In a thread that nobody waits for at the end: the system may take half a minute to give up, and cannot be
        told to stop. Its place is free when it is done, not when we have stopped to wait for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()
        await self._look_ups.acquire()

        def done(found: list[str] | None) -> None:
            self._look_ups.release()
            if not future.done() and found is not None:
                future.set_result(found)
            elif not future.done():
                future.set_exception(ValueError("the name of the host cannot be resolved"))

        def look_up() -> None:
            found = _look_up(host, port)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done, found)

        threading.Thread(target=look_up, name=f"look up {host[:40]}", daemon=True).start()
        return await future

    async def _exchange(
        self, target: Endpoint, addresses: list[Address], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        if self._tls is None and target.scheme == "https":
            self._tls = await asyncio.to_thread(_trusting)
        connection = httpcore.AsyncHTTPConnection(
            httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port),
            ssl_context=self._tls,
            network_backend=_Pinned(addresses),
            http2=False,
        )
        async with aclosing(connection):
            url = httpcore.URL(
                scheme=target.scheme.encode(),
                host=target.host.encode(),
                port=target.port,
                target=target.target.encode(),
            )
            request = httpcore.Request("POST", url, headers=_heads(target, headers, body), content=body)
            response = await connection.handle_async_request(request)
            try:
                named = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers}
                return Answer(response.status, named, await _read(response))
            finally:
                await response.aclose()


async def _read(response: httpcore.Response) -> bytes:
    """The beginning of the body; the rest is not waited for."""
    found = b""
    async for piece in response.aiter_stream():
        found += piece
        if len(found) >= ANSWER_BYTES_MAX:
            break
    return found[:ANSWER_BYTES_MAX]


def _heads(target: Endpoint, headers: Mapping[str, str], body: bytes) -> list[tuple[str, str]]:
    always = {
        "Host": target.authority,
        "User-Agent": _USER_AGENT,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    return [*always.items(), *headers.items()]


class _Pinned(httpcore.AnyIOBackend):
    """Connects to addresses that were checked, whatever the name would resolve to now."""

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses[:CONNECTS_MAX]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        for number, address in enumerate(self._addresses, 1):
            try:
                return await super().connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                if number == len(self._addresses):
                    raise
        raise httpcore.ConnectError("the host has no address")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("a webhook goes to the network")


def _look_up(host: str, port: int) -> list[str] | None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _trusting() -> ssl.SSLContext:
    """The authorities of the system, or of `SSL_CERT_FILE`, and those that come with Python's packages."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(certifi.where())
    return context


def _without_addresses(error: Exception) -> str:
    """What is said of a failed connection, without the addresses that a name has inside our network."""
    text = str(error)
    for known in ("certificate", "refused", "reset", "unreachable", "closed", "disconnected"):
        if known in text.lower():
            return text[:200] if known == "certificate" else f"the connection was {known}"
    return "the connection failed"
