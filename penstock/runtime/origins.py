"""Web pages of other sites: those that the operator has listed may use the API, and no others.

A browser lets a page read an answer of another site if that site says so in the answer (CORS), and asks beforehand, by
an OPTIONS request without credentials, whether a page may send what no plain form could. The answer always names the
one origin that asked, never `*`, and never allows cookies or certificates: a page brings its own key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PREFLIGHT_S = 600
_METHODS = "GET, HEAD, POST"
_HEADERS = "authorization, content-type, idempotency-key, if-none-match, last-event-id"
_EXPOSED = b"ETag, Retry-After"


def origin_of(scope: Scope) -> str | None:
    """The site of the page that a request comes from. Programs send none, and browsers not with every read."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a page of the origin may do."""
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    return any(name == b"access-control-request-method" for name, _ in scope["headers"])


def preflight() -> Response:
    """The answer to a page that may use the API. It says nothing of what is there, nor of who may have it."""
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": str(PREFLIGHT_S),
            "Cache-Control": "no-store",
        },
    )


def marked(send: Send, origin: str | None) -> Send:
    """What sends answers with a word to the browser: that this origin may read them, or none at all. Caches are told
    that it depends on who asks."""
    extra = [(b"vary", b"Origin")]
    if origin is not None:
        extra += [(b"access-control-allow-origin", origin.encode("latin-1"))]
        extra += [(b"access-control-expose-headers", _EXPOSED)]

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending
