"""Reads the small bodies of requests that are not events: of queries and webhooks."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from penstock.errors import MalformedBody, TooLarge, TooSlow


async def read_body(request: Request, *, bytes_max: int, limit_s: float) -> bytes:
    """The whole body. Raises `TooLarge`, `TooSlow` if it takes longer than `limit_s`, or `MalformedBody` if the client
    leaves before its end."""
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise TooLarge(f"the body may have {bytes_max} bytes here")
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {limit_s:g} s") from None
    except ClientDisconnect:
        raise MalformedBody("the body is not whole") from None
    return bytes(body)
