"""HTTP client shared by the sources that pull over HTTP: requests, responses, and the delay before the next request.

It uses httpx's transport, because httpx's client logs complete addresses, including secrets. For the same reason,
httpx's error messages are never shown to users; each kind of error has its own message here.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urljoin

from penstock.collect.sources.addresses import address_parts, without_secrets
from penstock.collect.sources.http.response import RETRY_AFTER_S_MAX, HttpResponse, ResponseLost
from penstock.collect.sources.reconnect import keep_connected
from penstock.core.backoff import Backoff, retry_after_s
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError, SourceFailed

if TYPE_CHECKING:
    import httpx

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NO_URL = re.compile(r"[\x00-\x20\x7f]")
_AGAIN = frozenset({408, 425, 429})
"""Statuses that concern only this request, so the next request may succeed."""
_REMEDIES = {
    401: "check the credentials in `headers`",
    403: "these credentials do not give access to this address",
    404: "there is nothing at this address; check it",
    410: "this address is gone for good; remove the source or change its address",
}


@dataclass(frozen=True, repr=False)
class SourceEndpoint:
    """The address and options of the server that an HTTP source reads. The user and query in `url`, and all `headers`,
    are secrets and are never shown.

    A server is considered dead if connecting to it takes longer than `connect_s`, or if it sends nothing for
    `silence_s`. At most `redirects_max` redirects are followed, never from TLS to plain HTTP, and `headers` are not
    sent to a different server.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    connect_s: float = 10.0
    silence_s: float = 60.0
    redirects_max: int = 0
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if not _is_http_address(self.url):
            raise DeclarationError("`url` is not an HTTP URL: it must begin with http:// or https://")
        for name, value in self.headers:
            if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
                raise DeclarationError(
                    f"the header {name!r} cannot be sent: it contains characters that are not allowed in headers"
                )
        if self.connect_s <= 0 or self.silence_s <= 0:
            raise DeclarationError("`connect_s` and `silence_s` must be above zero")

    def __repr__(self) -> str:
        return f"SourceEndpoint({self.address!r})"

    @property
    def address(self) -> str:
        return without_secrets(self.url)


class HttpOptions(TypedDict, total=False):
    """Options common to all HTTP sources; see `SourceEndpoint` and `Backoff`."""

    headers: Mapping[str, str] | None
    connect_s: float
    redirects_max: int
    ca_file: str | None
    backoff_s: float
    backoff_max_s: float


def endpoint_of(url: str, silence_s: float, options: HttpOptions) -> SourceEndpoint:
    """Create the endpoint of an HTTP source. Raises TypeError for an unknown option."""
    for name in options.keys() - HttpOptions.__annotations__.keys():
        raise TypeError(f"an HTTP source got an unexpected keyword argument {name!r}")
    return SourceEndpoint(
        url,
        tuple((options.get("headers") or {}).items()),
        options.get("connect_s", SourceEndpoint.connect_s),
        silence_s,
        options.get("redirects_max", SourceEndpoint.redirects_max),
        options.get("ca_file"),
    )


def backoff_of(options: HttpOptions) -> Backoff:
    return Backoff(options.get("backoff_s", Backoff.first_s), options.get("backoff_max_s", Backoff.most_s))


def _is_http_address(url: str) -> bool:
    parts = address_parts(url)
    return parts is not None and parts.scheme in ("http", "https") and not _NO_URL.search(url)


@dataclass
class ServerDelays:
    """Inputs to the next delay in addition to the back-off: the server's `retry:` (`first_s`) and `Retry-After`
    (`after_s`).

    `fruitless` counts consecutive connections that delivered nothing. A connection that delivered something was a
    success, no matter how short it was.
    """

    first_s: float = 0.0
    after_s: float = 0.0
    fruitless: int = 0


