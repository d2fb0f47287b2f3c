"""Access checks: requests from other sites' pages are refused, and so are requests without a key if keys are required.

Without keys, the gateway listens only on loopback. Everyone on the machine is allowed to use it, but another site's
page in the user's browser is not. Two checks ensure this. First, the `Host` of a request must name loopback: a page
whose host name was made to point to this machine (DNS rebinding) sends its own host name. Second, a page's request must
come from the gateway itself or from an origin that the operator has listed, according to the browser's `Origin` and
`Sec-Fetch-Site` headers. The checks also apply to reads: the page could not see a response, but it could measure how
long a `wait` took. If keys are required, the first check is not needed, because the page has no key. The second check
is kept, because a browser sends its client certificate with requests from any page. For the same reason, a request from
a page of a listed origin is never authenticated by the certificate of its connection: the page must send a key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.websockets import WebSocket

from penstock.core.access import ANYONE, CALLER, CERTIFIED, NOT_CERTIFIED, Caller, Certified, Gate, Grants
from penstock.core.access.gate import NOT_TRUSTED
from penstock.core.errors import Forbidden, NotFound, PenstockError, Unauthorized
from penstock.core.tasks import first_of
from penstock.http.arriving import Body, CallerWatch, read_while_valid
from penstock.http.origins import Receive, Scope, Send, is_preflight, marked, origin_of, preflight
from penstock.http.problems import problem_response

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
HEALTH = "/v1/health"
LIVE_SUFFIX = "/live"
API, METRICS = "/v1", "/metrics"
OWN_SITES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for our own pages and for addresses that a user has typed.

`same-site` is not listed, because such a page is on another port or subdomain, which could belong to anyone.
"""
POLICY = 1008
FAREWELL_S = 2.0
READS = ("GET", "HEAD")
NOBODY = Caller("a caller without a key", Grants())
_host_parts = re.compile(
    r"(?:(localhost)|\[([0-9a-f:.]+)\]|([0-9.]+))(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE
).fullmatch
"""Matches a Host that can name loopback. Its groups are the name, the IPv6 address and the IPv4 address."""
_TELLING = (b"host", b"origin", b"sec-fetch-site")
_OVER = "the key that opened this connection has been revoked or has expired"


def _no_public_path(path: str) -> bool:
    return False


def guarded(
    application: Asgi,
    gate: Gate,
    origins: frozenset[str] = frozenset(),
    is_public: Callable[[str], bool] = _no_public_path,
) -> Asgi:
    """Wrap an application with the access checks, and store the caller in each request's scope.

    A live connection is closed when its caller's key is revoked or expires. A request whose body is still arriving then
    gets 401, and so does a read whose response has not begun. Pages from `origins` can use the API. Paths for which
    `is_public` returns True can be read without a key.
    """
    watch = CallerWatch()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        origin = origin_of(scope) if origins else None
        listed = origin in origins
        if origins and scope["type"] == "http":
            send = marked(send, origin if listed else None)
        try:
            _reduce_target(scope)
            _require_plain_path(scope["path"])
            require_own_page(scope, is_open=gate.is_open, origins=origins)
            if listed and is_preflight(scope):
                await preflight()(scope, receive, send)
                return
            caller = scope[CALLER] = _request_caller(scope, gate, is_public)
            if _is_live_request(scope):
                await _while_valid(application, caller, gate, scope, receive, send)
            elif scope["method"] in READS:
                await read_while_valid(application, watch, caller, scope, receive, send)
            else:
                await application(scope, Body(receive, caller, watch), send)
        except PenstockError as error:
            await _refuse_request(error, scope, receive, send, close=not gate.trusts(_certified_client(scope)))

    return answer


def _request_caller(scope: Scope, gate: Gate, is_public: Callable[[str], bool]) -> Caller:
    """Return the caller of a request. Everyone can read public files and the gateway's health."""
    path: str = scope["path"]
    if scope["type"] == "http" and is_public(path):
        return ANYONE
    try:
        by_certificate = not is_foreign_page(scope)
        caller = gate.caller(scope["headers"], _certified_client(scope), by_certificate=by_certificate)
    except Unauthorized:
        if path == HEALTH:
            return NOBODY
        raise
    if scope["type"] == "websocket" or scope["method"] != "POST":
        caller.require_room()
        caller.spend(1)
    return caller


def _certified_client(scope: Scope) -> Certified:
    certified: Certified = scope["state"].get(CERTIFIED, NOT_CERTIFIED)
    return certified


def _reduce_target(scope: Scope) -> None:
    """Replace the absolute target of a WebSocket by its path, as uvicorn does only for HTTP. The edge has compared its
    host with the `Host` header. Without this, the checks and the routes would not recognize the path."""
    if scope["type"] == "websocket" and not scope["path"].startswith("/"):
        _, separator, rest = scope["raw_path"].partition(b"://")
        if separator:
            path = scope["raw_path"] = b"/" + rest.partition(b"/")[2]
            scope["path"] = unquote(path.decode("ascii"))


