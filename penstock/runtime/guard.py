"""Keeping other web pages out.

The gateway listens on loopback without authentication, so whoever runs on the machine may use it; a page in the
user's browser that comes from elsewhere may not. Two checks see to that. The `Host` of a request must name loopback:
a page whose own name was made to point here (DNS rebinding) sends its own. And an `Origin`, which browsers send with
every POST of a page, must be that of the gateway: a form or script of another site sends that site's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from penstock.collect.publish import SUFFIX as PUBLISH_SUFFIX
from penstock.serve.problems import forbidden

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


def guarded(application: Asgi) -> Asgi:
    """The application, behind both checks. The Origin of a WebSocket that reads is checked by its endpoint, which may
    allow more."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        reason = refusal(scope)
        if reason is None:
            await application(scope, receive, send)
        elif scope["type"] == "http":
            await forbidden(reason)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": reason})

    return answer


def refusal(scope: Scope) -> str | None:
    """Why a request is refused; None if it is not."""
    found = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
    host, origin = found.get(b"host", ""), found.get(b"origin")
    if not names_loopback(host):
        return f"the Host {host[:80]!r} is not an address of this gateway; use 127.0.0.1 or localhost"
    sends = scope["type"] == "http" and scope["method"] == "POST"
    publishes = scope["type"] == "websocket" and scope["path"].endswith(PUBLISH_SUFFIX)
    if (sends or publishes) and origin is not None and not same_host(origin, host):
        return f"a page of {origin[:80]!r} may not send events here"
    return None


def names_loopback(host: str) -> bool:
    """Whether a Host header names this machine from the inside. A request of HTTP/1.0 may have none."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("", "localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_host(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
