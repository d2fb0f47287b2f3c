"""What the sources that pull over HTTP share: how a server is asked, what its answer means, how long to wait after it.

The transport of httpx is used, and not its client: that one logs whole addresses, with what is secret in them. For the
same reason no text of an httpx error goes on to people; each kind of error has a sentence of ours.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urljoin

from penstock.collect.sources.http.answer import Answer, Lost, retry_after_s
from penstock.collect.sources.reconnect import Backoff, address_parts, keep_connected, without_secrets
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed

if TYPE_CHECKING:
    import httpx

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NO_URL = re.compile(r"[\x00-\x20\x7f]")
_AGAIN = frozenset({408, 425, 429})
"""The refusals of this request, at this time, which are no word about the next."""
_REMEDIES = {
    401: "check the credentials in `headers`",
    403: "these credentials may not read it",
    404: "there is nothing at this address; check it",
    410: "it is gone for good; remove the source or give it a new address",
}


@dataclass(frozen=True, repr=False)
class Endpoint:
    """Where to ask and how. The user and the query of `url`, and all `headers`, are taken for secrets: never shown.

    A server that takes longer than `connect_s` to be reached, or sends no byte for `silence_s`, is taken for dead. At
    most `redirects_max` redirects are followed: without `headers` to another server, and never from TLS to none.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    connect_s: float = 10.0
    silence_s: float = 60.0
    redirects_max: int = 0
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise DeclarationError("this is not the address of an HTTP server; it begins with http:// or https://")
        for name, value in self.headers:
            if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
                raise DeclarationError(f"the header {name!r} cannot be sent: it has characters that no header may have")
        if self.connect_s <= 0 or self.silence_s <= 0:
            raise DeclarationError("`connect_s` and `silence_s` are times in seconds, above zero")

    def __repr__(self) -> str:
        return f"Endpoint({self.address!r})"

    @property
    def address(self) -> str:
        return without_secrets(self.url)


class HttpOptions(TypedDict, total=False):
    """What all sources over HTTP take alike; `Endpoint` and `Backoff` say what each means."""

    headers: Mapping[str, str] | None
    connect_s: float
    redirects_max: int
    ca_file: str | None
    backoff_s: float
    backoff_max_s: float


def endpoint_of(url: str, silence_s: float, options: HttpOptions) -> Endpoint:
    """Raises TypeError for an option that no source over HTTP has."""
    for name in options.keys() - HttpOptions.__annotations__.keys():
        raise TypeError(f"a source over HTTP got an unexpected keyword argument {name!r}")
    return Endpoint(
        url,
        tuple((options.get("headers") or {}).items()),
        options.get("connect_s", Endpoint.connect_s),
        silence_s,
        options.get("redirects_max", Endpoint.redirects_max),
        options.get("ca_file"),
    )


def backoff_of(options: HttpOptions) -> Backoff:
    return Backoff(options.get("backoff_s", Backoff.first_s), options.get("backoff_max_s", Backoff.most_s))


def _is_address(url: str) -> bool:
    parts = address_parts(url)
    return parts is not None and parts.scheme in ("http", "https") and not _NO_URL.search(url)


@dataclass
class Asked:
    """What decides the next wait beside the back-off: the server's `retry:` (`first_s`), its `Retry-After` (`after_s`),
    and how many connections in a row brought nothing. One that brought something is a good one, however short."""

    first_s: float = 0.0
    after_s: float = 0.0
    fruitless: int = 0


@dataclass(frozen=True)
class Paced(Backoff):
    """A back-off that heeds the server: what it asked for is waited in full, and the jitter comes on top."""

    asked: Asked = field(default_factory=Asked, compare=False)

    def wait_s(self, attempt: int, draw: float) -> float:
        asked = min(self.asked.first_s, self.most_s)
        steps = Backoff(max(self.first_s, asked), self.most_s)
        return max(asked, self.asked.after_s) + steps.wait_s(min(attempt, max(0, self.asked.fruitless - 1)), draw)


async def pull(
    endpoint: Endpoint,
    backoff: Backoff,
    intake: Intake,
    status: SourceStatus,
    begin: Callable[[Client, Asked], Callable[[], Awaitable[str]]],
) -> None:
    """Run one connection after the other until cancelled. `begin` gives what one is: it returns, or raises `Lost` with,
    why it ended. It sets `asked.fruitless` to 0 once it has brought something."""
    asked, client = Asked(), Client(endpoint)
    connection = begin(client, asked)

    async def next_one() -> str:
        asked.after_s = 0.0
        asked.fruitless += 1
        try:
            return await connection()
        except Lost as lost:
            asked.after_s = lost.after_s
            return lost.reason

    paced = Paced(backoff.first_s, backoff.most_s, backoff.healthy_s, asked)
    try:
        await keep_connected(next_one, intake, status, paced, endpoint.address)
    finally:
        await client.close()


