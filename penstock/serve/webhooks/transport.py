"""One attempt to send a message: resolve, check, connect to the checked address, send, and read a bounded response.

Proxy and netrc settings in the environment are ignored, redirects are not followed, and connections are not reused:
each attempt resolves and checks the host again. TLS verifies the host name, not the address, and the `Host` header
contains the name.
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
from penstock.serve.webhooks.address import Address, Allowed, WebhookAddress, as_address

ANSWER_BYTES_MAX = 64 * 1024
LOOK_UPS_MAX = 8
"""Maximum number of names resolved at once. An unresponsive name server must not delay anything except webhooks."""
CONNECTS_MAX = 2
"""Maximum number of a host's addresses that one attempt tries to connect to."""
Resolver = Callable[[str, int], Awaitable[list[str]]]
_USER_AGENT = f"Penstock/{__version__}"


@dataclass(frozen=True)
class WebhookResponse:
    """The receiver's response: status, headers by lower-case name, and the beginning of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WebhookUnreachable(Exception):
    """A webhook's receiver did not respond. The message tells the webhook's owner why, and contains no secret."""


class WebhookTransport:
    """Sends webhook messages. Not thread-safe."""

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

    async def post(self, target: WebhookAddress, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        """Send a webhook message and return the response, regardless of its status.

        Raises `WebhookUnreachable` if there is no response in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await self._checked(target)
                return await self._exchange(target, addresses, headers, body)
        except TimeoutError:
            raise WebhookUnreachable(f"no complete response within {self._timeout_s:g} seconds") from None
        except ValueError as error:
            raise WebhookUnreachable(str(error)) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise WebhookUnreachable(f"{type(error).__name__}: {_without_addresses(error)}") from None

    async def _checked(self, target: WebhookAddress) -> list[Address]:
        """Return the addresses of a webhook's host. Raises `ValueError` if connecting to any of them is not allowed."""
        literal = as_address(target.host)
        if literal is not None:
            addresses = [literal]
        else:
            addresses = [ipaddress.ip_address(address) for address in await self._resolver(target.host, target.port)]
        self._allowed.require(target, addresses)
        return addresses

    async def _resolve(self, host: str, port: int) -> list[str]:
        """Resolve a webhook's host in a daemon thread, because the system call can take half a minute and cannot be
        cancelled.

        The slot becomes free when the thread ends, not when the caller stops waiting.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()
        await self._look_ups.acquire()

        def done(addresses: list[str] | None) -> None:
            self._look_ups.release()
            if not future.done() and addresses is not None:
                future.set_result(addresses)
            elif not future.done():
                future.set_exception(ValueError("the host name cannot be resolved"))

        def look_up() -> None:
            addresses = _resolve_webhook_host(host, port)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done, addresses)

        threading.Thread(target=look_up, name=f"look up {host[:40]}", daemon=True).start()
        return await future

    async def _exchange(
        self, target: WebhookAddress, addresses: list[Address], headers: Mapping[str, str], body: bytes
    ) -> WebhookResponse:
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
            request = httpcore.Request("POST", url, headers=_request_headers(target, headers, body), content=body)
            response = await connection.handle_async_request(request)
            try:
                named = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers}
                return WebhookResponse(response.status, named, await _read_response(response))
            finally:
                await response.aclose()


async def _read_response(response: httpcore.Response) -> bytes:
    """Return the beginning of the receiver's response, without waiting for the rest."""
    body = b""
    async for piece in response.aiter_stream():
        body += piece
        if len(body) >= ANSWER_BYTES_MAX:
            break
    return body[:ANSWER_BYTES_MAX]


def _request_headers(target: WebhookAddress, headers: Mapping[str, str], body: bytes) -> list[tuple[str, str]]:
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
    """Connects to a webhook's checked addresses, no matter what the name would resolve to now."""

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
        raise httpcore.ConnectError("the host has no IP address")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("webhooks cannot use Unix sockets")


def _resolve_webhook_host(host: str, port: int) -> list[str] | None:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def _trusting() -> ssl.SSLContext:
    """Return a TLS context for webhooks. It trusts the system's CAs (or `SSL_CERT_FILE`) and the CAs of the package
    `certifi`."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(certifi.where())
    return context


def _without_addresses(error: Exception) -> str:
    """Return the text of a webhook's connection error, without the host's internal addresses."""
    text = str(error)
    for known in ("certificate", "refused", "reset", "unreachable", "closed", "disconnected"):
        if known in text.lower():
            return text[:200] if known == "certificate" else f"the connection was {known}"
    return "the connection failed"
