"""An incoming HTTP response: its headers, and its body in pieces.

A body is decompressed here instead of by httpx, at most `PIECE_BYTES` at a time, so even the largest zip bomb uses only
that much memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from penstock.core.errors import SourceFailed

if TYPE_CHECKING:
    import httpx

PIECE_BYTES = 64 * 1024
"""Maximum number of bytes decompressed at a time, which is also the most that httpx reads at a time."""
RETRY_AFTER_S_MAX = 3600.0
"""Longest delay that a server can ask for. A longer delay is reduced to an hour."""


class ResponseLost(Exception):
    """A source's connection or response failed, and a retry may succeed after at least `after_s` seconds."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = after_s


class HttpResponse:
    """A response to a source: its status, its headers, and its body as it arrives.

    `whole` is true once the body has reached the end that the server announced, so nothing can be missing.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.whole = False

    def header(self, name: str) -> str | None:
        value = self._response.headers.get(name)
        return None if value is None else str(value)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the response's body, decompressed, in pieces of at most `PIECE_BYTES`. Other tasks can run between two
        pieces."""
        unpack = _body_unpacker(self.header("content-encoding"))
        async for part in self._response.stream:  # type: ignore[union-attr]
            for piece in unpack.pieces(part):
                yield piece
                await asyncio.sleep(0)
        announced = self.header("content-length") is not None or self.header("transfer-encoding") is not None
        if not unpack.complete:
            raise ResponseLost("the response is incomplete")
        self.whole = announced

    async def body(self, bytes_max: int) -> bytes:
        """Return the response's whole body. Raises `ResponseLost` if it is larger than `bytes_max`. See `whole` for
        whether the server announced its end."""
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > bytes_max:
                    raise ResponseLost(
                        f"the response is larger than {bytes_max} bytes; increase `body_bytes_max` to allow that"
                    )
                parts.append(piece)
        return b"".join(parts)


class _Plain:
    complete = True

    def pieces(self, part: bytes) -> Iterator[bytes]:
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]


class _Gzip:
    """Incremental gunzip. A body can consist of several gzip members."""

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
                raise ResponseLost("the response claims to be gzip but is not") from None
            self.complete = self._member.eof
            part = self._member.unused_data if self.complete else self._member.unconsumed_tail
            if piece:
                yield piece
            if not part and len(piece) < PIECE_BYTES:
                return


def _body_unpacker(encoding: str | None) -> _Plain | _Gzip:
    named = (encoding or "identity").strip().lower()
    if named == "identity":
        return _Plain()
    if named in ("gzip", "x-gzip"):
        return _Gzip()
    raise SourceFailed("the server sent an unrequested content encoding; only gzip is supported")
