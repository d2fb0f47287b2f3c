"""An HTTP answer as it comes in: its headers, and its body in pieces.

A body is unpacked here and not by httpx, at most `PIECE_BYTES` at once: so the largest bomb costs one piece of memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from penstock.errors import SourceFailed

if TYPE_CHECKING:
    import httpx

PIECE_BYTES = 64 * 1024
"""The most of an answer that is unpacked at once, which is also the most that httpx reads at once."""
RETRY_AFTER_S_MAX = 3600.0
"""A server that says "come back in a year" is asked again in an hour."""


class Lost(Exception):
    """A connection or an answer came to nothing, and the next try may do better. `after_s`: not before that."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = after_s


def retry_after_s(value: str | None, now: datetime) -> float:
    """The seconds that a `Retry-After` asks for, given as seconds or as a date; 0 if it says nothing we understand."""
    if value is None:
        return 0.0
    try:
        wait = float(value) if value.strip().isdecimal() else (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(wait, 0.0), RETRY_AFTER_S_MAX)


class Answer:
    """One answer: its status, its headers, and its body as it comes. `whole` is true once the body has come to an end
    that the server announced, so that nothing of it can be missing."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.whole = False

    def header(self, name: str) -> str | None:
        value = self._response.headers.get(name)
        return None if value is None else str(value)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, unpacked, in pieces of at most `PIECE_BYTES`. Other tasks get their turn between two pieces."""
        unpack = _unpacker(self.header("content-encoding"))
        async for part in self._response.stream:  # type: ignore[union-attr]
            for piece in unpack.pieces(part):
                yield piece
                await asyncio.sleep(0)
        announced = self.header("content-length") is not None or self.header("transfer-encoding") is not None
        if not unpack.complete:
            raise Lost("the answer ended in the middle")
        self.whole = announced

    async def body(self, bytes_max: int) -> bytes:
        """All of the body; `Lost` if it is larger. See `whole` for whether the server announced its end."""
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > bytes_max:
                    raise Lost(f"the answer has more than {bytes_max} bytes; raise `body_bytes_max` if that is right")
                parts.append(piece)
        return b"".join(parts)


class _Plain:
    complete = True

    def pieces(self, part: bytes) -> Iterator[bytes]:
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]


class _Gzip:
    """Unpacks bit by bit. A body may be several gzip members, one after the other."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.complete = False

    def pieces(self, part: bytes) -> Iterator[bytes]:
        while True:
            try:
                if self._member.eof and part:
                    self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
                piece = self._member.decompress(part, PIECE_BYTES)
            except zlib.error:
                raise Lost("the answer says that it is gzip, and is not") from None
            self.complete = self._member.eof
            part = self._member.unused_data if self.complete else self._member.unconsumed_tail
            if piece:
                yield piece
            if not part and len(piece) < PIECE_BYTES:
                return


def _unpacker(encoding: str | None) -> _Plain | _Gzip:
    named = (encoding or "identity").strip().lower()
    if named == "identity":
        return _Plain()
    if named in ("gzip", "x-gzip"):
        return _Gzip()
    raise SourceFailed("the server packs its answer in a way that was not asked for; only gzip is understood")
