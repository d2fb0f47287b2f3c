"""Reads request bodies, with limits on the size before and after decompression and on the total size of all bodies."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from penstock.core.errors import MalformedBody, Overloaded, PenstockError, TooLarge, UnsupportedMedia
from penstock.http.body_threads import BodyThreads
from penstock.http.pending import PendingBytes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_GZIP = 16 + zlib.MAX_WBITS
_PLAIN = (b"", b"identity")
_ZIPPED = (b"gzip", b"x-gzip")
GZIP_MEMBERS_MAX = 64
"""Maximum number of gzip members in a body.

The bytes after each member are copied to decompress the next one, so the total copied is at most the size of the body
times this number.
"""


class Disconnected(Exception):
    """The client disconnected before its body was complete. Nothing is stored and no response is sent."""


class Unfinished(Exception):
    """Raised to reject a request with `error` while the rest of its body might still be arriving."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error.message)
        self.error = error


class BodyReader:
    """Reads bodies of up to `bytes_max` bytes. Bodies that are unfinished or still compressed are counted in
    `pending`."""

    def __init__(self, bytes_max: int, pending: PendingBytes, threads: BodyThreads) -> None:
        self._threads = threads
        self._bytes_max = bytes_max
        self._pending = pending

    def require_length(self, declared: bytes) -> None:
        """Reject a body whose Content-Length is too large before reading any of it."""
        if declared.isdigit() and int(declared) > self._bytes_max:
            raise Unfinished(self._too_large())

    async def read(self, receive: Receive, encoding: bytes, who: str = "") -> bytes:
        """Read the whole request body, decompressed. `who` is the caller's name.

        Raises `Unfinished` as soon as the limit for this body or for all bodies is exceeded. Raises `TooLarge` if a
        body that arrived in one piece, or the decompressed content of any body, is too large. Raises `MalformedBody`
        for an invalid gzip body, `UnsupportedMedia` for an encoding other than gzip, and `Disconnected` if the client
        disconnects before the body is complete.
        """
        zipped = encoding not in _PLAIN
        if zipped and encoding.lower() not in _ZIPPED:
            shown = encoding.decode("latin-1")[:40]
            raise UnsupportedMedia(f"the content encoding {shown!r} is not supported; use gzip or none")
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = await self._rest(body, receive, who)
        elif len(body) > self._bytes_max:
            raise self._too_large()
        if zipped:
            return await self._unzipped(body, who)
        return body

    async def _unzipped(self, body: bytes, who: str) -> bytes:
        """Decompress a request body in the thread. A body that waits for its turn counts as unfinished."""
        self._pending.count(who, len(body))
        try:
            self._require_room(len(body), who)
            return await self._threads.run(who, len(body), partial(self._decompressed, body))
        finally:
            self._pending.count(who, -len(body))

    async def _rest(self, first: bytes, receive: Receive, who: str) -> bytes:
        parts, size = [first], len(first)
        self._pending.count(who, size)
        try:
            self._require_room(size, who)
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                self._pending.count(who, len(part))
                self._require_room(size, who)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            parts.clear()  # the traceback of a refusal keeps this frame alive until the response is sent
            self._pending.count(who, -size)

    def _require_room(self, size: int, who: str) -> None:
        """Raise `Unfinished` if a body of `size` bytes is too large, or if too many bytes are held in total. The body's
        bytes must already have been counted."""
        if size > self._bytes_max:
            raise Unfinished(self._too_large())
        try:
            self._pending.require_room(who, size)
        except Overloaded as error:
            raise Unfinished(error) from None

    def _decompressed(self, body: bytes) -> bytes:
        """Decompress a request body in a thread. Never holds more than `bytes_max` of output, however far the input
        would expand."""
        parts: list[bytes] = []
        room = self._bytes_max
        while body:
            if len(parts) == GZIP_MEMBERS_MAX:
                raise MalformedBody(f"the gzip body has more than {GZIP_MEMBERS_MAX} members")
            member = zlib.decompressobj(_GZIP)
            try:
                part = member.decompress(body, room + 1)
            except zlib.error:
                raise MalformedBody("the body is not valid gzip") from None
            room -= len(part)
            if room < 0:
                raise self._too_large()
            if not member.eof:
                raise MalformedBody("the gzip body is truncated")
            parts.append(part)
            body = member.unused_data
        return b"".join(parts)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._bytes_max} bytes", bytes_max=self._bytes_max)