@dataclass(frozen=True)
class Paced(Backoff):
    """A back-off that respects the delay that the server asks for: it waits at least that long, and adds jitter."""

    asked: ServerDelays = field(default_factory=ServerDelays, compare=False)

    def wait_s(self, failures: int, draw: float = 0.0) -> float:
        asked = min(self.asked.first_s, self.most_s)
        steps = Backoff(max(self.first_s, asked), self.most_s, self.jitter)
        return max(asked, self.asked.after_s) + steps.wait_s(min(failures, max(0, self.asked.fruitless - 1)), draw)


class SourceClient:
    """HTTP client for one source's endpoint, one request at a time.

    Opens nothing before the first request. Not thread-safe: its connections belong to the event loop that opened them.
    """

    def __init__(self, endpoint: SourceEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    @asynccontextmanager
    async def get(
        self, headers: Mapping[str, str], query: Mapping[str, str] | None = None
    ) -> AsyncIterator[HttpResponse]:
        """Send a source's GET request and yield the response, if its status is 200, 204 or 304.

        Raises `SourceFailed` for permanent failures, and `ResponseLost` for all others, including failures while the
        response is read.
        """
        if self._transport is None:
            self._transport = await asyncio.to_thread(_transport, self._endpoint)
        with _as_response_lost(self._endpoint):
            response = await self._redirected(self._transport, headers, query or {})
            try:
                _require_success(response)
                yield HttpResponse(response)
            finally:
                await response.aclose()

    async def _redirected(
        self, transport: httpx.AsyncHTTPTransport, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> httpx.Response:
        import httpx

        url = httpx.URL(self._endpoint.url)
        first, url = url, url.copy_merge_params(dict(query)) if query else url
        for _ in range(self._endpoint.redirects_max):
            response = await _send_source_request(
                transport, self._request(url, headers, _url_origin(url) == _url_origin(first))
            )
            if response.status_code not in (301, 302, 303, 307, 308) or "location" not in response.headers:
                return response
            await response.aclose()
            url = _redirect_target(url, response.headers["location"])
        return await _send_source_request(
            transport, self._request(url, headers, _url_origin(url) == _url_origin(first))
        )

    def _request(self, url: httpx.URL, headers: Mapping[str, str], trusted: bool) -> httpx.Request:
        import httpx

        from penstock import __version__

        endpoint = self._endpoint
        given = {"User-Agent": f"penstock/{__version__}", "Accept-Encoding": "identity"} | dict(headers)
        if url.userinfo:
            given["Authorization"] = "Basic " + b64encode(f"{url.username}:{url.password}".encode()).decode()
        sent = {name.lower(): value for name, value in given.items()}
        sent |= {name.lower(): value for name, value in endpoint.headers if trusted}
        waits = {"connect": endpoint.connect_s, "pool": endpoint.connect_s, "write": endpoint.connect_s}
        return httpx.Request(
            "GET",
            url,
            headers=[(name.encode(), value.strip().encode()) for name, value in sent.items()],
            extensions={"timeout": waits | {"read": endpoint.silence_s}},
        )


@dataclass(frozen=True)
class HttpRun:
    """One run of an HTTP source: its source writer, status and client."""

    source_writer: SourceWriter
    status: SourceStatus
    client: SourceClient
    asked: ServerDelays


class HttpSource(ABC):
    """Base class of the HTTP sources: runs one connection after another. Implements `contracts.Source`."""

    endpoint: SourceEndpoint
    backoff: Backoff

    @property
    @abstractmethod
    def kind(self) -> str: ...

    @property
    def address(self) -> str:
        return self.endpoint.address

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Run the HTTP source until cancelled; events put by then are durable before the cancellation propagates.

        Raises `SourceFailed`.
        """
        asked, client = ServerDelays(), SourceClient(self.endpoint)
        connection = self._begin(HttpRun(source_writer, status, client, asked))

        async def next_one() -> str:
            asked.after_s = 0.0
            asked.fruitless += 1
            try:
                return await connection()
            except ResponseLost as lost:
                asked.after_s = lost.after_s
                return lost.reason

        paced = Paced(self.backoff.first_s, self.backoff.most_s, self.backoff.jitter, asked)
        try:
            await keep_connected(next_one, source_writer, status, paced, self.address)
        finally:
            await client.close()

    @abstractmethod
    def _begin(self, run: HttpRun) -> Callable[[], Awaitable[str]]:
        """Return the function that runs one connection of the source. It returns why the connection ended, or raises
        `ResponseLost`.

        The function sets `run.asked.fruitless` to 0 once the connection has delivered something.
        """


def _transport(endpoint: SourceEndpoint) -> httpx.AsyncHTTPTransport:
    """Create the HTTP transport of a source.

    Blocks for tens of milliseconds to import httpx and load certificates, so call it in a thread.
    """
    try:
        import httpx
    except ImportError:
        raise SourceFailed("HTTP sources need httpx: pip install httpx") from None
    try:
        trusted = ssl.create_default_context(cafile=endpoint.ca_file) if endpoint.ca_file else True
        httpx.URL(endpoint.url)
    except (OSError, ValueError, httpx.InvalidURL):
        raise SourceFailed(
            f"{endpoint.address}: either the address is invalid or the certificate file cannot be read"
        ) from None
    return httpx.AsyncHTTPTransport(verify=trusted)


async def _send_source_request(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    """Send one request of a source and return the response with the request attached."""
    response = await transport.handle_async_request(request)
    response.request = request
    return response


def _url_origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _redirect_target(url: httpx.URL, location: str) -> httpx.URL:
    import httpx

    try:
        target = url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise SourceFailed("the server redirects to an invalid address") from None
    if target.scheme not in ("http", "https") or (url.scheme == "https" and target.scheme == "http"):
        raise SourceFailed("the server redirects to an address without TLS; such redirects are not followed")
    return target


def _require_success(response: httpx.Response) -> None:
    code = response.status_code
    if code in (200, 204, 304):
        return
    answer = f"the server returned {code} {_status_phrase(code)}".rstrip()
    if code in _AGAIN or code >= 500:
        asked_s = retry_after_s(response.headers.get("retry-after"), datetime.now(UTC)) or 0.0
        raise ResponseLost(answer, min(asked_s, RETRY_AFTER_S_MAX))
    if 300 <= code < 400:
        raise SourceFailed(
            f"{answer} to {_redirect_location(response)}: use that address, or allow redirects (`redirects_max`)"
        )
    raise SourceFailed(
        f"{answer}: {_REMEDIES.get(code, 'it does not accept the request; check the address and options')}"
    )


def _redirect_location(response: httpx.Response) -> str:
    """Return the full redirect target of a source's request, without secrets, even if the server sent only a path."""
    try:
        return without_secrets(urljoin(str(response.url), response.headers.get("location", "")))
    except ValueError:
        return "an invalid address"


def _status_phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return ""


@contextmanager
def _as_response_lost(endpoint: SourceEndpoint) -> Iterator[None]:
    """Convert connection errors in this context to `ResponseLost`, with a message that contains no secrets."""
    import httpx

    try:
        yield
    except (httpx.ConnectTimeout, httpx.PoolTimeout):
        raise ResponseLost(f"could not connect within {endpoint.connect_s:g} s") from None
    except httpx.ReadTimeout:
        raise ResponseLost(f"the server sent nothing for {endpoint.silence_s:g} s") from None
    except httpx.ConnectError as error:
        raise ResponseLost(f"could not connect: {_connection_cause(error)}") from None
    except httpx.RemoteProtocolError:
        raise ResponseLost("the connection ended before the response did, or the response is not HTTP") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        raise ResponseLost(f"the connection broke ({type(error).__name__})") from None


def _connection_cause(error: BaseException | None) -> str:
    """Return the reason for a failed connection, as given by the system or TLS. It contains no part of the address
    except, possibly, a host name."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate is not accepted: {error.verify_message}"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        error = error.__cause__ or error.__context__
    return "no server responded"