class Client:
    """Asks one endpoint, one request at a time. Belongs to one event loop; opens nothing before the first request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    @asynccontextmanager
    async def get(self, headers: Mapping[str, str], query: Mapping[str, str] | None = None) -> AsyncIterator[Answer]:
        """The answer to a GET, if it is one of 200, 204 and 304. Raises `SourceFailed` for those that stay as they
        are, `Lost` for the rest, and for whatever happens to the connection while the answer is read."""
        if self._transport is None:
            self._transport = await asyncio.to_thread(_transport, self._endpoint)
        with _sentences(self._endpoint):
            response = await self._redirected(self._transport, headers, query or {})
            try:
                _require_success(response)
                yield Answer(response)
            finally:
                await response.aclose()

    async def _redirected(
        self, transport: httpx.AsyncHTTPTransport, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> httpx.Response:
        import httpx

        url = httpx.URL(self._endpoint.url)
        first, url = url, url.copy_merge_params(dict(query)) if query else url
        for _ in range(self._endpoint.redirects_max):
            response = await _answer(transport, self._request(url, headers, _origin(url) == _origin(first)))
            if response.status_code not in (301, 302, 303, 307, 308) or "location" not in response.headers:
                return response
            await response.aclose()
            url = _target(url, response.headers["location"])
        return await _answer(transport, self._request(url, headers, _origin(url) == _origin(first)))

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


def _transport(endpoint: Endpoint) -> httpx.AsyncHTTPTransport:
    """Takes some ten milliseconds, for the import and the certificates, so it is called in a thread."""
    try:
        import httpx
    except ImportError:
        raise SourceFailed("sources over HTTP need httpx: pip install httpx") from None
    try:
        trusted = ssl.create_default_context(cafile=endpoint.ca_file) if endpoint.ca_file else True
        httpx.URL(endpoint.url)
    except (OSError, ValueError, httpx.InvalidURL):
        raise SourceFailed(f"{endpoint.address}: the address or the file of certificates cannot be read") from None
    return httpx.AsyncHTTPTransport(verify=trusted)


async def _answer(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    """The answer to one request, which it knows."""
    response = await transport.handle_async_request(request)
    response.request = request
    return response


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _target(url: httpx.URL, location: str) -> httpx.URL:
    import httpx

    try:
        target = url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise SourceFailed("the server redirects to what is no address") from None
    if target.scheme not in ("http", "https") or (url.scheme == "https" and target.scheme == "http"):
        raise SourceFailed("the server redirects to a connection without TLS, which is not followed")
    return target


def _require_success(response: httpx.Response) -> None:
    code = response.status_code
    if code in (200, 204, 304):
        return
    answer = f"the server answers {code} {_phrase(code)}".rstrip()
    if code in _AGAIN or code >= 500:
        raise Lost(answer, retry_after_s(response.headers.get("retry-after"), datetime.now(UTC)))
    if 300 <= code < 400:
        raise SourceFailed(
            f"{answer} to {_place(response)}: give that address, or let redirects be followed (`redirects_max`)"
        )
    raise SourceFailed(
        f"{answer}: {_REMEDIES.get(code, 'the request is not what it expects; check address and options')}"
    )


def _place(response: httpx.Response) -> str:
    """Where a redirect leads, whole even if the server names a path only, and without secrets."""
    try:
        return without_secrets(urljoin(str(response.url), response.headers.get("location", "")))
    except ValueError:
        return "what is no address"


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return ""


@contextmanager
def _sentences(endpoint: Endpoint) -> Iterator[None]:
    """In this context, what happens to a connection becomes `Lost`, with a sentence in which there is no secret."""
    import httpx

    try:
        yield
    except (httpx.ConnectTimeout, httpx.PoolTimeout):
        raise Lost(f"could not connect within {endpoint.connect_s:g} s") from None
    except httpx.ReadTimeout:
        raise Lost(f"the server sent nothing for {endpoint.silence_s:g} s") from None
    except httpx.ConnectError as error:
        raise Lost(f"could not connect: {_cause(error)}") from None
    except httpx.RemoteProtocolError:
        raise Lost("the connection ended in the middle of the answer, or what came is not HTTP") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        raise Lost(f"the connection broke ({type(error).__name__})") from None


def _cause(error: BaseException | None) -> str:
    """What the system or TLS says of a failed connection. Their words hold a host's name at most."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate is not accepted: {error.verify_message}"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        error = error.__cause__ or error.__context__
    return "there is no server that answers"