def _require_plain_path(path: str) -> None:
    """Raise `NotFound` for a path with a line break. Routes ignore a line break at the end of a path, so the request
    would match the route of a different path."""
    if "\n" in path:
        raise NotFound(f"there is no {path[:80]!r}")


def _is_live_request(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["type"] == "websocket" or path.endswith(LIVE_SUFFIX)


async def _while_valid(
    application: Asgi, caller: Caller, gate: Gate, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run a live connection until its caller's key is revoked or expires or a trusted CA is removed, and then close
    it."""
    begun = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal begun
        begun = True
        await send(message)

    task = asyncio.ensure_future(application(scope, receive, sending))
    ended = asyncio.ensure_future(caller.ended())
    distrusted = asyncio.ensure_future(gate.distrusted(_certified_client(scope)))
    done = await first_of(task, ended, distrusted)
    reason = NOT_TRUSTED if distrusted in done else _OVER
    if task in done:
        task.result()
    elif not begun:
        raise Unauthorized(reason)
    else:
        await _close_live(reason, scope, send)


async def _close_live(reason: str, scope: Scope, send: Send) -> None:
    """Close an open live connection. If the client does not read, or has just disconnected, the connection is left to
    end by itself."""
    last: MutableMapping[str, Any] = {"type": "http.response.body", "body": b"", "more_body": False}
    if scope["type"] == "websocket":
        last = {"type": "websocket.close", "code": POLICY, "reason": reason}
    with suppress(TimeoutError, OSError, RuntimeError):
        async with asyncio.timeout(FAREWELL_S):
            await send(last)


async def _refuse_request(error: PenstockError, scope: Scope, receive: Receive, send: Send, *, close: bool) -> None:
    response = problem_response(error)
    if close:
        response.headers["connection"] = "close"
    if scope["type"] == "http":
        await response(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).send_denial_response(response)


def require_own_page(scope: Scope, *, is_open: bool, origins: frozenset[str] = frozenset()) -> None:
    """Raise `Forbidden` for a request from another site's page, unless the page's origin is in `origins`.

    Any page can request the dashboard's files, so that links to the dashboard work.
    """
    host, origin, site = _page_headers(scope)
    if is_open and not names_loopback(host):
        raise Forbidden(f"the Host {host[:80]!r} is not an address of this gateway; use 127.0.0.1 or localhost")
    if not _is_api_path(scope["path"]) or origin in origins:
        return
    if origin is not None and not _is_own_origin(scope, origin, host):
        raise Forbidden(f"pages from {origin[:80]!r} cannot use this API; the access file lists the origins that can")
    if site not in OWN_SITES:
        raise Forbidden(f"pages from another site ({site[:80]!r}) cannot use this API")


def is_foreign_page(scope: Scope) -> bool:
    """Return whether a request comes from a page of another origin, listed or not. Raises `Forbidden` if one of its
    headers is repeated."""
    host, origin, site = _page_headers(scope)
    return site not in OWN_SITES or (origin is not None and not _is_own_origin(scope, origin, host))


def _page_headers(scope: Scope) -> tuple[str, str | None, str]:
    """Return a request's `Host`, its `Origin` and its `Sec-Fetch-Site`. Raises `Forbidden` if one is repeated."""
    headers = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in _TELLING]
    values = dict(headers)
    if len(values) < len(headers):
        raise Forbidden("Host, Origin and Sec-Fetch-Site can each be sent only once")
    return values.get(b"host", ""), values.get(b"origin"), values.get(b"sec-fetch-site", "none")


def _is_own_origin(scope: Scope, origin: str, host: str) -> bool:
    return same_site(origin, host, secure=scope.get("scheme") in ("https", "wss"))


def _is_api_path(path: str) -> bool:
    return path in (API, METRICS) or path.startswith(f"{API}/")


def names_loopback(host: str) -> bool:
    """Return whether a Host header names loopback. An empty one is accepted, because HTTP/1.0 requests can omit the
    header.

    Not parsed by `urlsplit`, which ignores some of the characters after a name, as in `[::1].example`.
    """
    if not host:
        return True
    parts = _host_parts(host)
    if parts is None:
        return False
    name, v6, v4 = parts.groups()
    try:
        return name is not None or (IPv6Address(v6) if v6 else IPv4Address(v4)).is_loopback
    except ValueError:
        return False


def same_site(origin: str, host: str, *, secure: bool) -> bool:
    """Return whether an Origin is the gateway's own.

    If the gateway does not use TLS, a proxy might, so `https` is also accepted.
    """
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in (("https",) if secure else ("http", "https")) and parts.netloc.lower() == host.lower()
