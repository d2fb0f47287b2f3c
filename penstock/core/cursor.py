"""Cursors: opaque strings that identify a position and work with every transport.

A cursor contains the *generation* of the file it points into, a random number chosen when the file is created. If it
does not match, the cursor comes from a different data directory or from before a rebuild, and the reader gets a
`reset`. A view's cursor also contains its *sight*, a digest of the filters applied by the app and the operator. If
these filters have changed, the reader must replace its copy of the rows, so it also gets a `reset`.

Acknowledgements are encoded in the same way, but are also signed: they give access to events, so it must not be
possible to forge them.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated

import msgspec

from penstock.core.errors import BadCursor, NotFound

Positions = dict[str, dict[int, int]]
"""For each stream, the next offset of each partition."""
SIGHT_BYTES = 8
MAC_BYTES = 16
"""Size of an acknowledgement's MAC in bytes: half of a SHA-256 hash, or 128 bits."""
LENGTH_MAX = 20_000
"""Maximum length of a cursor. A stream can have 1,024 partitions, each of which takes up to 12 bytes before base64
encoding."""


class StreamCursor(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The next offset to read, for each partition."""

    generation: int
    offsets: dict[int, int]


class ViewCursor(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    """The last version that the client has seen, and the sight at that time (see `narrowed`)."""

    generation: int
    version: int
    sight: bytes = b""


class QueryCursor(msgspec.Struct, frozen=True, array_like=True, tag="q"):
    """The last result that the client has seen, identified by a digest."""

    digest: bytes


Natural = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive events in one partition."""

    partition: Natural
    first: Natural
    count: Annotated[int, msgspec.Meta(ge=1, lt=2**48)]


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """The log positions of the events in a request, including duplicates."""

    stream: str
    generation: int
    spans: Annotated[tuple[Span, ...], msgspec.Meta(min_length=1)]


Cursor = StreamCursor | ViewCursor | QueryCursor
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Cursor] = msgspec.msgpack.Decoder(StreamCursor | ViewCursor | QueryCursor)
_ack_decoder = msgspec.msgpack.Decoder(Ack)


def stream_cursor(generation: int, offsets: Mapping[int, int]) -> str:
    return encode(StreamCursor(generation, dict(offsets)))


def view_cursor(generation: int, version: int, sight: bytes = b"") -> str:
    return encode(ViewCursor(generation, version, sight))


def narrowed(sight: bytes, *texts: str | None) -> bytes:
    """Return the sight after adding a condition set by the app or the operator. The sight is a digest of all such
    conditions, and is the same in every process. It does not include the reader's own filter."""
    return blake2b(sight + msgspec.json.encode(texts), digest_size=SIGHT_BYTES).digest()


def of_part(text: str, *texts: str | None) -> str:
    """Convert a view's cursor to a cursor for a filtered part of that view. Other cursors are returned unchanged."""
    cursor = decode(text)
    if not isinstance(cursor, ViewCursor):
        return text
    return view_cursor(cursor.generation, cursor.version, narrowed(cursor.sight, *texts))


def encode(cursor: Cursor) -> str:
    return _cursor_text(cursor)


def _cursor_text(value: Cursor) -> str:
    return _opaque_base64(_encoder.encode(value))


def _opaque_base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> Cursor:
    if len(text) > LENGTH_MAX:
        raise BadCursor("this cursor is longer than any Penstock cursor")
    try:
        return _decoder.decode(_opaque_bytes(text))
    except _UNREADABLE:
        raise BadCursor(f"{text[:80]!r} is not a cursor; use one from a response, or 'earliest' or 'latest'") from None


class AckSigner:
    """Encodes and decodes acknowledgements as signed strings: the encoded `Ack` followed by its HMAC-SHA256.
    Thread-safe."""

    def __init__(self, key: bytes | None = None) -> None:
        """Without a key, a random key is used, so the signer accepts only its own signatures."""
        self._key = secrets.token_bytes(32) if key is None else key

    def sign(self, ack: Ack) -> str:
        data = _encoder.encode(ack)
        return _opaque_base64(data + self._mac(data))

    def read(self, text: str) -> Ack:
        """Verify and decode an acknowledgement. Raises `NotFound`, always with the same message, if it is malformed,
        forged or altered."""
        try:
            signed = _opaque_bytes(text[:LENGTH_MAX])
            data, mac = signed[:-MAC_BYTES], signed[-MAC_BYTES:]
            # the base64 decoder skips unknown characters, so require the canonical encoding
            if hmac.compare_digest(self._mac(data), mac) and _opaque_base64(signed) == text:
                return _ack_decoder.decode(data)
        except _UNREADABLE:
            pass
        raise NotFound(f"{text[:80]!r} is not an acknowledgement; use the `ack` from a response")

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:MAC_BYTES]


_UNREADABLE = (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError)


def _opaque_bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def source_positions(text: str) -> Positions:
    """Parse the `start` or `end` of a ledger entry. Returns the next offset of each partition, by stream.

    `text` contains Spark's offsets as JSON: a list of `{"STREAM/PARTITION": offset}`, one object for each of the
    query's sources. If a query reads a stream twice, the lower offset is used.
    """
    positions: Positions = {}
    for source in msgspec.json.decode(text, type=list[dict[str, int]]):
        for name, offset in source.items():
            stream, _, partition = name.rpartition("/")
            known = positions.setdefault(stream, {})
            known[int(partition)] = min(offset, known.get(int(partition), offset))
    return positions
