"""Gzip compression of responses, for clients that accept it.

Only complete responses of known length and type are compressed: live responses are sent event by event, and must not
wait in a buffer. The length of a compressed response reveals something about its content. This matters if another
site's page can make a browser send requests on behalf of the user, and the response echoes part of the request next to
secrets (the BREACH attack). A key in `Authorization` cannot be abused in this way, but a client certificate can.
Callers authenticated only by a certificate therefore get uncompressed responses.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock.core.access import caller_of
from penstock.http.encodings import accepts_gzip

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
TYPES = (b"application/json", b"text/plain", b"application/openmetrics-text")
LEVEL = 1
"""The fastest level. JSON rows shrink to about a fifth of their size; higher levels take several times as long and save
little additional space."""
IN_THREAD_BYTES = 16 * 1024
"""Larger responses are compressed in a thread, because compressing them takes longer than switching to a thread and
back, which takes about 0.2 ms."""
_VARY = (b"vary", b"Accept-Encoding")


def compressed(application: Asgi, bytes_min: int) -> Asgi:
    """Wrap an application to compress responses of at least `bytes_min` bytes if the client accepts gzip; 0 disables
    it."""
    if not bytes_min:
        return application

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            send = _Compressing(send, bytes_min, _is_gzip_wanted(scope))
        await application(scope, receive, send)

    return answer


def _is_gzip_wanted(scope: Message) -> bool:
    taken = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"), "")
    return scope["method"] != "HEAD" and accepts_gzip(taken) and not caller_of(scope).name.startswith("certificate:")


class _Compressing:
    """The `send` callable of one compressed response."""

    def __init__(self, send: Send, bytes_min: int, wanted: bool) -> None:
        self._send = send
        self._bytes_min = bytes_min
        self._wanted = wanted
        self._packer: Any = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = self._begin(message)
        elif self._packer is not None:
            message = await self._packed(message)
        await self._send(message)

    def _begin(self, message: Message) -> Message:
        headers = list(message.get("headers", ()))
        values = {name.lower(): value for name, value in headers}
        kind, length = values.get(b"content-type", b""), values.get(b"content-length", b"")
        if b"content-encoding" in values or not kind.startswith(TYPES) or not length.isdigit():
            if message["status"] != 304:
                return message
        elif self._wanted and int(length) >= self._bytes_min:
            self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
            headers = [header for header in headers if header[0].lower() != b"content-length"]
            headers.append((b"content-encoding", b"gzip"))
        return {**message, "headers": [*headers, _VARY]}

    async def _packed(self, message: Message) -> Message:
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) > IN_THREAD_BYTES:
            packed = await asyncio.to_thread(self._pack, body, more)
        else:
            packed = self._pack(body, more)
        return {**message, "body": packed}

    def _pack(self, body: bytes, more: bool) -> bytes:
        packed: bytes = self._packer.compress(body)
        return packed if more else packed + self._packer.flush()
