"""CORS: only pages from origins that the operator has listed can use the API.

A browser lets a page read a response from another site only if the response allows it. Before it sends a request that a
plain form could not send, it asks for permission with an OPTIONS request without credentials. The response always names
the one origin that asked, never `*`, and never allows cookies or certificates: a page must send its own key.
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
    """Return the origin of the page that sent a request, or None.

    Programs do not send an origin, and browsers do not send it with every read.
    """
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)


def is_preflight(scope: Scope) -> bool:
    """Return whether a request is a CORS preflight."""
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    return any(name == b"access-control-request-method" for name, _ in scope["headers"])


def preflight() -> Response:
    """Return the preflight response for an allowed page. It does not reveal which resources exist or who is allowed to
    read them."""
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
    """Wrap `send` to add CORS headers that allow this origin, or no origin, to read the responses.

    `Vary` tells caches that the response depends on the origin.
    """
    extra = [(b"vary", b"Origin")]
    if origin is not None:
        extra += [(b"access-control-allow-origin", origin.encode("latin-1"))]
        extra += [(b"access-control-expose-headers", _EXPOSED)]

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending
