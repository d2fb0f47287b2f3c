"""Reads small request bodies that do not contain events, such as queries and webhooks."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from penstock.core.errors import MalformedBody, TooLarge, TooSlow


async def read_body(request: Request, *, bytes_max: int, limit_s: float) -> bytes:
    """Read the whole small body of a request.

    Raises `TooLarge`, `TooSlow` after `limit_s`, or `MalformedBody` if the client disconnects.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise TooLarge(f"the body is too large; the limit here is {bytes_max} bytes")
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {limit_s:g} s") from None
    except ClientDisconnect:
        raise MalformedBody("the body is incomplete") from None
    return bytes(body)
