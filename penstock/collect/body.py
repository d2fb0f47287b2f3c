"""Reading a request body under limits: its size before and after decompression, its time, and the sum of all bodies."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Executor
from typing import Any

from penstock.errors import MalformedBody, Overloaded, PenstockError, TooLarge, UnsupportedMedia

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_GZIP = 16 + zlib.MAX_WBITS
_PLAIN = (b"", b"identity")
_ZIPPED = (b"gzip", b"x-gzip")
GZIP_MEMBERS_MAX = 64
"""What follows a member is copied for the next, so the work is this many times the body at most."""


class Disconnected(Exception):
    """The client went away before its body was complete. Nothing of it is kept, and there is no one to answer."""


class Unfinished(Exception):
    """The request is refused by `error` while the rest of its body may still come."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error.message)
        self.error = error


class BodyReader:
    """Reads bodies of at most `bytes_max`, and holds at most `total_bytes_max` of those that are unfinished or wait to
    be decompressed, of which a caller with a name has half. A caller may always send one: its share bounds the others.
    """

    def __init__(self, bytes_max: int, total_bytes_max: int, threads: Executor) -> None:
        self._threads = threads
        self._bytes_max = bytes_max
        self._total_bytes_max = total_bytes_max
        self._held = 0
        self._own: Counter[str] = Counter()

    def require_length(self, declared: bytes) -> None:
        """Refuse by Content-Length alone, before anything is read."""
        if declared.isdigit() and int(declared) > self._bytes_max:
            raise Unfinished(self._too_large())

    async def read(self, receive: Receive, encoding: bytes, who: str = "") -> bytes:
        """The whole body, decompressed. `who` is the name of the caller.

        Raises `Unfinished` as soon as a limit is passed, of this body or of all that are being read; `TooLarge` and
        `MalformedBody` for what is inside a gzip body; `UnsupportedMedia` for another encoding; and `Disconnected`.
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
        """Decompress in one of the threads. Those who wait for one are counted with the unfinished bodies."""
        self._count(who, len(body))
        try:
            self._require_room(len(body), who)
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._decompressed, body)
        finally:
            self._count(who, -len(body))

    async def _rest(self, first: bytes, receive: Receive, who: str) -> bytes:
        parts, size = [first], len(first)
        self._count(who, size)
        try:
            self._require_room(size, who)
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                self._count(who, len(part))
                self._require_room(size, who)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            parts.clear()  # a refusal carries this frame in its traceback for as long as the answer takes
            self._count(who, -size)

    def _count(self, who: str, size: int) -> None:
        self._held += size
        self._own[who] += size
        if not self._own[who]:
            del self._own[who]

    def _require_room(self, size: int, who: str) -> None:
        """Raise `Unfinished` if a body of `size`, which is counted, is too large, or there is no room for it."""
        if size > self._bytes_max:
            raise Unfinished(self._too_large())
        if self._held > self._total_bytes_max:
            raise Unfinished(Overloaded(f"{self._held} bytes of unfinished requests are held", retry_after_s=1))
        own, share = self._own[who], self._total_bytes_max // 2
        if who and own > share and own > size:
            over = f"you hold {own} bytes of unfinished requests, and no one may hold more than {share}"
            raise Unfinished(Overloaded(over, retry_after_s=1))

    def _decompressed(self, body: bytes) -> bytes:
        """Never holds more than `bytes_max` of output, whatever the input would become. Runs in a thread."""
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
                raise MalformedBody("the gzip body is cut short")
            parts.append(part)
            body = member.unused_data
        return b"".join(parts)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._bytes_max} bytes", bytes_max=self._bytes_max)
