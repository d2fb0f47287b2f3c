"""Who may come in: other web pages may not, and where keys are asked for, nobody may without one.

Without keys the gateway listens on loopback only, so whoever runs on the machine may use it; a page in the user's
browser that comes from elsewhere may not. Two checks see to that. The `Host` of a request must name loopback: a page
whose own name was made to point here (DNS rebinding) sends its own. And a request of a page must come from the gateway
itself, or from an origin that the operator has listed. Browsers tell that by `Origin` and `Sec-Fetch-Site`. It holds
for reads too: the page could not see an answer, but it could measure how long a `wait` took. With keys the first check
is not needed, as that page has none; the second is kept, since a browser shows its certificate to whoever makes it ask.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.websockets import WebSocket

from penstock import dashboard
from penstock.access import ANYONE, CALLER, CERTIFIED, NOT_CERTIFIED, Caller, Certified, Gate, Grants
from penstock.errors import Forbidden, NotFound, PenstockError, Unauthorized
from penstock.runtime.arriving import Body, CallerWatch
from penstock.runtime.origins import Receive, Scope, Send, is_preflight, marked, origin_of, preflight
from penstock.serve.problems import problem_response

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
HEALTH = "/v1/health"
DASHBOARD, ASSETS = frozenset(("/", *dashboard.CLIENT_PATHS)), "/assets/"
LIVE_SUFFIX = "/live"
API, METRICS = "/v1", "/metrics"
OWN_SITES = ("same-origin", "none")
"""What a browser says in `Sec-Fetch-Site` of our own pages, and of what a person typed. A `same-site` page is another
port or subdomain, which may be anyone's."""
POLICY = 1008
FAREWELL_S = 2.0
NOBODY = Caller("whoever has no key", Grants())
_TELLING = (b"host", b"origin", b"sec-fetch-site")
_OVER = "the key that opened this connection is revoked or expired"


def guarded(application: Asgi, gate: Gate, origins: frozenset[str] = frozenset()) -> Asgi:
    """The application, behind the checks, with the caller in the scope of each request. A connection that stays open
    is closed when its caller may do nothing any more, and a request ends that is still sending its body. Pages of
    `origins` may use it."""
    watch = CallerWatch()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        origin = origin_of(scope) if origins else None
        listed = origin in origins
        if origins and scope["type"] == "http":
            send = marked(send, origin if listed else None)
        try:
            _require_plain(scope["path"])
            require_own_page(scope, is_open=gate.is_open, origins=origins)
            if listed and is_preflight(scope):
                await preflight()(scope, receive, send)
                return
            caller = scope[CALLER] = _caller(scope, gate)
            if _is_live(scope):
                await _while_valid(application, caller, scope, receive, send)
            else:
                await application(scope, Body(receive, caller, watch), send)
        except PenstockError as error:
            await _refuse(error, scope, receive, send, close=not gate.trusts(_certified(scope)))

    return answer


def _caller(scope: Scope, gate: Gate) -> Caller:
    """Who asks. The dashboard's files, and whether the gateway is ready, are for everyone."""
    path: str = scope["path"]
    if scope["type"] == "http" and (path in DASHBOARD or path.startswith(ASSETS)):
        return ANYONE
    try:
        caller = gate.caller(scope["headers"], _certified(scope))
    except Unauthorized:
        if path == HEALTH:
            return NOBODY
        raise
    if scope["type"] == "websocket" or scope["method"] != "POST":
        caller.require_room()
        caller.spend(1)
    return caller


def _certified(scope: Scope) -> Certified:
    found: Certified = scope["state"].get(CERTIFIED, NOT_CERTIFIED)
    return found


def _require_plain(path: str) -> None:
    """Raise `NotFound` for a path with a line break. Routes would take one at the end for none, and so would answer
    what was not asked for here."""
    if "\n" in path:
        raise NotFound(f"there is no {path[:80]!r}")


def _is_live(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["type"] == "websocket" or path.endswith(LIVE_SUFFIX)


async def _while_valid(application: Asgi, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
    """Let a connection go on for as long as its caller is one, and end it then."""
    begun = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal begun
        begun = True
        await send(message)

    task = asyncio.ensure_future(application(scope, receive, sending))
    ended = asyncio.ensure_future(caller.ended())
    try:
        await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
    finally:
        over = not task.done()
        for each in (task, ended):
            each.cancel()
        await asyncio.wait([task, ended])
    if not over:
        task.result()
    elif not begun:
        raise Unauthorized(_OVER)
    else:
        await _part(scope, send)


async def _part(scope: Scope, send: Send) -> None:
    """End a connection that is open. One whose client does not read, or has just left, is left to its end."""
    last: MutableMapping[str, Any] = {"type": "http.response.body", "body": b"", "more_body": False}
    if scope["type"] == "websocket":
        last = {"type": "websocket.close", "code": POLICY, "reason": _OVER}
    with suppress(TimeoutError, OSError, RuntimeError):
        async with asyncio.timeout(FAREWELL_S):
            await send(last)


async def _refuse(error: PenstockError, scope: Scope, receive: Receive, send: Send, *, close: bool) -> None:
    response = problem_response(error)
    if close:
        response.headers["connection"] = "close"
    if scope["type"] == "http":
        await response(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).send_denial_response(response)


def require_own_page(scope: Scope, *, is_open: bool, origins: frozenset[str] = frozenset()) -> None:
    """Raise `Forbidden` for a request of a page of another site, unless it is one of `origins`. The files of the
    dashboard are for every page, so that links to it work."""
    told = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in _TELLING]
    found = dict(told)
    if len(found) < len(told):
        raise Forbidden(
            "Host, Origin and Sec-Fetch-Site may each be there once: which of two counts is not for us to say"
        )
    host, origin, site = found.get(b"host", ""), found.get(b"origin"), found.get(b"sec-fetch-site", "none")
    if is_open and not names_loopback(host):
        raise Forbidden(f"the Host {host[:80]!r} is not an address of this gateway; use 127.0.0.1 or localhost")
    if not _is_api(scope["path"]) or origin in origins:
        return
    if origin is not None and not same_site(origin, host, secure=scope.get("scheme") in ("https", "wss")):
        raise Forbidden(f"a page of {origin[:80]!r} may not use this API; the access file lists the pages that may")
    if site not in OWN_SITES:
        raise Forbidden(f"a page of another site ({site[:80]!r}) may not use this API")


def _is_api(path: str) -> bool:
    return path in (API, METRICS) or path.startswith(f"{API}/")


def names_loopback(host: str) -> bool:
    """Whether a Host header names this machine from the inside. A request of HTTP/1.0 may have none."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("", "localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_site(origin: str, host: str, *, secure: bool) -> bool:
    """Whether an Origin is the gateway's own. Without TLS here, a proxy may have it, so `https` is ours too."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in (("https",) if secure else ("http", "https")) and parts.netloc.lower() == host.lower()
