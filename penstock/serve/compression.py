"""Answers compressed with gzip, for clients that take it.

Only whole answers of a known length and type are: what is live leaves event by event, and must not wait in a buffer for
more to come. Compression tells something about an answer by its length. That matters where a page of another site can
make a browser ask in the name of its user, with a text that comes back among what the user may read (the BREACH
attack). A key in `Authorization` cannot be used so, but a client certificate can: who is known by that alone gets plain
answers.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock.access import caller_of
from penstock.encodings import accepts_gzip

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
TYPES = (b"application/json", b"text/plain", b"application/openmetrics-text")
LEVEL = 1
"""The quickest: rows of JSON shrink to about a fifth, and higher levels take several times as long for little more."""
IN_THREAD_BYTES = 16 * 1024
"""What takes longer than a switch to a thread and back, some 0.2 ms, must not hold up the event loop."""
_VARY = (b"vary", b"Accept-Encoding")


def compressed(application: Asgi, bytes_min: int) -> Asgi:
    """The application, with answers of `bytes_min` and more compressed where the client takes it; 0: never."""
    if not bytes_min:
        return application

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            send = _Compressing(send, bytes_min, _is_wanted(scope))
        await application(scope, receive, send)

    return answer


def _is_wanted(scope: Message) -> bool:
    taken = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"), "")
    return scope["method"] != "HEAD" and accepts_gzip(taken) and not caller_of(scope).name.startswith("certificate:")


class _Compressing:
    """The `send` of one answer."""

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
        found = {name.lower(): value for name, value in headers}
        kind, length = found.get(b"content-type", b""), found.get(b"content-length", b"")
        if b"content-encoding" in found or not kind.startswith(TYPES) or not length.isdigit():
            if message["status"] != 304:
                return message
        elif self._wanted and int(length) >= self._bytes_min:
            self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
            headers = [each for each in headers if each[0].lower() != b"content-length"]
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
